/**
 * Recurrent states of a hybrid model's sequences on the device: which slot has which state, where states are saved, and which saved ones
 * can be hit.
 *
 *   a running sequence   its current state, in a slot of its own or in the saved one that it begins with
 *   a saved state        the state at the end of a full block, named by that block (stateHashOf), in a slot that any sequence may begin with
 *
 * A prefix hit ends where KV is held up to a block *and* a state is held at its end. States are saved (state points)
 *   - at the last full block of a prompt, and of what a prefill computes,
 *   - every `interval` blocks of a prompt,
 *   - where a sequence leaves a prefix whose KV is cached further than its states, or which another sequence waits for,
 *   - after each full block of an answer, in one slot that is written again and again: its last contents are saved when the answer
 *     ends, and when the sequence is preempted.
 * With too few slots some points are passed over, and what lies between is computed again. E1 holds for slots as for blocks; a saved state
 * never changes (K3).
 */
import assert from 'node:assert/strict';
import type { Executable } from '../../kernels/device.ts';
import type { AnchoredHash, BlockHash, BlockKey, Digest } from '../kv/block_key.ts';
import { stateHashOf } from '../kv/record.ts';
import type { StateSlots } from '../protocol/membership.ts';
import { BlockPool } from './block_pool.ts';
import type { BlockEvent } from './engine_events.ts';
import { exportHeld, type WantedBlock } from './held_blocks.ts';
import type { Sequence } from './sequence.ts';
import type { HeldStates, SavedState, SegmentStates } from './sequence_states.ts';
import { StatePoints } from './state_points.ts';
import { LeastWorthFirst } from './state_worth.ts';

/** Device, sizes and callback of RecurrentStates. */
export interface RecurrentStatesOptions {
  readonly executable: Pick<Executable, 'numStateSlots' | 'copyStates' | 'importStates' | 'exportStates'>;
  /** Tokens of a block. */
  readonly blockSize: number;
  /** Blocks of a prompt between two states. */
  readonly interval: number;
  readonly emit: (event: BlockEvent) => void;
}

/** Slots of recurrent states: those of running sequences, and the saved ones. */
export class RecurrentStates {
  readonly pool: BlockPool;
  readonly #options: RecurrentStatesOptions;
  readonly #points: StatePoints;
  readonly #worth = new LeastWorthFirst();
  /** Slot of each saved state by the digest of the block at whose end it is, and that digest by the state's key. */
  readonly #byBlock = new Map<Digest, number>();
  readonly #blockOf = new Map<BlockKey, Digest>();
  readonly #held = new Map<Sequence, HeldStates>();
  /** States of leaders to be copied to followers after the step that is being built. */
  readonly #forks: { from: number[]; to: number[] } = { from: [], to: [] };

  constructor(options: RecurrentStatesOptions) {
    this.#options = options;
    this.#points = new StatePoints(options);
    const { executable, emit } = options;
    this.pool = new BlockPool(
      executable.numStateSlots,
      (key) => {
        const digest = this.#blockOf.get(key);
        this.#blockOf.delete(key);
        if (digest !== undefined) this.#byBlock.delete(digest);
        emit({ kind: 'removed', key });
      },
      this.#worth,
    );
  }

  /** Slots by their use, with hits and evictions, for heartbeats. */
  get usage(): StateSlots {
    const { numBlocks: slots, numCached: saved, numAvailable, counters } = this.pool;
    return { slots, saved, used: slots - numAvailable, hits: counters.hits, evictions: counters.evictions };
  }

  /** Returns the most blocks, at most `most`, at whose end a state is saved here; 0 when there is none. */
  heldAt(hashes: readonly BlockHash[], most: number): number {
    for (let blocks = Math.min(most, hashes.length); blocks > 0; blocks--)
      if (this.#byBlock.has(hashes[blocks - 1]!.digest)) return blocks;
    return 0;
  }

  /**
   * Gives a sequence a slot of its own; it begins with the state at the end of its first `numHits` blocks, which is held here, or with
   * zero. `numCached`: leading blocks whose KV is cached. One that `loads` gets another slot for the state that is fetched, unless it is
   * the only one. Returns false, and changes nothing, when there is no slot.
   */
  admit(sequence: Sequence, numHits: number, numCached: number, loads = false): boolean {
    const from = this.#reference(sequence.chain.hashes, numHits);
    const own = this.pool.grow();
    const spare = loads && own !== undefined ? this.pool.grow() : undefined;
    if (own === undefined || (loads && spare === undefined && this.#held.size > 0)) {
      this.pool.release([from, own].filter((slot) => slot !== undefined));
      return false;
    }
    const points = new Set(numCached > numHits ? [numCached] : []);
    this.#held.set(sequence, {
      own,
      current: from,
      isCurrentSaved: from !== undefined,
      rolling: undefined,
      points,
      lastSaved: numHits,
      spare,
      kept: [],
      hasEnded: false,
    });
    return true;
  }

  /** Counts the saved state that a sequence begins with as a hit, once it has got its blocks too. */
  admitted(sequence: Sequence): void {
    const { current } = this.#of(sequence);
    if (current === undefined) return;
    this.#worth.touch(current);
    this.pool.counters.hits++;
  }

  /** Moves a loading sequence's start after `blocks` blocks, because the state there was fetched. The state must be held here. */
  startAt(sequence: Sequence, blocks: number): void {
    const held = this.#of(sequence);
    const from = this.#reference(sequence.chain.hashes, blocks);
    const isFurther = blocks > held.lastSaved;
    this.#releaseCurrent(held);
    this.#releaseSpare(held);
    this.pool.release(held.kept.splice(0));
    held.current = from;
    held.isCurrentSaved = from !== undefined;
    held.lastSaved = blocks;
    if (isFurther) this.admitted(sequence);
  }

  /** References the state at the end of `blocks` blocks; undefined for 0 blocks. */
  #reference(hashes: readonly BlockHash[], blocks: number): number | undefined {
    if (blocks === 0) return undefined;
    const slot = this.#byBlock.get(hashes[blocks - 1]!.digest);
    assert(slot !== undefined, `a sequence begins with the state after ${blocks} blocks, which is not here`);
    this.pool.reference(slot);
    return slot;
  }

  /** Asks for a state at the end of `blocks` blocks of this sequence, because another sequence shares them and waits for them. */
  share(sequence: Sequence, blocks: number): void {
    this.#held.get(sequence)?.points.add(blocks);
  }

  /** Returns which states the rows [start, start + count) of a sequence, which are about to be submitted, read and write. */
  begin(sequence: Sequence, start: number, count: number): SegmentStates {
    const held = this.#of(sequence);
    const { blockSize } = this.#options;
    const end = start + count;
    const from = held.current;
    const read = held.isCurrentSaved ? from : undefined;
    const saves: SavedState[] = [];
    const writes: { rows: number; slot: number }[] = [];
    let rolling = 0;
    let current: { readonly slot: number; readonly isSaved: boolean } | undefined;
    const lastBlocks = Math.floor(end / blockSize);
    for (let blocks = Math.floor(start / blockSize) + 1; blocks <= lastBlocks; blocks++) {
      const rows = blocks * blockSize - start;
      const slot = this.#isPoint(sequence, held, blocks) ? this.#slotFor(sequence, held, blocks) : undefined;
      if (slot !== undefined) {
        saves.push({ slot, blocks, tokens: this.#points.tokensSaved(sequence, blocks, held.lastSaved) });
        held.lastSaved = blocks;
        writes.push({ rows, slot });
        if (rows === count) current = { slot, isSaved: true };
      } else if (blocks === lastBlocks && this.#isRolling(sequence, held, blocks)) {
        rolling = blocks;
        writes.push({ rows, slot: held.rolling!.slot });
        if (rows === count) current = { slot: held.rolling!.slot, isSaved: false };
      }
    }
    if (!current) writes.push({ rows: count, slot: held.own });
    else if (current.isSaved) this.pool.reference(current.slot);
    held.current = current?.slot ?? held.own;
    held.isCurrentSaved = current?.isSaved ?? false;
    return { segment: { from, saves: writes }, saves, read, rolling };
  }

  #isPoint(sequence: Sequence, { points }: HeldStates, blocks: number): boolean {
    if (!this.#points.has(sequence, points, blocks)) return false;
    const hash = sequence.chain.hashes[blocks - 1];
    return !(hash && this.#byBlock.has(hash.digest));
  }

  /** Returns a slot to save a state in, referenced once; what a prefill hands over may take the place of its own state. */
  #slotFor(sequence: Sequence, { own }: HeldStates, blocks: number): number | undefined {
    const slot = this.pool.grow();
    if (slot !== undefined || !this.#points.isHandedOver(sequence, blocks)) return slot;
    this.pool.reference(own);
    return own;
  }

  /**
   * Whether the state at the end of `blocks` blocks goes to the answer's rolling slot. Takes a slot at the first call; false when none is
   * free.
   */
  #isRolling(sequence: Sequence, held: HeldStates, blocks: number): boolean {
    if (!this.#points.isInAnswer(sequence, blocks)) return false;
    const slot = held.rolling?.slot ?? this.pool.grow();
    if (slot === undefined) return false;
    if (held.rolling) [held.rolling.blocks, held.rolling.isWritten] = [blocks, false];
    else held.rolling = { slot, blocks, isWritten: false };
    return true;
  }

  /** Names the states that a step has saved for a sequence that goes on; the blocks before them are named already. */
  complete(sequence: Sequence, { saves, read, rolling }: SegmentStates): void {
    for (const save of saves) {
      this.#seal(sequence, save, 'computed');
      this.pool.release([save.slot]);
    }
    if (read !== undefined) this.pool.release([read]);
    const held = this.#held.get(sequence);
    if (held?.rolling && rolling > 0 && held.rolling.blocks === rolling) held.rolling.isWritten = true;
  }

  /** Releases what a step of an ended sequence saved, without naming it. */
  drop(sequence: Sequence, { saves, read }: SegmentStates): void {
    for (const { slot } of saves) this.pool.release([slot]);
    if (read !== undefined) this.pool.release([read]);
    this.left(sequence);
  }

  /** Called when a step of an ended sequence has returned: releases the sequence's slots unless another step still uses them. */
  left(sequence: Sequence): void {
    if (this.#held.get(sequence)?.hasEnded && !sequence.cursor.isTouching) this.#forget(sequence);
  }

  #seal({ chain }: Sequence, { slot, blocks, tokens }: SavedState, origin: 'computed' | 'fetched'): void {
    const block: AnchoredHash | undefined = chain.hashes[blocks - 1];
    assert(block, `a state is saved after ${blocks} blocks, and ${chain.hashes.length} have names`);
    const hash = { ...stateHashOf(block), anchor: block.anchor };
    if (!this.pool.seal(slot, hash)) return;
    this.#worth.value(slot, tokens);
    this.#byBlock.set(block.digest, slot);
    this.#blockOf.set(hash.key, block.digest);
    this.#options.emit({ kind: 'stored', hash, origin });
  }

  /** Gives a follower, which starts where the step that is being built ends for its leader, a slot of its own. @returns whether there is one */
  fork(follower: Sequence): boolean {
    return this.admit(follower, 0, 0);
  }

  /** Notes that followers start from the state with which the step leaves their leader. */
  forked(leader: Sequence, followers: readonly Sequence[]): void {
    const { current, lastSaved } = this.#of(leader);
    for (const follower of followers) {
      const held = this.#of(follower);
      held.current = held.own;
      held.lastSaved = lastSaved;
      this.#forks.from.push(current!);
      this.#forks.to.push(held.own);
    }
  }

  /** Copies the states of leaders to their followers; called when the step was submitted. */
  copyForks(): void {
    const { from, to } = this.#forks;
    if (from.length > 0) this.#options.executable.copyStates(from, to);
    [this.#forks.from, this.#forks.to] = [[], []];
  }

  /** Copies a fetched state into the device, for a sequence that is loading; without a free slot it is ignored. */
  async put(sequence: Sequence, blocks: number, payload: Uint8Array): Promise<void> {
    const held = this.#held.get(sequence);
    const hash = sequence.chain.hashes[blocks - 1];
    if (!held || held.hasEnded || !hash || this.#byBlock.has(hash.digest)) return;
    const slot = held.spare ?? this.pool.grow();
    held.spare = undefined;
    if (slot === undefined) return;
    await this.#options.executable.importStates([slot], [payload]);
    // The sequence may have ended or been preempted during the copy: its payload may have been others' by then.
    if (!this.#isLoading(sequence, held)) {
      this.pool.release([slot]);
      return;
    }
    this.#seal(sequence, { slot, blocks, tokens: blocks * this.#options.blockSize }, 'fetched');
    held.kept.push(slot);
  }

  #isLoading(sequence: Sequence, held: HeldStates): boolean {
    return this.#held.get(sequence) === held && !held.hasEnded && sequence.state.kind === 'loading';
  }

  /** Copies saved states into their `out` buffers; returns for each whether it is held here. */
  exportTo(wanted: readonly WantedBlock[]): Promise<boolean[]> {
    return exportHeld(this.pool, (slots, outs) => this.#options.executable.exportStates(slots, outs), wanted);
  }

  /** Names the state in the rolling slot, so that it can be hit. Does nothing until the step that writes it has returned. */
  saveRolling(sequence: Sequence): void {
    const held = this.#held.get(sequence);
    const rolling = held?.rolling;
    if (!held || !rolling?.isWritten || sequence.chain.hashes.length < rolling.blocks) return;
    const tokens = (rolling.blocks - held.lastSaved) * this.#options.blockSize;
    this.#seal(sequence, { slot: rolling.slot, blocks: rolling.blocks, tokens }, 'computed');
    held.rolling = undefined;
    held.lastSaved = rolling.blocks;
    held.kept.push(rolling.slot);
  }

  /** Ends a sequence, or takes its slots from one that is preempted: at once, or when no step touches them any more. */
  end(sequence: Sequence, isTouching: boolean): void {
    const held = this.#held.get(sequence);
    if (!held) return;
    this.saveRolling(sequence);
    held.hasEnded = true;
    if (!isTouching) this.#forget(sequence);
  }

  #forget(sequence: Sequence): void {
    const held = this.#of(sequence);
    this.#held.delete(sequence);
    this.#releaseCurrent(held);
    this.#releaseSpare(held);
    this.pool.release([held.own, ...(held.rolling ? [held.rolling.slot] : []), ...held.kept]);
  }

  #releaseSpare(held: HeldStates): void {
    if (held.spare !== undefined) this.pool.release([held.spare]);
    held.spare = undefined;
  }

  #releaseCurrent(held: HeldStates): void {
    if (held.isCurrentSaved && held.current !== undefined) this.pool.release([held.current]);
    held.isCurrentSaved = false;
  }

  #of(sequence: Sequence): HeldStates {
    const held = this.#held.get(sequence);
    assert(held, 'a sequence that holds device blocks has a slot for its state');
    return held;
  }
}

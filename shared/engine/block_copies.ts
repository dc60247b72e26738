/**
 * Copies of blocks between a device and the slab's slots, alongside the steps of the engine's loop: delivered blocks go in, full blocks
 * come out, each under a byte budget, so that a burst of transfers cannot stall the tokens of running sequences.
 *
 *   deliver ─► deliveries (by sequence, in order) ─► device ─► `consumed`: the slot is free again
 *   computed, asked ─► export queue ─► slot of a grant ─► `exported`, or `export_failed`
 *   exported early ─► frame by frame, while the step runs ─► `frame`, then `exported`
 */
import assert from 'node:assert/strict';
import type { KvSpec } from '../kv/kv_spec.ts';
import { kindOf, recordShapeOf, type RecordKind } from '../kv/record.ts';
import type { AnchoredHash, BlockHash, BlockKey } from '../kv/block_key.ts';
import { slotBytes, slotLength, type SlabMemory } from '../kv/slab.ts';
import { EarlyExports } from './early_exports.ts';
import type { Engine } from './engine.ts';
import type { LoopEvent, ToEngine } from './engine_messages.ts';
import { ExportQueue, type Export } from './export_queue.ts';
import type { BlockOrigin } from './sequence_times.ts';

/** Most bytes copied in, and as many copied out, between two steps: about 2 ms at memory speed. */
const COPY_BYTES_PER_STEP = 16 * 2 ** 20;

interface BlockCopiesOptions {
  readonly spec: KvSpec;
  readonly numBlocks: number;
  /** Blocks that a step can export while it runs. */
  readonly numExportable: number;
  readonly push: (event: LoopEvent) => void;
  /** Sends what was pushed. */
  readonly flush: () => void;
  /** A copy has ended. */
  readonly onCopied: () => void;
}

/** A record in its slot, or one frame of it, to be copied into the device. */
interface Delivery {
  readonly blockIndex: number;
  readonly slot: number;
  readonly frame: number | undefined;
  readonly origin: BlockOrigin;
  readonly record?: 'state' | undefined;
}

/** Copies delivered blocks from the slab into the device and full blocks out of it, alongside the engine's steps. */
export class BlockCopies {
  readonly #options: BlockCopiesOptions;
  readonly #blocksPerStep: number;
  #slab: SlabMemory | undefined;
  /** Deliveries in order, by sequence; bounded by the fetch slots, which the control thread keeps. */
  readonly #deliveries = new Map<number, Delivery[]>();
  /** Free slots for exports of each kind of record; bounded by what the control thread grants. */
  readonly #credits: Readonly<Record<RecordKind, number[]>> = { block: [], state: [] };
  readonly #exports: ExportQueue;
  readonly #early: EarlyExports;
  /** Named blocks that were not copied out of the device; bounded by its blocks. */
  readonly #onlyHere = new Set<BlockKey>();
  /** Copies that are under way, each at most one at a time: steps do not wait for them. */
  #importing: Promise<void> | undefined;
  #exporting: Promise<void> | undefined;
  /** A copy has ended since the last turn. */
  #hasCopied = false;
  #failure: { readonly error: unknown } | undefined;

  constructor(options: BlockCopiesOptions) {
    const { spec, numBlocks, numExportable, push, flush } = options;
    this.#options = options;
    this.#blocksPerStep = Math.max(1, Math.floor(COPY_BYTES_PER_STEP / spec.payloadBytes));
    this.#exports = new ExportQueue(numBlocks, (hash) => {
      this.#onlyHere.delete(hash.key);
      push({ kind: 'export_failed', hash });
    });
    this.#early = new EarlyExports({
      maxBlocks: numExportable,
      acquireSlot: () => this.#credits.block.pop(),
      payloadIn: (slot) => this.#payload(slot),
      onFrame: (frame, blocks) => {
        push({ kind: 'frame', frame, blocks });
        flush();
      },
      onLeft: ({ hash, slot }) => {
        this.#onlyHere.delete(hash.key);
        push({ kind: 'exported', hash, slot, anchor: this.#exports.copied({ hash, anchor: hash.anchor }) });
      },
    });
  }

  attach(slab: SlabMemory): void {
    this.#slab = slab;
  }

  deliver({ id, blockIndex, slot, frame, origin, record }: Extract<ToEngine, { kind: 'deliver' }>): void {
    const queue = this.#deliveries.get(id) ?? [];
    queue.push({ blockIndex, slot, frame, origin, record });
    this.#deliveries.set(id, queue);
  }

  hasDeliveries(id: number): boolean {
    return this.#deliveries.has(id);
  }

  /**
   * Frees the slots of a sequence's deliveries after a preemption: the device blocks are gone, and admitted sequences need the host
   * memory.
   */
  drop(id: number): void {
    for (const { slot } of this.#deliveries.get(id) ?? []) this.#options.push({ kind: 'consumed', slot });
    this.#deliveries.delete(id);
  }

  /** Blocks of one sequence that are kept in host memory when it is preempted: not all that others may have put there. */
  get #mostKept(): number {
    const { slotBytes: bytes } = this.#options.spec;
    return this.#slab ? Math.floor(this.#slab.buffer.byteLength / slotLength(bytes) / 2) : 0;
  }

  /** Adds free slots for exports of a kind of record. */
  grant(slots: readonly number[], record: RecordKind = 'block'): void {
    this.#credits[record].push(...slots);
  }

  #creditsOf(hash: BlockHash): number[] {
    return this.#credits[kindOf(hash)];
  }

  /** A block was named. One that was computed is queued for export, unless it is being exported early. */
  stored(hash: AnchoredHash, origin: 'computed' | 'fetched'): void {
    this.#onlyHere.add(hash.key);
    if (origin === 'computed' && !this.#early.has(hash.key)) this.#exports.computed(hash, hash.anchor);
  }

  /** The device has the block no more. */
  removed(key: BlockKey): void {
    this.#onlyHere.delete(key);
  }

  /**
   * Queues those of a sequence's blocks that have not been copied out, ahead of others; the first of them, when host memory is small.
   * Returns whether none is left, or no copy can be made.
   */
  keep(hashes: readonly BlockHash[]): boolean {
    const most = this.#mostKept;
    const left = hashes.filter(({ key, kind }, i) => (kind === 'state' || i < most) && this.#onlyHere.has(key));
    const mayGo = this.#exporting !== undefined || left.some((hash) => this.#creditsOf(hash).length > 0);
    if (left.length === 0 || !mayGo) return true;
    for (const hash of left) this.#exports.requested(hash);
    return false;
  }

  /** Queues a block for export: another process asks for it. */
  requested(hash: BlockHash): void {
    this.#exports.requested(hash);
  }

  /** Adds readers that wait for these blocks to be computed (`isOn`), or removes them. */
  await(keys: readonly BlockKey[], isOn: boolean): void {
    this.#early.await(keys, isOn);
  }

  exportEarly(...args: Parameters<EarlyExports['begin']>): ReturnType<EarlyExports['begin']> {
    return this.#early.begin(...args);
  }

  get isCopying(): boolean {
    return (this.#importing ?? this.#exporting) !== undefined;
  }

  /**
   * Whether the loop's turn shows that the device lives: a copy that does not end is a device that hangs, however often the loop turns
   * meanwhile. Called once a turn.
   */
  hasProgressed(): boolean {
    if (!(this.#importing ?? this.#exporting) || this.#hasCopied) {
      this.#hasCopied = false;
      return true;
    }
    return false;
  }

  /** @throws Error of a copy that failed. */
  throwFailure(): void {
    if (this.#failure) throw this.#failure.error;
  }

  /** Resolves when no copy runs. */
  async drained(): Promise<void> {
    await Promise.all([this.#importing, this.#exporting]);
  }

  /** Starts to copy deliveries into the device, unless such a copy runs. */
  beginImport(engine: Engine): void {
    this.#importing ??= this.#inBackground(this.#putDeliveriesIn(engine), () => (this.#importing = undefined));
  }

  /** Starts to copy blocks out of the device, unless such a copy runs. */
  beginExport(engine: Engine): void {
    this.#exporting ??= this.#inBackground(this.#copyOut(engine), () => (this.#exporting = undefined));
  }

  /**
   * Returns a promise that resolves when the copy ends, also when it fails (see throwFailure); undefined when there is nothing to
   * copy.
   */
  #inBackground(copying: Promise<void> | undefined, ended: () => void): Promise<void> | undefined {
    return copying
      ?.catch((error: unknown) => {
        this.#failure = { error };
      })
      .finally(() => {
        ended();
        this.#hasCopied = true;
        this.#options.onCopied();
      });
  }

  /**
   * Starts a copy of queued deliveries, within the budget of one step; undefined when there is none. Deliveries of sequences
   * that take none stay queued.
   */
  #putDeliveriesIn(engine: Engine): Promise<void> | undefined {
    // The budget is counted in frames.
    const numFrames = this.#options.spec.frames.length;
    let budget = this.#blocksPerStep * numFrames;
    const taken: { id: number; deliveries: Delivery[] }[] = [];
    for (const [id, queue] of this.#deliveries) {
      const state = engine.stateOf(id);
      if (state === 'waiting' || (state === 'running' && !engine.takesBlocks(id))) continue;
      const deliveries: Delivery[] = [];
      for (const delivery of queue) {
        if (budget <= 0) break;
        deliveries.push(delivery);
        budget -= delivery.frame === undefined ? numFrames : 1;
      }
      if (deliveries.length === 0) break;
      taken.push({ id, deliveries });
    }
    return taken.length > 0 ? this.#putIn(engine, taken) : undefined;
  }

  async #putIn(
    engine: Engine,
    taken: readonly { readonly id: number; readonly deliveries: readonly Delivery[] }[],
  ): Promise<void> {
    for (const { id, deliveries } of taken) {
      // The sequence was preempted while other blocks were copied: `drop` returned these slots, and others may use them by now.
      if (this.#deliveries.get(id)?.[0] !== deliveries[0]) continue;
      await engine.incoming.blocks(
        id,
        deliveries
          .filter(({ record }) => record !== 'state')
          .map(({ blockIndex, slot, frame, origin }) => ({
            blockIndex,
            frame,
            origin,
            payload: this.#payload(slot, frame),
          })),
      );
      for (const { blockIndex, slot, record } of deliveries)
        // A preemption meanwhile has given these slots to others.
        if (record === 'state' && this.#deliveries.get(id)?.[0] === deliveries[0])
          await engine.incoming.state(id, blockIndex, this.#payload(slot, undefined, record));
      // A preemption during the copy has freed these slots already.
      const queue = this.#deliveries.get(id);
      if (queue?.[0] !== deliveries[0]) continue;
      queue?.splice(0, deliveries.length);
      for (const { slot } of deliveries) this.#options.push({ kind: 'consumed', slot });
      if (queue?.length === 0) this.#deliveries.delete(id);
    }
  }

  #copyOut(engine: Engine): Promise<void> | undefined {
    // A state is as large as many blocks, and goes alone.
    const left = { block: Math.min(this.#blocksPerStep, this.#credits.block.length), state: 0 };
    if (this.#credits.state.length > 0) left.state = 1;
    const next = this.#exports.next(Math.max(1, left.block), (hash) => left[kindOf(hash)] > 0);
    const record = next[0] ? kindOf(next[0].hash) : 'block';
    const batch = next
      .filter(({ hash }) => kindOf(hash) === record)
      .slice(0, left[record])
      .map((entry) => ({ entry, slot: this.#credits[record].pop()! }));
    return batch.length > 0 ? this.#copy(engine, batch) : undefined;
  }

  async #copy(engine: Engine, batch: readonly { readonly entry: Export; readonly slot: number }[]): Promise<void> {
    const isHeld = await engine.exportTo(
      batch.map(({ entry, slot }) => ({ hash: entry.hash, out: this.#payload(slot, undefined, entry.hash.kind) })),
    );
    batch.forEach(({ entry, slot }, i) => {
      const { hash } = entry;
      if (isHeld[i]) {
        this.#onlyHere.delete(hash.key);
        this.#options.push({ kind: 'exported', hash, slot, anchor: this.#exports.copied(entry) });
      } else {
        this.#creditsOf(hash).push(slot);
        this.#exports.failed(hash.key);
      }
    });
  }

  #payload(slot: number, frame?: number, record?: RecordKind): Uint8Array {
    assert(this.#slab, 'slots come after the slab');
    const { preambleBytes, payloadBytes, frames } = recordShapeOf(this.#options.spec, record);
    const { slotOffset, rawBytes } =
      frame === undefined ? { slotOffset: preambleBytes, rawBytes: payloadBytes } : frames[frame]!;
    return slotBytes(this.#slab, slot + slotOffset, rawBytes);
  }
}

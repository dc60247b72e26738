/**
 * Copies of blocks between a device and the slab's slots, beside the steps of the engine's loop: delivered blocks go in, full blocks come out, each
 * under a byte budget, so that a burst of transfers cannot stall the tokens of running sequences.
 *
 *   deliver ─► deliveries (by sequence, in order) ─► device ─► `consumed`: the slot is free again
 *   computed, asked ─► export queue ─► slot of a grant ─► `exported`, or `export_failed`
 *   exported early ─► frame by frame, while the step runs ─► `frame`, then `exported`
 */
import assert from 'node:assert/strict';
import type { KvSpec } from '../kv/kv_spec.ts';
import type { AnchoredHash, BlockHash, BlockKey } from '../kv/block_key.ts';
import { slotBytes, type SlabMemory } from '../kv/slab.ts';
import { EarlyExports } from './early_exports.ts';
import type { Engine } from './engine.ts';
import type { LoopEvent, ToEngine } from './engine_messages.ts';
import { ExportQueue, type Export } from './export_queue.ts';

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
}

/** Copies delivered blocks from the slab into the device and full blocks out of it, beside the engine's steps. */
export class BlockCopies {
  readonly #options: BlockCopiesOptions;
  readonly #blocksPerStep: number;
  #slab: SlabMemory | undefined;
  /** Deliveries in order, by sequence; bounded by the fetch slots, which the control thread keeps. */
  readonly #deliveries = new Map<number, Delivery[]>();
  /** Free slots for exports; bounded by what the control thread grants. */
  readonly #credits: number[] = [];
  readonly #exports: ExportQueue;
  readonly #early: EarlyExports;
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
      push({ kind: 'export_failed', hash });
    });
    this.#early = new EarlyExports({
      maxBlocks: numExportable,
      acquireSlot: () => this.#credits.pop(),
      payloadIn: (slot) => this.#payload(slot),
      onFrame: (frame, blocks) => {
        push({ kind: 'frame', frame, blocks });
        flush();
      },
      onLeft: ({ hash, slot }) => {
        push({ kind: 'exported', hash, slot, anchor: this.#exports.copied({ hash, anchor: hash.anchor }) });
      },
    });
  }

  attach(slab: SlabMemory): void {
    this.#slab = slab;
  }

  deliver({ id, blockIndex, slot, frame }: Extract<ToEngine, { kind: 'deliver' }>): void {
    const queue = this.#deliveries.get(id) ?? [];
    queue.push({ blockIndex, slot, frame });
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

  /** Adds free slots for exports. */
  grant(slots: readonly number[]): void {
    this.#credits.push(...slots);
  }

  /** Queues a computed block for export, unless it is being exported early. */
  computed(hash: AnchoredHash): void {
    if (!this.#early.has(hash.key)) this.#exports.computed(hash, hash.anchor);
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
   * Starts a copy of queued deliveries, within the budget of one step; undefined when there is none. Deliveries of waiting and running
   * sequences stay queued.
   */
  #putDeliveriesIn(engine: Engine): Promise<void> | undefined {
    // The budget is counted in frames.
    const numFrames = this.#options.spec.frames.length;
    let budget = this.#blocksPerStep * numFrames;
    const taken: { id: number; deliveries: Delivery[] }[] = [];
    for (const [id, queue] of this.#deliveries) {
      const state = engine.stateOf(id);
      if (state === 'waiting' || state === 'running') continue;
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
      await engine.deliver(
        id,
        deliveries.map(({ blockIndex, slot, frame }) => ({ blockIndex, frame, payload: this.#payload(slot, frame) })),
      );
      // A preemption during the copy has freed these slots already.
      const queue = this.#deliveries.get(id);
      if (queue?.[0] !== deliveries[0]) continue;
      queue?.splice(0, deliveries.length);
      for (const { slot } of deliveries) this.#options.push({ kind: 'consumed', slot });
      if (queue?.length === 0) this.#deliveries.delete(id);
    }
  }

  #copyOut(engine: Engine): Promise<void> | undefined {
    const batch = this.#exports
      .next(Math.min(this.#blocksPerStep, this.#credits.length))
      .map((entry) => ({ entry, slot: this.#credits.pop()! }));
    return batch.length > 0 ? this.#copy(engine, batch) : undefined;
  }

  async #copy(engine: Engine, batch: readonly { readonly entry: Export; readonly slot: number }[]): Promise<void> {
    const isHeld = await engine.exportTo(
      batch.map(({ entry, slot }) => ({ hash: entry.hash, out: this.#payload(slot) })),
    );
    batch.forEach(({ entry, slot }, i) => {
      const { hash } = entry;
      if (isHeld[i]) {
        this.#options.push({ kind: 'exported', hash, slot, anchor: this.#exports.copied(entry) });
      } else {
        this.#credits.push(slot);
        this.#exports.failed(hash.key);
      }
    });
  }

  #payload(slot: number, frame?: number): Uint8Array {
    assert(this.#slab, 'slots come after the slab');
    const { preambleBytes, payloadBytes, frames } = this.#options.spec;
    const { slotOffset, rawBytes } =
      frame === undefined ? { slotOffset: preambleBytes, rawBytes: payloadBytes } : frames[frame]!;
    return slotBytes(this.#slab, slot + slotOffset, rawBytes);
  }
}

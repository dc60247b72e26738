/**
 * The engine's loop: owns the device; no network, no disk.
 *
 * Between steps it puts delivered blocks in and copies full blocks out, each under a byte budget, so that a burst of
 * transfers cannot stall the tokens of running sequences.
 */
import assert from 'node:assert/strict';
import type { Executable } from '../../kernels/device.ts';
import { Condition } from '../base/condition.ts';
import type { Clock } from '../base/clock.ts';
import { Failure } from '../base/failure.ts';
import type { StepTimes } from './step_pace.ts';
import type { KvSpec } from '../kv/kv_spec.ts';
import type { RecordLayout } from '../kv/record.ts';
import { slotBytes, type SlabMemory } from '../kv/slab.ts';
import { EarlyExports } from './early_exports.ts';
import { Engine } from './engine.ts';
import type { EngineEvent } from './engine_events.ts';
import type { FromEngine, LoopEvent, ToEngine } from './engine_messages.ts';
import { ExportQueue, type Export } from './export_queue.ts';
import type { SequenceRequest } from './sequence.ts';

/** Copied in, and as much copied out, between two steps: about 2 ms at memory speed. */
const COPY_BYTES_PER_STEP = 16 * 2 ** 20;

export interface EngineLoopOptions {
  readonly executable: Executable;
  readonly layout: RecordLayout;
  readonly numBlocks: number;
  readonly maxWaiting: number;
  readonly chunkTokens: number;
  readonly maxNumSeqs: number;
  readonly stepMs: number;
  readonly firstSteps?: readonly StepTimes[];
  readonly clock: Clock;
  readonly emit: (message: FromEngine) => void;
  /** [turns of the loop, 1 while one runs] u32: what the control thread's watchdog looks at. */
  readonly pulse: Int32Array;
  /** For drills: told before every turn. */
  readonly onTurn?: (numSteps: number) => void;
}

/** A record in its slot that is to be put in, or one frame of it. */
interface Delivery {
  readonly blockIndex: number;
  readonly slot: number;
  readonly frame: number | undefined;
}

export class EngineLoop {
  readonly engine: Engine;
  readonly #options: EngineLoopOptions;
  readonly #blocksPerStep: number;
  #events: LoopEvent[] = [];
  #toldState = '';
  #slab: SlabMemory | undefined;
  /** Per sequence, deliveries in order; bounded by the slab's arrival window, which the control thread keeps. */
  readonly #deliveries = new Map<number, Delivery[]>();
  /** Free slots for exports; bounded by what the control thread grants. */
  readonly #credits: number[] = [];
  readonly #exports: ExportQueue;
  readonly #early: EarlyExports;
  readonly #changed = new Condition();
  #hasNews = false;

  constructor(options: EngineLoopOptions) {
    this.#options = options;
    const {
      executable,
      layout,
      numBlocks,
      chunkTokens,
      maxNumSeqs,
      maxWaiting,
      stepMs,
      clock,
      firstSteps = [],
    } = options;
    this.#exports = new ExportQueue(numBlocks, (hash) => {
      this.#events.push({ kind: 'export_failed', hash });
    });
    this.#early = new EarlyExports({
      maxBlocks: executable.numExportable,
      takeSlot: () => this.#credits.pop(),
      payloadIn: (slot) => this.#payload(slot),
      onFrame: (frame, blocks) => {
        this.#events.push({ kind: 'frame', frame, blocks });
        this.#flush();
      },
      onLeft: ({ hash, slot }) => {
        const anchor = this.#exports.copied({ hash, anchor: hash.anchor });
        this.#events.push({ kind: 'exported', hash, slot, anchor });
      },
    });
    this.#blocksPerStep = Math.max(1, Math.floor(COPY_BYTES_PER_STEP / layout.spec.payloadBytes));
    const { spec } = layout;
    this.engine = new Engine(
      executable,
      {
        ...{ spec, numBlocks, chunkTokens, maxNumSeqs, maxWaiting, stepMs, firstSteps },
        emit: (event) => {
          this.#onEvent(event);
        },
        exportEarly: (hashes) => this.#early.begin(hashes),
      },
      clock,
    );
  }

  #onEvent(event: EngineEvent): void {
    if (event.kind === 'planned') {
      if (this.#events.length > 0) this.#flush();
      return;
    }
    if (event.kind === 'preempted') {
      // What was on its way to blocks it no longer has would hold host memory that admitted sequences need.
      for (const { slot } of this.#deliveries.get(event.id) ?? []) this.#events.push({ kind: 'consumed', slot });
      this.#deliveries.delete(event.id);
    }
    if (event.kind === 'stored' && event.origin === 'computed' && !this.#early.has(event.hash.key))
      this.#exports.computed(event.hash, event.hash.anchor);
    this.#events.push(event);
  }

  get #spec(): KvSpec {
    return this.#options.layout.spec;
  }

  #isStopping = false;

  submit(request: SequenceRequest): void {
    this.#hasNews = true;
    this.#changed.notify();
    try {
      this.engine.submit(request);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.#events.push({ kind: 'refused', id: request.id, code: error.code, message: error.message });
    }
  }

  receive(message: ToEngine): void {
    this.#hasNews = true;
    this.#changed.notify();
    switch (message.kind) {
      case 'attach':
        this.#slab = message.slab;
        return;
      case 'deliver': {
        const { id, blockIndex, slot, frame, isEarly } = message;
        if (!isEarly && this.engine.stateOf(id) === 'waiting') {
          // It was preempted while this was on its way: a slot held for it would keep those that can be admitted.
          this.#events.push({ kind: 'consumed', slot });
          return;
        }
        const queue = this.#deliveries.get(id) ?? [];
        queue.push({ blockIndex, slot, frame });
        this.#deliveries.set(id, queue);
        return;
      }
      case 'proceed':
        this.#proceeding.add(message.id);
        return;
      case 'cancel':
        this.engine.cancel(message.id);
        return;
      case 'await':
        this.#early.await(message.keys, message.isOn);
        return;
      case 'grant':
        this.#credits.push(...message.slots);
        return;
      case 'export':
        this.#exports.asked(message.hash);
        return;
      case 'stop':
        this.#isStopping = true;
        return;
    }
  }

  /** Sequences whose fetch ended; they proceed when their last delivery is in. */
  readonly #proceeding = new Set<number>();

  /** Copies that are under way, each at most one at a time: steps do not wait for them. */
  #importing: Promise<void> | undefined;
  #exporting: Promise<void> | undefined;
  /** One has ended since the last turn. */
  #hasCopied = false;
  #copyFailure: { readonly error: unknown } | undefined;

  /** Resolves when told to stop, when no step and no copy runs: a device must not go while it computes. */
  async run(): Promise<void> {
    const { pulse, onTurn, clock } = this.#options;
    while (!this.#isStopping) {
      // A copy that does not end is a device that hangs, however often the loop turns meanwhile.
      if (!(this.#importing ?? this.#exporting) || this.#hasCopied) Atomics.add(pulse, 0, 1);
      this.#hasCopied = false;
      Atomics.store(pulse, 1, 1);
      onTurn?.(this.engine.numSteps);
      this.#hasNews = false;
      this.#importing ??= this.#inBackground(this.#putDeliveriesIn(), () => (this.#importing = undefined));
      for (const id of this.#proceeding) {
        if (this.#deliveries.has(id)) continue;
        this.engine.proceed(id);
        this.#proceeding.delete(id);
      }
      const hasWorked = await this.engine.step();
      this.#exporting ??= this.#inBackground(this.#copyOut(), () => (this.#exporting = undefined));
      if (this.#copyFailure) throw this.#copyFailure.error;
      this.#flush();
      if (hasWorked) {
        await clock.turn();
      } else {
        if (!this.#importing && !this.#exporting) Atomics.store(pulse, 1, 0);
        await this.#news();
      }
    }
    await this.engine.drain();
    await Promise.all([this.#importing, this.#exporting]);
  }

  /** Undefined when there is nothing to copy. */
  #inBackground(copying: Promise<void> | undefined, ended: () => void): Promise<void> | undefined {
    return copying
      ?.catch((error: unknown) => {
        this.#copyFailure = { error };
      })
      .finally(() => {
        ended();
        this.#hasCopied = true;
        this.#hasNews = true;
        this.#changed.notify();
      });
  }

  /** Resolves at the next message or the end of a copy, or at once when one came meanwhile. */
  async #news(): Promise<void> {
    if (!this.#hasNews) await this.#changed.changed();
  }

  /** Of sequences that have device blocks; a waiting one's deliveries stay where they are. */
  #putDeliveriesIn(): Promise<void> | undefined {
    // Counted in frames.
    const numFrames = this.#spec.frames.length;
    let budget = this.#blocksPerStep * numFrames;
    const taken: { id: number; deliveries: Delivery[] }[] = [];
    for (const [id, queue] of this.#deliveries) {
      const state = this.engine.stateOf(id);
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
    return taken.length > 0 ? this.#putIn(taken) : undefined;
  }

  async #putIn(taken: readonly { readonly id: number; readonly deliveries: readonly Delivery[] }[]): Promise<void> {
    for (const { id, deliveries } of taken) {
      // It was preempted while another's were put in: the slots are somebody else's by now.
      if (this.#deliveries.get(id)?.[0] !== deliveries[0]) continue;
      await this.engine.deliver(
        id,
        deliveries.map(({ blockIndex, slot, frame }) => ({ blockIndex, frame, payload: this.#payload(slot, frame) })),
      );
      // A preemption has given them back already.
      const queue = this.#deliveries.get(id);
      if (queue?.[0] !== deliveries[0]) continue;
      queue?.splice(0, deliveries.length);
      for (const { slot } of deliveries) this.#events.push({ kind: 'consumed', slot });
      if (queue?.length === 0) this.#deliveries.delete(id);
    }
  }

  #copyOut(): Promise<void> | undefined {
    const batch = this.#exports
      .next(Math.min(this.#blocksPerStep, this.#credits.length))
      .map((entry) => ({ entry, slot: this.#credits.pop()! }));
    return batch.length > 0 ? this.#copy(batch) : undefined;
  }

  async #copy(batch: readonly { readonly entry: Export; readonly slot: number }[]): Promise<void> {
    const isHeld = await this.engine.exportTo(
      batch.map(({ entry, slot }) => ({ hash: entry.hash, out: this.#payload(slot) })),
    );
    batch.forEach(({ entry, slot }, i) => {
      const { hash } = entry;
      if (isHeld[i]) {
        this.#events.push({ kind: 'exported', hash, slot, anchor: this.#exports.copied(entry) });
      } else {
        this.#credits.push(slot);
        this.#exports.failed(hash.key);
      }
    });
  }

  #payload(slot: number, frame?: number): Uint8Array {
    assert(this.#slab, 'slots come after the slab');
    const { preambleBytes, payloadBytes, frames } = this.#spec;
    const { slotOffset, rawBytes } =
      frame === undefined ? { slotOffset: preambleBytes, rawBytes: payloadBytes } : frames[frame]!;
    return slotBytes(this.#slab, slot + slotOffset, rawBytes);
  }

  /** Tells what happened, and the load when it changed: a cancelled sequence leaves no event. */
  #flush(): void {
    const { pool, load, numSteps, lastStepMs } = this.engine;
    const { numKeyed, numAvailable, counters } = pool;
    const state = `${load.numRunning} ${load.numWaiting} ${numAvailable}`;
    if (this.#events.length === 0 && state === this.#toldState) return;
    this.#toldState = state;
    this.#options.emit({
      kind: 'events',
      events: this.#events,
      load: { ...load, numSteps, lastStepMs, numKeyed, numAvailable, counters },
    });
    this.#events = [];
  }
}

/**
 * The engine's loop: owns the device; no network, no disk.
 *
 * Between steps it puts delivered blocks in and copies full blocks out, each under a byte budget, so that a burst of
 * transfers cannot stall the tokens of running sequences.
 */
import assert from 'node:assert/strict';
import type { Executable } from '../../kernels/device.ts';
import type { Clock } from '../base/clock.ts';
import { Failure } from '../base/failure.ts';
import type { RecordLayout } from '../kv/record.ts';
import { slotBytes, type SlabMemory } from '../kv/slab.ts';
import { Engine } from './engine.ts';
import type { EngineEvent, FromEngine, ToEngine } from './engine_messages.ts';
import { ExportQueue } from './export_queue.ts';
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
  readonly clock: Clock;
  readonly emit: (message: FromEngine) => void;
  /** [turns of the loop, 1 while one runs] u32: what the control thread's watchdog looks at. */
  readonly pulse: Int32Array;
  /** For drills: told before every turn. */
  readonly onTurn?: (numSteps: number) => void;
}

export class EngineLoop {
  readonly engine: Engine;
  readonly #options: EngineLoopOptions;
  readonly #blocksPerStep: number;
  #events: EngineEvent[] = [];
  #toldState = '';
  #slab: { memory: SlabMemory; payloadOffset: number } | undefined;
  /** Per sequence, deliveries in order; bounded by the slab's arrival window, which the control thread keeps. */
  readonly #deliveries = new Map<number, { blockIndex: number; slot: number }[]>();
  /** Free slots for exports; bounded by what the control thread grants. */
  readonly #credits: number[] = [];
  readonly #exports: ExportQueue;
  #wake: (() => void) | undefined;
  #hasNews = false;

  constructor(options: EngineLoopOptions) {
    this.#options = options;
    const { executable, layout, numBlocks, chunkTokens, maxNumSeqs, maxWaiting, clock } = options;
    this.#exports = new ExportQueue(numBlocks, (hash) => {
      this.#events.push({ kind: 'export_failed', hash });
    });
    this.#blocksPerStep = Math.max(1, Math.floor(COPY_BYTES_PER_STEP / layout.payloadBytes));
    const { blockSize } = layout;
    const emit = (event: EngineEvent): void => {
      this.#events.push(event);
    };
    this.engine = new Engine(
      executable,
      { blockSize, numBlocks, chunkTokens, maxNumSeqs, maxWaiting },
      {
        onToken: (id, sampled, report, finish) => {
          emit({ kind: 'token', id, sampled, report, finish });
        },
        onAdmitted: (id) => {
          emit({ kind: 'admitted', id });
        },
        onPreempted: (id) => {
          // What was on its way to blocks it no longer has would hold host memory that admitted sequences need.
          for (const { slot } of this.#deliveries.get(id) ?? []) emit({ kind: 'consumed', slot });
          this.#deliveries.delete(id);
          emit({ kind: 'preempted', id });
        },
        onProgress: (id, numReady, numRun) => {
          emit({ kind: 'progress', id, numReady, numRun });
        },
        onPrefilled: (id, report) => {
          emit({ kind: 'prefilled', id, report });
        },
        onStored: (hash, origin) => {
          emit({ kind: 'stored', hash });
          if (origin === 'computed') this.#exports.computed(hash, hash.anchor);
        },
        onRemoved: (key) => {
          emit({ kind: 'removed', key });
        },
        onPlanned: () => {
          if (this.#events.length > 0) this.#flush();
        },
      },
      clock,
    );
  }

  #isStopping = false;

  submit(request: SequenceRequest): void {
    this.#hasNews = true;
    this.#wake?.();
    try {
      this.engine.submit(request);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.#events.push({ kind: 'refused', id: request.id, code: error.code, message: error.message });
    }
  }

  receive(message: ToEngine): void {
    this.#hasNews = true;
    this.#wake?.();
    switch (message.kind) {
      case 'attach':
        this.#slab = { memory: message.slab, payloadOffset: message.payloadOffset };
        return;
      case 'deliver': {
        const { id, blockIndex, slot, isEarly } = message;
        if (!isEarly && this.engine.phaseOf(id) === 'waiting') {
          // It was preempted while this was on its way: a slot held for it would keep those that can be admitted.
          this.#events.push({ kind: 'consumed', slot });
          return;
        }
        const queue = this.#deliveries.get(id) ?? [];
        queue.push({ blockIndex, slot });
        this.#deliveries.set(id, queue);
        return;
      }
      case 'proceed':
        this.#proceeding.add(message.id);
        return;
      case 'cancel':
        this.engine.cancel(message.id);
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

  /** Resolves when told to stop, between two steps: a device must not go while it computes. */
  async run(): Promise<void> {
    const { pulse, onTurn, clock } = this.#options;
    while (!this.#isStopping) {
      Atomics.add(pulse, 0, 1);
      Atomics.store(pulse, 1, 1);
      onTurn?.(this.engine.numSteps);
      this.#hasNews = false;
      await this.#putDeliveriesIn();
      for (const id of this.#proceeding) {
        if (this.#deliveries.has(id)) continue;
        this.engine.proceed(id);
        this.#proceeding.delete(id);
      }
      const hasWorked = await this.engine.step();
      const hasExported = await this.#copyOut();
      this.#flush();
      if (hasWorked || hasExported) {
        await clock.turn();
      } else {
        Atomics.store(pulse, 1, 0);
        await this.#news();
      }
    }
  }

  /** Resolves at the next message, or at once when one came meanwhile. */
  async #news(): Promise<void> {
    if (this.#hasNews) return;
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
    this.#wake = undefined;
  }

  async #putDeliveriesIn(): Promise<void> {
    let budget = this.#blocksPerStep;
    for (const [id, queue] of this.#deliveries) {
      // A waiting sequence has no device blocks yet: its deliveries stay where they are.
      const phase = this.engine.phaseOf(id);
      if (phase === 'waiting' || phase === 'running') continue;
      const taken = queue.splice(0, budget);
      budget -= taken.length;
      await this.engine.deliver(
        id,
        taken.map(({ blockIndex, slot }) => ({ blockIndex, payload: this.#payload(slot) })),
      );
      for (const { slot } of taken) this.#events.push({ kind: 'consumed', slot });
      if (queue.length === 0) this.#deliveries.delete(id);
      else this.#hasNews = true;
    }
  }

  async #copyOut(): Promise<boolean> {
    const batch = this.#exports
      .next(Math.min(this.#blocksPerStep, this.#credits.length))
      .map((entry) => ({ entry, slot: this.#credits.pop()! }));
    if (batch.length === 0) return false;
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
    // Also when the pool held none of them: there may be more.
    return true;
  }

  #payload(slot: number): Uint8Array {
    assert(this.#slab, 'slots come after the slab');
    const { memory, payloadOffset } = this.#slab;
    return slotBytes(memory, slot).subarray(payloadOffset, payloadOffset + this.#options.layout.payloadBytes);
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

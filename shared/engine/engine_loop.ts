/**
 * The engine's loop: owns the device; no network, no disk.
 *
 *   messages ─► turn: begin copies in ─► step ─► begin copies out ─► events ─► next turn, or wait for news
 */
import type { Executable } from '../../kernels/device.ts';
import { Condition } from '../base/condition.ts';
import type { Clock } from '../base/clock.ts';
import { Failure } from '../base/failure.ts';
import type { StepTimes } from './step_budget.ts';
import type { RecordLayout } from '../kv/record.ts';
import { BlockCopies } from './block_copies.ts';
import { Engine } from './engine.ts';
import type { EngineEvent } from './engine_events.ts';
import type { FromEngine, LoopEvent, ToEngine } from './engine_messages.ts';
import type { SequenceRequest } from './sequence.ts';
import type { Grammars } from './token_constraint.ts';

/** Device, limits and hooks of an engine loop. */
export interface EngineLoopOptions {
  readonly executable: Executable;
  readonly layout: RecordLayout;
  readonly numBlocks: number;
  readonly maxWaiting: number;
  readonly chunkTokens: number;
  readonly maxNumSeqs: number;
  readonly stepMs: number;
  readonly firstSteps?: readonly StepTimes[];
  readonly grammars?: Grammars | undefined;
  readonly clock: Clock;
  readonly emit: (message: FromEngine) => void;
  /** [turns of the loop, 1 while one runs] u32: what the control thread's watchdog looks at. */
  readonly heartbeat: Int32Array;
  /** For fault injection: called before every turn of the loop. */
  readonly onTurn?: (numSteps: number) => void;
}

/** Loop of the engine thread: handles messages, starts block copies, runs engine steps and emits events. */
export class EngineLoop {
  readonly engine: Engine;
  readonly #options: EngineLoopOptions;
  readonly #copies: BlockCopies;
  #events: LoopEvent[] = [];
  #toldState = '';
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
      grammars,
    } = options;
    const { spec } = layout;
    this.#copies = new BlockCopies({
      ...{ spec, numBlocks, numExportable: executable.numExportable },
      push: (event) => {
        this.#events.push(event);
      },
      flush: () => {
        this.#flush();
      },
      onCopied: () => {
        this.#wake();
      },
    });
    this.engine = new Engine(
      executable,
      {
        ...{ spec, numBlocks, chunkTokens, maxNumSeqs, maxWaiting, stepMs, firstSteps, grammars },
        emit: (event) => {
          this.#onEvent(event);
        },
        exportEarly: (hashes) => this.#copies.exportEarly(hashes),
        onReady: () => {
          this.#wake();
        },
      },
      clock,
    );
  }

  #onEvent(event: EngineEvent): void {
    if (event.kind === 'planned') {
      if (this.#events.length > 0) this.#flush();
      return;
    }
    if (event.kind === 'preempted') this.#copies.drop(event.id);
    if (event.kind === 'stored' && event.origin === 'computed') this.#copies.computed(event.hash);
    this.#events.push(event);
  }

  #isStopping = false;

  submit(request: SequenceRequest): void {
    this.#wake();
    try {
      this.engine.submit(request);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.#events.push({ kind: 'refused', id: request.id, code: error.code, message: error.message });
    }
  }

  receive(message: ToEngine): void {
    this.#wake();
    switch (message.kind) {
      case 'attach':
        this.#copies.attach(message.slab);
        return;
      case 'deliver': {
        if (!message.isEarly && this.engine.stateOf(message.id) === 'waiting') {
          // The sequence was preempted while the delivery was on its way. Keeping the slot for it would block sequences that can be
          // admitted.
          this.#events.push({ kind: 'consumed', slot: message.slot });
          return;
        }
        this.#copies.deliver(message);
        return;
      }
      case 'proceed':
        this.#proceeding.add(message.id);
        return;
      case 'cancel':
        this.engine.cancel(message.id);
        return;
      case 'await':
        this.#copies.await(message.keys, message.isOn);
        return;
      case 'grant':
        this.#copies.grant(message.slots);
        return;
      case 'export':
        this.#copies.requested(message.hash);
        return;
      case 'stop':
        this.#isStopping = true;
        return;
    }
  }

  /** Sequences whose fetch ended; they proceed when their last delivery is in. */
  readonly #proceeding = new Set<number>();

  /**
   * Runs the loop until 'stop' is received; resolves when no step and no copy runs, because a device must not be destroyed while it
   * computes.
   */
  async run(): Promise<void> {
    const { heartbeat, onTurn, clock } = this.#options;
    while (!this.#isStopping) {
      if (this.#copies.hasProgressed()) Atomics.add(heartbeat, 0, 1);
      Atomics.store(heartbeat, 1, 1);
      onTurn?.(this.engine.numSteps);
      this.#hasNews = false;
      this.#copies.beginImport(this.engine);
      for (const id of this.#proceeding) {
        if (this.#copies.hasDeliveries(id)) continue;
        this.engine.proceed(id);
        this.#proceeding.delete(id);
      }
      const hasWorked = await this.engine.step();
      this.#copies.beginExport(this.engine);
      this.#copies.throwFailure();
      this.#flush();
      if (hasWorked) {
        await clock.turn();
      } else {
        if (!this.#copies.isCopying) Atomics.store(heartbeat, 1, 0);
        await this.#news();
      }
    }
    await this.engine.drain();
    await this.#copies.drained();
  }

  #wake(): void {
    this.#hasNews = true;
    this.#changed.notify();
  }

  /** Resolves at the next message or the end of a copy, or at once when one came meanwhile. */
  async #news(): Promise<void> {
    if (!this.#hasNews) await this.#changed.changed();
  }

  /** Emits pending events with the load, or the load alone when it changed: a cancelled sequence leaves no event. */
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

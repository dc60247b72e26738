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
import type { ResidencyState } from '../protocol/engine_histograms.ts';
import type { InstanceWork } from '../protocol/instance_work.ts';
import type { QueueOrderName } from './queue_order.ts';
import type { SequenceRequest } from './sequence_request.ts';
import type { Grammars } from './token_constraint.ts';

/** Milliseconds between two counts of the work that is left: often enough for heartbeats, and rare compared with steps. */
const WORK_MS = 20;
/** A wait with a limit of time takes a signal; none ends the engine's. */
const NEVER = new AbortController().signal;

/** Device, limits and hooks of an engine loop. */
export interface EngineLoopOptions {
  readonly executable: Executable;
  readonly layout: RecordLayout;
  readonly numBlocks: number;
  readonly maxWaiting: number;
  readonly queueOrder?: QueueOrderName | undefined;
  readonly fairShares?: boolean | undefined;
  readonly chunkTokens: number;
  readonly maxNumSeqs: number;
  readonly stepMs: number;
  readonly tbtTargetMs?: number | undefined;
  readonly firstSteps?: readonly StepTimes[];
  readonly grammars?: Grammars | undefined;
  /** Blocks of a prompt between two saved states; see EngineOptions. */
  readonly stateInterval?: number | undefined;
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
  #emittedState = '';
  #emittedResidency: ResidencyState | undefined;
  readonly #changed = new Condition();
  #hasNews = false;
  /** When the work that is left was last counted, and whether events were emitted since. */
  #workMs = -Infinity;
  #isWorkOld = false;

  constructor(options: EngineLoopOptions) {
    this.#options = options;
    const {
      executable,
      layout,
      numBlocks,
      chunkTokens,
      maxNumSeqs,
      maxWaiting,
      queueOrder,
      stepMs,
      tbtTargetMs,
      clock,
      firstSteps = [],
      grammars,
      stateInterval,
    } = options;
    const { spec } = layout;
    this.#copies = new BlockCopies({
      spec,
      numBlocks: numBlocks + executable.numStateSlots,
      numExportable: executable.numExportable,
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
        spec,
        numBlocks,
        chunkTokens,
        maxNumSeqs,
        maxWaiting,
        queueOrder,
        fairShares: options.fairShares,
        stepMs,
        tbtTargetMs,
        firstSteps,
        grammars,
        stateInterval,
        emit: (event) => {
          this.#onEvent(event);
        },
        exportEarly: (hashes) => this.#copies.exportEarly(hashes),
        keepBlocks: (hashes) => this.#copies.keep(hashes),
        hasDeliveries: (id) => this.#copies.hasDeliveries(id),
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
    if (event.kind === 'stored') this.#copies.stored(event.hash, event.origin);
    if (event.kind === 'removed') this.#copies.removed(event.key);
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
        const state = this.engine.stateOf(message.id);
        const isRunning = state === 'running' && !this.engine.takesBlocks(message.id);
        if (isRunning || (!message.isEarly && state === 'waiting')) {
          // The sequence was preempted while the delivery was on its way. Keeping the slot for it would block sequences that can be
          // admitted. One that runs again takes no more deliveries.
          this.#events.push({ kind: 'consumed', slot: message.slot });
          return;
        }
        this.#copies.deliver(message);
        return;
      }
      case 'arrived':
        this.#arrived.push(message);
        return;
      case 'proceed':
        this.#proceeding.set(message.id, message.admission);
        return;
      case 'cancel':
        this.engine.cancel(message.id);
        return;
      case 'await':
        this.#copies.await(message.keys, message.isOn);
        return;
      case 'grant':
        this.#copies.grant(message.slots, message.record);
        return;
      case 'export':
        // Readers name neither kind nor tenant.
        this.#copies.requested(this.engine.nameOf(message.hash) ?? message.hash);
        return;
      case 'forget':
        this.#events.push({ kind: 'forgotten', ...this.engine.forget(message.tenant) });
        return;
      case 'stop':
        this.#isStopping = true;
        return;
    }
  }

  /** Ranges of which no more blocks come; taken note of when the deliveries before are in. Bounded by the ranges of the calls (P1). */
  readonly #arrived: Extract<ToEngine, { kind: 'arrived' }>[] = [];
  /** Sequences whose fetch ended, with the admission that it was for; they proceed when their last delivery is in. */
  readonly #proceeding = new Map<number, number | undefined>();

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
      this.#endFetches();
      const hasWorked = await this.engine.step();
      this.#copies.beginExport(this.engine);
      this.#copies.throwFailure();
      this.#flush(!hasWorked);
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

  /** Tells the engine of fetches that have ended, whole or of a range, and whose last delivery is in. */
  #endFetches(): void {
    for (const message of this.#arrived.splice(0)) {
      if (this.#copies.hasDeliveries(message.id)) this.#arrived.push(message);
      else this.engine.incoming.rangeEnded(message.id, message);
    }
    for (const [id, admission] of this.#proceeding) {
      if (this.#copies.hasDeliveries(id)) continue;
      this.engine.incoming.ended(id, admission);
      this.#proceeding.delete(id);
    }
  }

  #wake(): void {
    this.#hasNews = true;
    this.#changed.notify();
  }

  /** Resolves at the next message or the end of a copy, or at once when one came meanwhile; else when the engine is to look again. */
  async #news(): Promise<void> {
    const { recheckMs } = this.engine;
    if (this.#hasNews) return;
    if (recheckMs === undefined) await this.#changed.changed();
    else await this.#changed.within(recheckMs, this.#options.clock, NEVER);
  }

  /**
   * Emits pending events with the load, or the load alone when it changed: a cancelled sequence leaves no event. The work that is left is
   * counted now and then, and before the loop waits, so that the last count is that of an idle engine.
   */
  #flush(isIdle = false): void {
    const { pool, load, numSteps, lastStepMs, histograms } = this.engine;
    const states = this.engine.states?.usage;
    const { numKeyed, numAvailable, counters } = pool;
    const state = `${load.numRunning} ${load.numWaiting} ${numAvailable} ${states?.used}`;
    const isChanged = this.#events.length > 0 || state !== this.#emittedState;
    if (!isChanged && !(isIdle && this.#isWorkOld)) return;
    this.#emittedState = state;
    this.#options.emit({
      kind: 'events',
      events: this.#events,
      load: {
        ...load,
        numSteps,
        lastStepMs,
        numKeyed,
        numAvailable,
        counters,
        states,
        iterationTokens: histograms.iterationTokens,
        residency: this.#changedResidency(),
        work: this.#workLeft(isIdle),
      },
    });
    this.#events = [];
  }

  /** Returns how long device blocks stay; undefined when that was emitted already. */
  #changedResidency(): ResidencyState | undefined {
    const { residency } = this.engine.histograms;
    if (residency === this.#emittedResidency) return undefined;
    this.#emittedResidency = residency;
    return residency;
  }

  /** Returns the work that is left; undefined when it was counted within WORK_MS, unless `isIdle`. */
  #workLeft(isIdle: boolean): InstanceWork | undefined {
    const nowMs = this.#options.clock.nowMs();
    this.#isWorkOld = !isIdle && nowMs - this.#workMs < WORK_MS;
    if (this.#isWorkOld) return undefined;
    this.#workMs = nowMs;
    return this.engine.workLeft;
  }
}

/** The order of an engine's sequences: what the order of the queue, and the fair order above it, read of them. */
import { Failure } from '../base/failure.ts';
import type { StepTime } from '../protocol/instance_work.ts';
import type { BlockPool } from './block_pool.ts';
import { expectedMs, NOMINAL_TIME, rowsMs, workLeftOf } from './engine_time.ts';
import { FairOrder, type Sharer } from './fair_order.ts';
import { queueOrderOf, type QueuedSequence, type QueueOrderName } from './queue_order.ts';
import type { Sequence } from './sequence.ts';
import type { SequenceRequest } from './sequence_request.ts';
import type { SequenceRows } from './step_fit.ts';

/** Tenant of all sequences where tenants do not share fairly, and of those without one. */
const NO_TENANT: Sharer = { tenant: '' };

/** Order, sizes and step time by which sequences are counted. */
export interface OrderLimits {
  readonly queueOrder: QueueOrderName;
  /** Rows in a step. */
  readonly chunkTokens: number;
  /** Sequences that wait (P1); more are refused as overload. */
  readonly maxWaiting: number;
  /** Whether tenants share the engine fairly, above the order of the queue; true by default. */
  readonly fairShares?: boolean | undefined;
  /** Returns the step time by which sequences are counted; a row is a millisecond by default. */
  readonly stepTime?: (() => StepTime) | undefined;
  /** Called with the milliseconds that the rows of a sequence take of a step. */
  readonly onCharged?: ((request: SequenceRequest, ms: number) => void) | undefined;
}

/** Rows of a sequence in a step. */
interface ChargedRows extends SequenceRows {
  readonly sequence: Sequence;
}

/** The fair order over the sequences of one engine, above the order of its queue. */
export class SequenceOrder extends FairOrder<Sequence> {
  readonly #limits: OrderLimits;

  /** `pool` has their full blocks; `numHeld`: sequences that share a step now. */
  constructor(pool: BlockPool, limits: OrderLimits, numHeld: () => number) {
    const { queueOrder, chunkTokens, fairShares = true, stepTime = () => NOMINAL_TIME } = limits;
    const order = queueOrderOf<Sequence>(queueOrder, {
      read: readSequence,
      nextBlockOf: ({ chain, hittableBlocks }) =>
        chain.hashes.slice(0, hittableBlocks).find((hash) => pool.find(hash) === undefined)?.digest,
    });
    super(order, {
      sharerOf: fairShares ? ({ request }) => request.sharer ?? NO_TENANT : () => NO_TENANT,
      expectedMs: (sequence) => expectedMs(stepTime(), workLeftOf(sequence), { chunkTokens, numSequences: numHeld() }),
    });
    this.#limits = limits;
  }

  /** Charges tenants for the rows of a step when it is submitted, so that the next one is planned with them. */
  chargeStep(rows: readonly ChargedRows[]): void {
    const { onCharged, stepTime } = this.#limits;
    const time = stepTime?.() ?? NOMINAL_TIME;
    for (const one of rows) {
      const ms = rowsMs(time, one, rows.length);
      this.charge(one.sequence, ms);
      onCharged?.(one.sequence.request, ms);
    }
  }

  /**
   * Returns the sequence that must be refused for a new one, because `waiting` and `numFollowing` outside of it fill the queue and its
   * tenant waits with more. @throws Failure `overloaded` where the queue is full and there is none
   */
  roomFor(newest: Sequence, waiting: readonly Sequence[], numFollowing: number): Sequence | undefined {
    const { maxWaiting } = this.#limits;
    if (waiting.length + numFollowing < maxWaiting) return undefined;
    // One with output goes on where it began.
    const isNew = ({ tokens, request }: Sequence): boolean => tokens.length === request.tokens.length;
    const displaced = this.displaced(waiting.filter(isNew), newest, newest.times.submittedMs);
    if (displaced) return displaced;
    throw new Failure('overloaded', `${maxWaiting} sequences wait already on this instance`);
  }
}

function readSequence(sequence: Sequence): QueuedSequence {
  const { request, times, tokens, rowsHere } = sequence;
  const { kind, expectedTokens = 0, priority = 0 } = request;
  const numOutput = tokens.length - request.request.promptLength;
  const tokensLeft = kind === 'decode' ? Math.max(0, expectedTokens - numOutput) : 0;
  return {
    priority,
    arrivedMs: times.submittedMs,
    promptRows: request.tokens.length,
    rowsLeft: rowsHere + tokensLeft,
    rowsRun: times.numRun,
  };
}

/** How a request goes on when it cannot be placed or an attempt failed: what it waits for, whom it avoids, and what ends it. */
import type { Backoff } from '../../../shared/base/backoff.ts';
import type { Clock } from '../../../shared/base/clock.ts';
import { asFailure, Failure } from '../../../shared/base/failure.ts';
import { pause } from '../../../shared/base/pause.ts';
import type { Random } from '../../../shared/base/random.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import type { MembersView } from '../../../shared/placement/members_view.ts';
import type { Chosen, Outcome } from '../../../shared/placement/conductor.ts';
import { RejectedFailure } from '../conductor/rejected_failure.ts';
import type { Exclusions } from './exclusions.ts';
import type { BusyOrder, Ranked } from './busy_order.ts';
import type { RequestTrace } from '../record/request_trace.ts';

/**
 * Upper bound of consecutive failed attempts without a new token (P1). Attempts at busy instances do not count: they go on until the
 * request's deadline.
 */
export const MAX_IDLE_ATTEMPTS = 64;
/** Milliseconds between two attempts at the same instance; for a busy instance the pause doubles each time, up to MAX_PAUSE_MS. */
export const PAUSE_MS = 100;
/** Longest pause between two attempts at busy instances, in ms. */
export const MAX_PAUSE_MS = 1_000;

/** State that a request keeps from one attempt to the next. */
export interface RetryState {
  readonly trace: RequestTrace;
  /** Instances that failed or were busy, and holders that did not deliver. */
  readonly excluded: Exclusions;
  /** Pauses after attempts that found the instance busy. */
  readonly backoff: Backoff;
  readonly untilMs: number;
  readonly signal: AbortSignal;
  /** The request in the order of those that full instances have refused. */
  readonly ranked: Ranked;
  /** Failure of the last attempt. */
  last: Failure | undefined;
}

/** Clock and randomness, and the order of requests while instances are full. */
interface Host {
  readonly order: BusyOrder;
  readonly clock: Clock;
  readonly random: Random;
}

/**
 * Asks `decide` until the request is placed. Waits, until the request's deadline, for an expected instance, and records the wait.
 * @throws Failure when the request is aborted, rejected or past its deadline; an earlier attempt's failure replaces the last
 * two.
 */
export async function untilPlaced(
  { clock, random, view, order }: Host & { readonly view: MembersView },
  state: RetryState,
  decide: (retryAvoided: boolean) => Promise<Outcome>,
): Promise<Chosen> {
  const { trace, signal } = state;
  let [isWaiting, retryAvoided] = [false, false];
  for (;;) {
    await order.turn(state.ranked, signal);
    if (signal.aborted) throw goneFailure(signal);
    const leftMs = state.untilMs - clock.nowMs();
    if (leftMs <= 0)
      throw (
        state.last ??
        new Failure('deadline_exceeded', 'no decode instance became available before the request timed out')
      );
    const outcome = await decide(retryAvoided);
    if (outcome.kind === 'reject') throw state.last ?? rejected(outcome, trace);
    if (outcome.kind === 'place') return outcome.chosen;
    if (outcome.why === 'all are avoided') {
      // No other instance is left: retry those that failed or were busy, after a pause.
      await pause(clock, random, outcome.forMs, signal);
      retryAvoided = true;
      continue;
    }
    if (!isWaiting) trace.emit({ kind: 'waiting' });
    [isWaiting, retryAvoided] = [true, false];
    await view.changed(Math.min(leftMs, outcome.forMs), signal);
  }
}

/** Returns the failure of a refused request, and shows the refusal in its trace. */
function rejected({ code, message, rejection }: Extract<Outcome, { kind: 'reject' }>, trace: RequestTrace): Failure {
  trace.emit({ kind: 'rejected', rejection });
  const { reason = 'no_instance', retryAfterMs } = rejection ?? {};
  return new RejectedFailure(code, message, { reason, retryAfterMs });
}

/**
 * Handles the failure of an attempt on `instance`, pauses where that helps, and returns when another attempt may help.
 * @throws Failure when none can.
 */
export async function retryAfter(
  error: unknown,
  { clock, random, order, onFailover }: Host & { readonly onFailover: () => void },
  state: RetryState,
  instance: Instance,
): Promise<Failure> {
  const { signal, excluded, backoff } = state;
  if (signal.aborted) throw goneFailure(signal);
  const failure = lostUnlessNamed(asFailure(error));
  state.last = failure;
  // A busy instance is not broken, and a broken connection is not a lost instance: neither counts as a failure of the instance.
  if (failure.code === 'overloaded') {
    excluded.busy(instance);
    order.enter(state.ranked);
    await backoff.pause(signal);
  } else if (failure.code === 'session_broken') await pause(clock, random, PAUSE_MS, signal);
  else if (failure.retry === 'elsewhere') {
    excluded.failed(instance);
    if (failure.code === 'instance_lost') instance.failed(failure.message);
    onFailover();
  } else throw failure;
  return failure;
}

/** Returns the reason why the signal aborted: its own Failure (deadline or shutdown), else that the client has left. */
export function goneFailure(signal: AbortSignal): Failure {
  return signal.reason instanceof Failure ? signal.reason : new Failure('cancelled', 'the client went away');
}

/** Turns `cancelled` into `instance_lost`: a server that is killed cancels its calls, and this router has not cancelled the call. */
function lostUnlessNamed(failure: Failure): Failure {
  const { code, message, told } = failure;
  return code === 'cancelled' ? new Failure('instance_lost', message, { cause: failure, told }) : failure;
}

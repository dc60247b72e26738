/**
 * Refuses requests that would miss their targets, before anything is computed for them.
 *
 *   request ──► policy ──placement, prediction──► wait for others > a fifth of the TTFT target   refuse: wait
 *                                                 waited + TTFT > target                         refuse: ttft
 *                                                 TBT when the first token comes > target        refuse: tbt
 *                                                 waited + time to the last token > target       refuse: deadline
 *
 * The first rule bounds the wait alone, not the time that the prompt itself takes. By the other rules alone short prompts would fill the
 * queues up to the target, and long ones, which have less time to wait, would be refused most of the time.
 *
 * Prefill and decode are judged together and for the time at which the first token comes: sequences that end by then do not count, those
 * that were placed before and will generate by then do. Judged by the load of the moment, prefill and decode instances would be full and
 * empty by turns (Mooncake, section 7.3).
 *
 * A request that misses a target by its own work alone, on an idle cluster too, is served late where the wait is short, unless
 * `refusesHopeless`: waiting would not help it, and refusing it would never serve it.
 */
import { stepMs } from '../protocol/instance_work.ts';
import type { ClusterSnapshot, Decision, Policy, Prediction, Question, Rejection } from './policy.ts';

/** Share of the TTFT target that a request may wait for others. */
const WAIT_SHARE = 1 / 5;
/** Shortest and longest time after which a refused client is asked to try again, in ms. */
const MIN_RETRY_MS = 1_000;
const MAX_RETRY_MS = 60_000;

/** A rule that refuses, by how many milliseconds it is missed, and whether it would be missed on an idle cluster too. */
interface Missed {
  readonly reason: Exclude<Rejection['reason'], 'hopeless'>;
  readonly byMs: number;
  readonly isHopeless: boolean;
}

/** Settings of an {@link OverloadPolicy}. */
export interface OverloadSettings {
  /** Whether a request is refused that misses a target by its own work alone. */
  readonly refusesHopeless: boolean;
}

/** Wraps a policy and refuses a request whose chosen placement is predicted to miss its targets. */
export class OverloadPolicy implements Policy {
  readonly #policy: Policy;
  readonly #settings: OverloadSettings;

  constructor(policy: Policy, settings: OverloadSettings) {
    this.#policy = policy;
    this.#settings = settings;
  }

  decide(question: Question, snapshot: ClusterSnapshot): Decision {
    const decision = this.#policy.decide(question, snapshot);
    if (decision.kind !== 'place' || !decision.prediction) return decision;
    const { prediction, placement } = decision;
    const missed = missedOf(question, prediction, leastGapMs(question, snapshot, placement.decode));
    const refused = missed.find(({ isHopeless }) => !isHopeless);
    if (refused) return rejected(refused, question, prediction, snapshot);
    const [hopeless] = missed;
    if (!hopeless) return decision;
    // A missed deadline is always refused: the request is aborted then, so a late answer is never sent.
    const isUseless = this.#settings.refusesHopeless || missed.some(({ reason }) => reason === 'deadline');
    return isUseless ? rejected(hopeless, question, prediction, snapshot) : { ...decision, isLate: true };
  }
}

/** Whether a placement with this prediction would be refused. */
export function isRejected(question: Question, prediction: Prediction, gapMs: number): boolean {
  return missedOf(question, prediction, gapMs).some(({ isHopeless }) => !isHopeless);
}

/** Returns the rules that a placement breaks; `gapMs` is the time between two tokens when it generates alone. */
function missedOf(
  { targets, waitedMs, isBegun }: Question,
  { ttftMs, waitMs, tbtMs, totalMs }: Prediction,
  gapMs: number,
): readonly Missed[] {
  if (!targets || isBegun) return [];
  const { ttftMs: ttft = Infinity, tbtMs: tbt = Infinity, totalMs: deadline = Infinity } = targets;
  const rules: readonly Missed[] = [
    { reason: 'wait', byMs: waitMs - WAIT_SHARE * ttft, isHopeless: false },
    { reason: 'ttft', byMs: waitedMs + ttftMs - ttft, isHopeless: ttftMs - waitMs > ttft },
    { reason: 'tbt', byMs: tbtMs - tbt, isHopeless: gapMs > tbt },
    { reason: 'deadline', byMs: waitedMs + totalMs - deadline, isHopeless: totalMs - waitMs > deadline },
  ];
  return rules.filter(({ byMs }) => byMs > 0);
}

/** Returns the milliseconds between two tokens of the request alone on an instance; 0 where it says no coefficients. */
function leastGapMs({ numTokens }: Question, { decode, prefill }: ClusterSnapshot, id: string): number {
  const work = [...decode, ...prefill].find((one) => one.id === id)?.work;
  return work ? stepMs(work.step, { rows: 1, pairs: 0, contextTokens: numTokens, sequences: 1 }) : 0;
}

function rejected(
  { reason, byMs, isHopeless }: Missed,
  question: Question,
  prediction: Prediction,
  { random }: ClusterSnapshot,
): Decision {
  const message = messageOf(reason, question, prediction);
  if (isHopeless)
    return {
      kind: 'reject',
      code: 'deadline_exceeded',
      message: `${message}, by its own work alone: raise the target`,
      rejection: { reason: 'hopeless', prediction, retryAfterMs: undefined },
    };
  // Clients that are refused together should not return together.
  const retryAfterMs = Math.min(MAX_RETRY_MS, Math.max(MIN_RETRY_MS, byMs) * (1 + random[1]));
  return {
    kind: 'reject',
    code: 'rate_limit_exceeded',
    message: `${message}: try again later`,
    rejection: { reason, prediction, retryAfterMs },
  };
}

function messageOf(
  reason: Missed['reason'],
  { targets, waitedMs }: Question,
  { ttftMs, waitMs, tbtMs, totalMs }: Prediction,
): string {
  const ms = (value: number | undefined): string => `${Math.round(value ?? 0)} ms`;
  switch (reason) {
    case 'wait':
      return `the request would wait ${ms(waitMs)} for others, more than a fifth of its TTFT target of ${ms(targets?.ttftMs)}`;
    case 'ttft':
      return `a first token is predicted after ${ms(waitedMs + ttftMs)}, the TTFT target is ${ms(targets?.ttftMs)}`;
    case 'tbt':
      return `a token is predicted every ${ms(tbtMs)}, the TBT target is ${ms(targets?.tbtMs)}`;
    case 'deadline':
      return `the answer is predicted to end after ${ms(waitedMs + totalMs)}, the deadline is after ${ms(targets?.totalMs)}`;
  }
}

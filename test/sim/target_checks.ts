/**
 * Targets of simulated clients, and checks of what becomes of them: a request whose placement is predicted to miss a target is refused
 * before anything is computed, once and for a rule that is missed, and no other request is refused.
 */
import { stepMs } from '../../shared/protocol/instance_work.ts';
import type { Random } from '../../shared/base/random.ts';
import { Conductor } from '../../shared/placement/conductor.ts';
import { type LoggedDecision } from '../../shared/placement/decision_log.ts';
import type { ClusterSnapshot, Prediction, Question } from '../../shared/placement/policy.ts';
import type { TargetTexts } from '../../services/router/api/exchange.ts';
import type { Answer } from './simulated_http.ts';

/** Messages of refusals for targets, in an answer or as the last event of a stream. */
const REFUSALS =
  /would wait \d+ ms for others|first token is predicted|a token is predicted every|answer is predicted to end|no instance meets the targets/;

/** Draws the targets of a request in steps of `stepMs`: tight ones, loose ones, and often none. */
export function drawTargets(r: Random, stepMs: number): TargetTexts {
  const drawn = (steps: readonly [number, ...number[]], share: number): string | undefined => {
    const ms = Math.ceil(r.pick(steps) * stepMs);
    return r.chance(1, share) ? String(ms) : undefined;
  };
  return { ttftMs: drawn([2, 8, 40, 400], 2), tbtMs: drawn([1, 2, 6], 3), totalMs: drawn([20, 100, 400, 4_000], 3) };
}

/** Whether an answer, or the end of a stream, is a refusal for targets. A refused client is told when to come again, unless that is no use. */
export function isRejection({ status, headers, text }: Answer): boolean {
  if (!REFUSALS.test(text) || !text.includes('{"error":{')) return false;
  if (status === 200) return true;
  return status === 504
    ? text.includes('by its own work alone')
    : status === 429 && Number(headers['retry-after']) >= 1;
}

/** Requests that were refused for their targets, by the conductor that did. */
const rejected = new WeakMap<Conductor, Set<string>>();

let isWatching = false;
let report: (fault: string) => void = () => undefined;

/** Checks every decision that conductors of this process take from now on; `onFault` of the last call is told of faults. */
export function watchTargets(onFault: (fault: string) => void): void {
  report = onFault;
  if (isWatching) return;
  isWatching = true;
  const { prototype } = Conductor;
  const decide = Reflect.get<Conductor, 'decide'>(prototype, 'decide');
  prototype.decide = function (asked) {
    let own = rejected.get(this);
    if (!own) rejected.set(this, (own = new Set()));
    if (own.has(asked.requestId)) report(`request ${asked.requestId} was refused for its targets, and is placed again`);
    const outcome = decide.call(this, asked);
    const logged = this.log.at(-1);
    const fault = logged && faultOfTargets(logged);
    if (fault !== undefined) report(`targets ${JSON.stringify(logged?.question)}: ${fault}`);
    if (outcome.kind === 'reject' && outcome.rejection) own.add(asked.requestId);
    return outcome;
  };
}

/** Returns what is wrong with a decision, by the rules of services/router/PLACEMENT.md. */
function faultOfTargets({ question, snapshot, decision }: LoggedDecision): string | undefined {
  if (decision.kind === 'wait') return undefined;
  const { rejection, prediction } =
    decision.kind === 'reject'
      ? { rejection: decision.rejection, prediction: decision.rejection?.prediction }
      : { rejection: undefined, prediction: decision.prediction };
  if (!prediction) return undefined;
  if (!question.targets || question.isBegun)
    return rejection ? `refused by ${rejection.reason}, though it has no targets or has begun` : undefined;
  const missed = missedRules(question, prediction);
  if (decision.kind === 'place') {
    const worst = refusingRule(question, snapshot, decision.placement.decode, prediction);
    if (worst !== undefined) return `placed, though by ${worst} it is to be refused: ${JSON.stringify(prediction)}`;
    const isLate = decision.isLate ?? false;
    return isLate === missed.length > 0 ? undefined : `it is ${isLate ? '' : 'not '}called late`;
  }
  if (!rejection) return undefined;
  const { reason, retryAfterMs } = rejection;
  const isTrue = reason === 'hopeless' ? missed.includes('deadline') : missed.includes(reason);
  if (!isTrue) return `refused by ${reason}, which it does not miss: ${JSON.stringify(prediction)}`;
  const isToldWhen =
    reason === 'hopeless' || (retryAfterMs !== undefined && retryAfterMs >= 1_000 && retryAfterMs <= 60_000);
  return isToldWhen ? undefined : `refused with ${retryAfterMs} ms to wait`;
}

/** Returns the rule by which a placement on the decode instance `id` is to be refused; undefined when it may be placed. */
export function refusingRule(
  question: Question,
  { decode, prefill }: ClusterSnapshot,
  id: string,
  prediction: Prediction,
): string | undefined {
  if (question.isBegun) return undefined;
  const work = [...decode, ...prefill].find((one) => one.id === id)?.work;
  const { numTokens } = question;
  const leastGapMs = work ? stepMs(work.step, { rows: 1, pairs: 0, contextTokens: numTokens, sequences: 1 }) : 0;
  // Waiting would not help: without the wait for others, on an idle cluster, the target is missed too.
  const idle = missedRules({ ...question, waitedMs: 0 }, { ...withoutWait(prediction), tbtMs: leastGapMs });
  return missedRules(question, prediction).find((rule) => !idle.includes(rule) || rule === 'deadline');
}

function withoutWait(prediction: Prediction): Prediction {
  const { ttftMs, totalMs, waitMs } = prediction;
  return { ...prediction, waitMs: 0, ttftMs: ttftMs - waitMs, totalMs: totalMs - waitMs };
}

/** Returns the names of the rules that a placement with this prediction breaks. */
function missedRules({ targets, waitedMs }: Question, { waitMs, ttftMs, tbtMs, totalMs }: Prediction): string[] {
  const { ttftMs: ttft = Infinity, tbtMs: tbt = Infinity, totalMs: deadline = Infinity } = targets ?? {};
  return [
    ...(waitMs > ttft / 5 ? ['wait'] : []),
    ...(waitedMs + ttftMs > ttft ? ['ttft'] : []),
    ...(tbtMs > tbt ? ['tbt'] : []),
    ...(waitedMs + totalMs > deadline ? ['deadline'] : []),
  ];
}

/**
 * Mooncake's Algorithm 1 (FAST'25, section 4.1), over what is held anywhere as its pool of KV:
 *
 *   for each prefill instance   with its own prefix, or, when the pool's is more than BALANCING_THRESHOLD times as long, with the
 *                               pool's: T_transfer + T_queue + T_prefill; the lowest is the TTFT
 *   decode                      lowest predicted TBT
 *   TTFT or TBT over target     reject
 *
 * T_prefill comes from the coefficients of the instance's steps in place of the paper's offline regression, T_queue is the sum of that
 * over the prompts that are to be computed there, T_transfer comes from the measured links. A decode instance alone computes the prompt
 * in clusters without prefill instances, which the paper has not: the algorithm then runs over them. Where the pool holds all full
 * blocks, they go straight to the decode instance.
 */
import { pairsOf, stepMs } from '../../protocol/instance_work.ts';
import { coveredTo, fetchPlan } from '../fetch_plan.ts';
import { linkSpeed } from '../links.ts';
import { rowsMs } from '../unloaded_time.ts';
import { inTurn, lowest } from './lowest.ts';
import { needingWork, type KnownInstance, type Rule, type RuleInput } from './rule_policy.ts';

/**
 * The `kvcache_balancing_threshold`, which the paper tunes by hand and does not publish. With 1 every longer prefix would be fetched,
 * were it by a block; with much more, hot prefixes would stay where they are. At 1.5 an instance fetches when it would get half as many
 * blocks again as it has.
 */
const BALANCING_THRESHOLD = 1.5;

/** Parts of the predicted time to the first token, in ms, and the blocks that need not be computed for it. */
interface Estimate {
  readonly one: KnownInstance;
  readonly fetchesPrefix: boolean;
  readonly prefix: number;
  readonly parts: Readonly<Record<'transfer' | 'queue' | 'prefill', number>>;
  readonly ttftMs: number;
}

/** Returns the rule of Algorithm 1 with a balancing threshold; `refuses`: whether it refuses requests that would miss a target. */
export function mooncakeRule(refuses: boolean, threshold = BALANCING_THRESHOLD): Rule {
  return needingWork(({ decode, prefill }, input) => {
    const { question, snapshot } = input;
    const { tieBreak } = snapshot;
    const estimates = (prefill.length > 0 ? prefill : decode).map((one) => estimateOf(one, threshold, input));
    const { one, fetchesPrefix, prefix, parts, ttftMs } = lowest(
      estimates,
      (estimate) => [estimate.ttftMs],
      inTurn(tieBreak),
    );
    const chosen = prefill.length > 0 ? lowest(decode, (each) => [tbtOf(each, input)], inTurn(tieBreak)) : one;
    const tbtMs = tbtOf(chosen, input);
    const { ttftMs: ttftTarget = Infinity, tbtMs: tbtTarget = Infinity } = question.targets ?? {};
    const isTtftMissed = question.waitedMs + ttftMs > ttftTarget;
    const prediction = {
      ttftMs,
      waitMs: parts.queue,
      tbtMs,
      totalMs: ttftMs + tbtMs * Math.max(0, question.outputTokens - 1),
      cachedTokens: prefix * snapshot.blockSize,
    };
    if (refuses && !question.isBegun && (isTtftMissed || tbtMs > tbtTarget)) {
      const message = `no instance meets the targets: a first token is predicted in ${Math.round(ttftMs)} ms, further ones every ${Math.round(tbtMs)} ms; try later`;
      const rejection = {
        reason: isTtftMissed ? ('ttft' as const) : ('tbt' as const),
        prediction,
        retryAfterMs: 1_000,
      };
      return { kind: 'reject', code: 'rate_limit_exceeded', message, rejection };
    }
    return {
      decode: chosen,
      prefill: prefill.length > 0 ? one : undefined,
      fetchesPrefix,
      parts,
      reason: `prefix of ${prefix} blocks${fetchesPrefix ? ' out of the pool' : ''}, first token in ${Math.round(ttftMs)} ms, then one every ${Math.round(tbtMs)} ms`,
      prediction,
    };
  });
}

function estimateOf(one: KnownInstance, threshold: number, { question, snapshot, matches }: RuleInput): Estimate {
  const { ranges, blockSize } = snapshot;
  const own = matches.get(one.id) ?? 0;
  const pooled = coveredTo(ranges, own);
  // An instance without a prefix fetches whatever is held: the ratio of the paper is infinite there.
  const fetchesPrefix = pooled > threshold * own;
  const prefix = fetchesPrefix ? pooled : own;
  const start = prefix * blockSize;
  const { prompts } = one.work;
  const numLeft = question.numTokens - start;
  const parts = {
    transfer: fetchesPrefix ? transferMs(one, own, snapshot) : 0,
    queue: rowsMs(one.work, prompts.tokens, prompts.pairs, prompts.sequences),
    prefill: rowsMs(one.work, numLeft, pairsOf(start, numLeft), 1),
  };
  return { one, fetchesPrefix, prefix, parts, ttftMs: parts.transfer + parts.queue + parts.prefill };
}

/** Returns the milliseconds in which the instance gets the held blocks after its `own` ones, from one holder after the other. */
function transferMs({ id, work }: KnownInstance, own: number, snapshot: RuleInput['snapshot']): number {
  return fetchPlan(snapshot.ranges, own).reduce((sum, { address, start, end }) => {
    const link = linkSpeed(address, id, snapshot);
    return sum + link.latencyMs + ((end - start) * work.blockBytes) / link.bytesPerMs;
  }, 0);
}

/** Returns the milliseconds of a step with this request and all sequences that generate there by then. */
function tbtOf({ work }: KnownInstance, { question }: RuleInput): number {
  const { step, generating, coming } = work;
  const sequences = generating.sequences + coming.sequences + 1;
  const contextTokens = generating.contextTokens + coming.contextTokens + question.numTokens;
  return stepMs(step, { rows: sequences, pairs: 0, contextTokens, sequences });
}

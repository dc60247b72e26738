/**
 * Number of instances that the present requests need, by role, from their work and from the step times that instances have fitted.
 *
 *   prompts   milliseconds of their rows a second ÷ 1,000                  ─► instances that only compute prompts
 *   tokens    tokens a second ÷ those of an instance at its pacing target  ─► instances that only generate
 *   both      the sum                                                      ─► instances that do any part
 *
 * Each is divided by USED, the part of an instance that is planned for, and rounded up. At the pacing target T an instance generates for as many
 * sequences as a step of T milliseconds has: (T − constant) ÷ (row + sequence + context × mean context), no more than it may hold, and
 * so many tokens every T milliseconds. The times to first tokens are no part of it but through the room that USED leaves.
 */
import { pairsOf, type InstanceWork } from '../../../shared/protocol/instance_work.ts';

/** Time in which a request loses all but 1/e of its weight, and time of observation before which nothing is recommended. */
const MEMORY_MS = 300_000;
const LEAST_MS = 60_000;
/** Part of an instance that is planned for; the rest is room for requests that come together. */
const USED = 0.8;

/** Work of one request that has ended. */
export interface EndedRequest {
  readonly promptTokens: number;
  /** Tokens of the prompt that were not computed for it. */
  readonly cachedTokens: number;
  readonly outputTokens: number;
}

/** Work of requests per millisecond. */
export interface WorkRates {
  readonly prompts: number;
  readonly rows: number;
  readonly pairs: number;
  readonly tokens: number;
  /** Tokens of KV that the tokens of outputs read. */
  readonly contextTokens: number;
}

/** Work of the requests of the last minutes. */
export class RequestDemand {
  readonly #sums = { prompts: 0, rows: 0, pairs: 0, tokens: 0, contextTokens: 0 };
  #firstMs: number | undefined;
  #lastMs = 0;

  /** Adds a request that ended now. */
  ended({ promptTokens, cachedTokens, outputTokens }: EndedRequest, nowMs: number): void {
    this.#decay(nowMs);
    const sums = this.#sums;
    const rows = Math.max(0, promptTokens - cachedTokens);
    sums.prompts += 1;
    sums.rows += rows;
    sums.pairs += pairsOf(promptTokens - rows, rows);
    sums.tokens += outputTokens;
    sums.contextTokens += outputTokens * (promptTokens + outputTokens / 2);
  }

  /** Returns the work per millisecond; undefined until requests were observed for a minute. */
  rates(nowMs: number): WorkRates | undefined {
    if (this.#firstMs === undefined || nowMs - this.#firstMs < LEAST_MS) return undefined;
    this.#decay(nowMs);
    // The weight of all times since the first request.
    const ms = MEMORY_MS * (1 - Math.exp((this.#firstMs - nowMs) / MEMORY_MS));
    const { prompts, rows, pairs, tokens, contextTokens } = this.#sums;
    return {
      prompts: prompts / ms,
      rows: rows / ms,
      pairs: pairs / ms,
      tokens: tokens / ms,
      contextTokens: contextTokens / ms,
    };
  }

  #decay(nowMs: number): void {
    this.#firstMs ??= nowMs;
    const keep = Math.exp(Math.min(0, this.#lastMs - nowMs) / MEMORY_MS);
    this.#lastMs = nowMs;
    for (const name of Object.keys(this.#sums) as (keyof WorkRates)[]) this.#sums[name] *= keep;
  }
}

/** Instances that are needed, by role. */
export interface RecommendedInstances {
  readonly prefill: number;
  readonly decode: number;
  /** Instances that do any part, in place of the others. */
  readonly both: number;
}

/**
 * Returns the instances that work at these rates needs, at least one of each role, by the mean of what `works` say of an instance.
 * Undefined when none says how long its steps take and may take, or when a step with one sequence takes longer than it may.
 */
export function recommendedInstances(
  rates: WorkRates,
  works: readonly InstanceWork[],
  blockTokens: number,
): RecommendedInstances | undefined {
  const known = works.filter(({ pacedStepMs, step }) => pacedStepMs > 0 && step.constantMs + step.rowMs > 0);
  if (known.length === 0) return undefined;
  const mean = (of: (work: InstanceWork) => number): number =>
    known.reduce((sum, work) => sum + of(work), 0) / known.length;
  const prompts = mean((work) => promptLoad(rates, work));
  const tokens = mean((work) => tokenLoad(rates, work, blockTokens));
  if (!Number.isFinite(prompts + tokens)) return undefined;
  const needed = (load: number): number => Math.max(1, Math.ceil(load / USED));
  return { prefill: needed(prompts), decode: needed(tokens), both: needed(prompts + tokens) };
}

/** Returns how many instances the prompts keep busy: milliseconds of steps with full chunks, per millisecond. */
function promptLoad({ prompts, rows, pairs }: WorkRates, { step, chunkTokens }: InstanceWork): number {
  const numSteps = rows / Math.max(1, chunkTokens);
  return step.constantMs * numSteps + step.rowMs * rows + step.pairMs * pairs + step.sequenceMs * prompts;
}

/** Returns how many instances the tokens of outputs keep busy at the pacing target. */
function tokenLoad(
  { tokens, contextTokens }: WorkRates,
  { step, pacedStepMs, maxNumSeqs, numBlocks }: InstanceWork,
  blockTokens: number,
): number {
  if (tokens === 0) return 0;
  const context = contextTokens / tokens;
  const sequenceMs = step.rowMs + step.sequenceMs + step.contextMs * context;
  const inTime = (pacedStepMs - step.constantMs) / sequenceMs;
  const inBlocks = numBlocks / Math.ceil(Math.max(1, context) / blockTokens);
  const numSequences = Math.min(inTime, maxNumSeqs, inBlocks);
  if (numSequences < 1) return Infinity;
  const stepMs = step.constantMs + sequenceMs * numSequences;
  return (tokens * stepMs) / numSequences;
}

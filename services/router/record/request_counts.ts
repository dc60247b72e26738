/**
 * Tokens of one prompt, counted as its attempts report them: where their KV came from, and how many have come out. The usage of an answer is made
 * from these counts; the request log shows them.
 */
import { Condition } from '../../../shared/base/condition.ts';
import type { Report } from '../../../shared/protocol/messages.ts';
import type { Explanation } from '../../../shared/placement/policy.ts';
import type { LostTokens, PromptTokenCounts } from '../../../shared/protocol/request_detail.ts';
import type { TokenSources } from '../../../shared/protocol/router_api.ts';

/** Upper bound of the attempts that are kept per request (P1); further ones are not listed. */
const MAX_ATTEMPTS = 64;
/** Upper bound of the attempts per request whose placement is explained (P1). */
const MAX_EXPLAINED = 4;

/** One prefill of an attempt. */
export interface PrefillEntry {
  readonly name: string;
  readyTokens: number;
  computedTokens: number;
  /** Tokens that the prefill has to compute according to the prefix index; counted until the instance reports what it computes. */
  readonly expectedTokens: number;
  outcome: string;
  report: Report | undefined;
}

/** Log entry of one attempt on a decode instance. */
export interface AttemptEntry {
  readonly decode: string;
  readonly reason: string;
  /** Prices and alternatives of the placement; undefined where no policy chose it, and after MAX_EXPLAINED attempts. */
  explanation: Explanation | undefined;
  readonly prefills: PrefillEntry[];
  outcome: string;
  report: Report | undefined;
}

/** Where a prompt departs from the earlier sequence that it continues, as {@link RequestCounts.lost} is counted from it. */
export interface RewrittenText {
  /** Index of the first token that differs. */
  readonly start: number;
  /** Tokens of the full blocks that were the same before `start`. */
  readonly sameTokens: number;
  /** Tokens that would have been cache hits if the text had not been rewritten, those before `start` included. */
  readonly reusableTokens: number;
}

/** Counts before any report: all zero. */
export const NO_TOKENS: PromptTokenCounts = {
  cached: 0,
  fetched: 0,
  computed: 0,
  computed_by_prefill: 0,
  computed_by_decode: 0,
};

/** Sources before any report: no token has one. */
export const NO_SOURCES: TokenSources = {
  ...{ device: 0, dram: 0, instance: 0, store_dram: 0, store_disk: 0, handoff: 0, computed: 0 },
};

/** Token counts of one request over all its attempts: output tokens, and where the prompt's KV came from. */
export class RequestCounts {
  readonly promptTokens: number;
  outputTokens = 0;
  /** Output tokens that belong to the reasoning; undefined when the output is not parsed for it. */
  reasoningTokens: number | undefined;
  /** Where the client has rewritten earlier text; undefined where the prompt continues nothing, or text as it was. */
  rewritten: RewrittenText | undefined;
  readonly attempts: AttemptEntry[] = [];
  /** Notified when a prefill has ended. */
  readonly #changed = new Condition();

  constructor(promptTokens: number) {
    this.promptTokens = promptTokens;
  }

  /** Adds and returns the entry of a new attempt. */
  begin(decode: string, reason: string, explained?: Explanation): AttemptEntry {
    const explanation = this.attempts.length < MAX_EXPLAINED ? explained : undefined;
    const attempt: AttemptEntry = { decode, reason, explanation, prefills: [], outcome: 'running', report: undefined };
    if (this.attempts.length < MAX_ATTEMPTS) this.attempts.push(attempt);
    return attempt;
  }

  get isPrefilling(): boolean {
    return this.attempts.some(({ prefills }) => prefills.some(({ outcome }) => outcome === 'running'));
  }

  /** Records the outcome of a prefill. */
  prefilled(entry: PrefillEntry, outcome: string): void {
    entry.outcome = outcome;
    this.#changed.notify();
  }

  /** Resolves when no prefill runs, or when `signal` aborts. */
  async prefillsEnded(signal: AbortSignal): Promise<void> {
    await this.#changed.until(() => !this.isPrefilling, signal);
  }

  /**
   * Prompt tokens that were computed, and would have been cache hits if the client had not rewritten text before them; with the index
   * of the first token that differs. Empty when there are none.
   */
  get lost(): LostTokens {
    if (!this.rewritten) return {};
    const { start, sameTokens, reusableTokens } = this.rewritten;
    const numCached = this.promptTokens - this.tokens.computed;
    const numLost = reusableTokens - Math.max(sameTokens, numCached);
    return numLost > 0 ? { lost_tokens: numLost, rewritten_from: start } : {};
  }

  /**
   * Tokens of the prompt by where the instance that generates found their KV. A token that any instance computed for this request counts
   * as computed, or as handed over by the prefill that computed it; one that a prefill only passed on is another instance's. The tokens
   * that were found are known with the first report of the decode instance.
   */
  get sources(): TokenSources {
    const { computed, computed_by_decode: byDecode } = this.tokens;
    const counted = { handoff: computed - byDecode, computed: byDecode };
    const report = this.attempts.find((attempt) => attempt.report)?.report;
    if (!report) return { ...NO_SOURCES, ...counted };
    const found = foundIn(report);
    let left = this.promptTokens - computed;
    const take = (numTokens: number): number => {
      const taken = Math.min(numTokens, left);
      left -= taken;
      return taken;
    };
    const own = { device: take(found.device), dram: take(found.dram) };
    const stores = { store_dram: take(found.storeDram), store_disk: take(found.storeDisk) };
    return { ...own, instance: left, ...stores, ...counted };
  }

  /** Tokens by where their KV came from. Read some ten times for each request, so without arrays in between. */
  get tokens(): PromptTokenCounts {
    let fetched = 0;
    let byPrefill = 0;
    let first: Report | undefined;
    for (const attempt of this.attempts) {
      first ??= attempt.report;
      fetched += attempt.report?.fetchedTokens ?? 0;
      for (const prefill of attempt.prefills) byPrefill += computedByPrefill(attempt, prefill);
    }
    const byDecode = Math.min(this.promptTokens, first?.computedTokens ?? 0);
    const computed = Math.min(this.promptTokens, byDecode + byPrefill);
    return {
      // The number of cached tokens is unknown until the decode instance sends its first report.
      cached: first ? this.promptTokens - computed : 0,
      ...{ fetched, computed, computed_by_prefill: byPrefill, computed_by_decode: byDecode },
    };
  }
}

/**
 * Returns the tokens that a prefill of an attempt has computed: for a failed one what it last reported. One that still runs after the first
 * token has delivered all its blocks, whatever it has reported.
 */
export function computedByPrefill(
  { report }: Pick<AttemptEntry, 'report'>,
  { outcome, computedTokens, expectedTokens }: PrefillEntry,
): number {
  if (outcome !== 'running' || !report) return computedTokens;
  return Math.max(computedTokens, Math.min(expectedTokens, report.sources?.handoff ?? expectedTokens));
}

/** Tokens that an instance found, as its report has them; one of an earlier version reports only how many it fetched. */
type FoundTokens = NonNullable<Report['sources']>;

function foundIn({ sources, cachedTokens, fetchedTokens }: Report): FoundTokens {
  const fetched = { dram: 0, instance: fetchedTokens, storeDram: 0, storeDisk: 0, handoff: 0 };
  return sources ?? { device: cachedTokens, ...fetched };
}

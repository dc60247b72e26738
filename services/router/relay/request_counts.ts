/**
 * Tokens of one prompt, counted as its attempts report them: where their KV came from, and how many have come out. The usage of an answer is made
 * from these counts; the request log shows them.
 */
import { Condition } from '../../../shared/base/condition.ts';
import type { Clock } from '../../../shared/base/clock.ts';
import type { Report } from '../../../shared/protocol/messages.ts';

/** Attempts kept of a request (P1): a request gives up long before. */
const MAX_ATTEMPTS = 64;

/** One prefill of an attempt. */
export interface PrefillEntry {
  readonly name: string;
  readyTokens: number;
  computedTokens: number;
  /** Tokens that it has to compute by the prefix index; they count until the instance has said what it computes. */
  readonly expectedTokens: number;
  outcome: string;
  report: Report | undefined;
}

/** One decode instance's turn at the request. */
export interface AttemptEntry {
  readonly decode: string;
  readonly reason: string;
  readonly prefills: PrefillEntry[];
  outcome: string;
  report: Report | undefined;
}

/** Tokens of the prompt by where their KV came from, over all attempts. */
interface PromptTokenCounts {
  readonly cached: number;
  readonly fetched: number;
  readonly computed: number;
  readonly computed_by_prefill: number;
  readonly computed_by_decode: number;
}

/** Counts before any report: all zero. */
export const NO_TOKENS: PromptTokenCounts = {
  cached: 0,
  fetched: 0,
  computed: 0,
  computed_by_prefill: 0,
  computed_by_decode: 0,
};

/** Token counts of one request over all its attempts: output tokens, and where the prompt's KV came from. */
export class RequestCounts {
  readonly promptTokens: number;
  outputTokens = 0;
  readonly attempts: AttemptEntry[] = [];
  /** A prefill has ended. */
  readonly #changed = new Condition();

  constructor(promptTokens: number) {
    this.promptTokens = promptTokens;
  }

  /** An attempt begins. */
  begin(decode: string, reason: string): AttemptEntry {
    const attempt: AttemptEntry = { decode, reason, prefills: [], outcome: 'running', report: undefined };
    if (this.attempts.length < MAX_ATTEMPTS) this.attempts.push(attempt);
    return attempt;
  }

  get isPrefilling(): boolean {
    return this.attempts.some(({ prefills }) => prefills.some(({ outcome }) => outcome === 'running'));
  }

  /** A prefill of an attempt has ended. */
  prefilled(entry: PrefillEntry, outcome: string): void {
    entry.outcome = outcome;
    this.#changed.notify();
  }

  /** Resolves when no prefill runs, after `ms`, or when `signal` aborts. */
  async prefillsEnded(ms: number, clock: Clock, signal: AbortSignal): Promise<void> {
    const untilMs = clock.nowMs() + ms;
    for (let leftMs = ms; leftMs > 0 && this.isPrefilling && !signal.aborted; leftMs = untilMs - clock.nowMs())
      await this.#changed.within(leftMs, clock, signal);
  }

  /** The last token has come. */
  get #hasEnded(): boolean {
    return this.attempts.at(-1)?.outcome === 'finished';
  }

  get tokens(): PromptTokenCounts {
    const reports = this.attempts.flatMap(({ report }) => report ?? []);
    const prefills = this.attempts.flatMap((attempt) => attempt.prefills);
    const byDecode = Math.min(this.promptTokens, reports[0]?.computedTokens ?? 0);
    // A prefill that failed has computed what it said last; of one that still runs the request has had all by now.
    const byPrefill = sum(
      prefills.map(({ outcome, computedTokens, expectedTokens }) =>
        outcome === 'running' && this.#hasEnded ? Math.max(computedTokens, expectedTokens) : computedTokens,
      ),
    );
    const computed = Math.min(this.promptTokens, byDecode + byPrefill);
    return {
      // The number of cached tokens is unknown until the decode instance sends its first report.
      cached: reports.length === 0 ? 0 : this.promptTokens - computed,
      fetched: sum(reports.map(({ fetchedTokens }) => fetchedTokens)),
      computed,
      computed_by_prefill: byPrefill,
      computed_by_decode: byDecode,
    };
  }
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

/**
 * Tokens of one prompt, counted as its attempts report them: where their KV came from, and how many have come out. The usage of an answer is made
 * from these counts; the request log shows them.
 */
import type { Report } from '../../../shared/protocol/messages.ts';
import type { Explanation } from '../../../shared/placement/policy.ts';
import type { LostTokens, PromptTokenCounts } from '../../../shared/protocol/request_detail.ts';
import type { TokenSources } from '../../../shared/protocol/router_api.ts';
import type { PlacedEvent, PrefillEntry, PrefillEvent, RequestEvent, RewrittenText } from './request_events.ts';

/** Upper bound of the attempts that are kept per request (P1); further ones are not listed. */
const MAX_ATTEMPTS = 64;
/** Upper bound of the attempts per request whose placement is explained (P1). */
const MAX_EXPLAINED = 4;
/** Prefills per attempt (P1). */
const MAX_PREFILL_ENTRIES = 16;

/** One attempt on a decode instance. */
export interface AttemptEntry extends Pick<PlacedEvent, 'decode' | 'reason'> {
  /** Prices and alternatives of the placement; undefined where no policy chose it, and after MAX_EXPLAINED attempts. */
  readonly explanation: Explanation | undefined;
  readonly prefills: readonly PrefillEntry[];
  readonly outcome: string;
  readonly report: Report | undefined;
}

/** Sources before any report: no token has one. */
const NO_SOURCES: TokenSources = {
  device: 0,
  dram: 0,
  instance: 0,
  store_dram: 0,
  store_disk: 0,
  handoff: 0,
  computed: 0,
};

/** Counts of a request, as plain values. */
export interface CountsState {
  /** Tokens of the prompt; 0 for a further sample, which reads none: its prompt is counted with the first. */
  promptTokens: number;
  outputTokens: number;
  reasoningTokens: number | undefined;
  rewritten: RewrittenText | undefined;
  readonly attempts: AttemptEntry[];
}

/** Returns the counts of a request of which nothing is known. */
export function noCounts(): CountsState {
  return { promptTokens: 0, outputTokens: 0, reasoningTokens: undefined, rewritten: undefined, attempts: [] };
}

/** Counts as all see them but the record of the request. */
export type RequestCounts = Omit<CountsFold, 'apply'>;

/** Token counts of one request over all its attempts, folded from its events: output tokens, and where the prompt's KV came from. */
export class CountsFold {
  readonly #state: CountsState;
  /** Undefined until somebody asks after a change. */
  #tokens: PromptTokenCounts | undefined;

  /** `state` is the fold's from now on. */
  constructor(state = noCounts()) {
    this.#state = state;
  }

  get promptTokens(): number {
    return this.#state.promptTokens;
  }

  get outputTokens(): number {
    return this.#state.outputTokens;
  }

  /** Output tokens that belong to the reasoning; undefined when the output is not parsed for it. */
  get reasoningTokens(): number | undefined {
    return this.#state.reasoningTokens;
  }

  get attempts(): readonly AttemptEntry[] {
    return this.#state.attempts;
  }

  /** Counts an event. */
  apply(event: RequestEvent): void {
    switch (event.kind) {
      case 'token':
        this.#state.outputTokens++;
        break;
      case 'reasoningToken':
        this.#state.reasoningTokens = (this.#state.reasoningTokens ?? 0) + 1;
        break;
      case 'read':
        this.#tokens = undefined;
        this.#state.promptTokens = event.facts.promptTokens ?? this.#state.promptTokens;
        if (event.facts.hasReasoning) this.#state.reasoningTokens ??= 0;
        break;
      case 'placed':
        this.#begin(event);
        break;
      case 'prefill':
        this.#change(event.attempt, ({ prefills }) => ({ prefills: replaced(prefills, event) }));
        break;
      case 'firstToken':
        this.#change(event.attempt, () => ({ report: event.report }));
        break;
      case 'attempt':
        this.#change(event.attempt, () => ({ outcome: event.outcome }));
        break;
      case 'rewritten':
        this.#state.rewritten = event.rewritten;
        break;
      // These change no count.
      case 'opened':
      case 'placing':
      case 'expected':
      case 'waiting':
      case 'rejected':
      case 'missed':
      case 'lost':
      case 'ended':
    }
  }

  #begin({ decode, reason, explanation: explained }: PlacedEvent): void {
    if (this.#state.attempts.length >= MAX_ATTEMPTS) return;
    const explanation = this.#state.attempts.length < MAX_EXPLAINED ? explained : undefined;
    this.#tokens = undefined;
    this.#state.attempts.push({ decode, reason, explanation, prefills: [], outcome: 'running', report: undefined });
  }

  /** Changes the attempt of a number; does nothing for one that is not listed. */
  #change(number: number, changed: (attempt: AttemptEntry) => Partial<AttemptEntry>): void {
    const attempt = this.#state.attempts[number - 1];
    if (!attempt) return;
    this.#state.attempts[number - 1] = { ...attempt, ...changed(attempt) };
    this.#tokens = undefined;
  }

  get isPrefilling(): boolean {
    return this.#state.attempts.some(({ prefills }) => prefills.some(({ outcome }) => outcome === 'running'));
  }

  /**
   * Prompt tokens that were computed, and would have been cache hits if the client had not rewritten text before them; with the index
   * of the first token that differs. Empty when there are none.
   */
  get lost(): LostTokens {
    if (!this.#state.rewritten) return {};
    const { start, sameTokens, reusableTokens } = this.#state.rewritten;
    const numCached = this.#state.promptTokens - this.tokens.computed;
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
    const report = this.#state.attempts.find((attempt) => attempt.report)?.report;
    if (!report) return { ...NO_SOURCES, ...counted };
    const found = foundIn(report);
    let left = this.#state.promptTokens - computed;
    const take = (numTokens: number): number => {
      const taken = Math.min(numTokens, left);
      left -= taken;
      return taken;
    };
    const own = { device: take(found.device), dram: take(found.dram) };
    const stores = { store_dram: take(found.storeDram), store_disk: take(found.storeDisk) };
    return { ...own, instance: left, ...stores, ...counted };
  }

  /** Tokens by where their KV came from. Read some ten times for each request, so they are counted once after each change. */
  get tokens(): PromptTokenCounts {
    return (this.#tokens ??= this.#counted());
  }

  #counted(): PromptTokenCounts {
    let fetched = 0;
    let byPrefill = 0;
    let first: Report | undefined;
    for (const attempt of this.#state.attempts) {
      first ??= attempt.report;
      fetched += attempt.report?.fetchedTokens ?? 0;
      for (const prefill of attempt.prefills) byPrefill += computedByPrefill(attempt, prefill);
    }
    const byDecode = Math.min(this.#state.promptTokens, first?.computedTokens ?? 0);
    const computed = Math.min(this.#state.promptTokens, byDecode + byPrefill);
    return {
      // The number of cached tokens is unknown until the decode instance sends its first report.
      cached: first ? this.#state.promptTokens - computed : 0,
      fetched,
      computed,
      computed_by_prefill: byPrefill,
      computed_by_decode: byDecode,
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

/** Returns the prefills of an attempt with the one of an event. */
function replaced(prefills: readonly PrefillEntry[], { index, entry }: PrefillEvent): readonly PrefillEntry[] {
  if (index >= MAX_PREFILL_ENTRIES) return prefills;
  return index < prefills.length ? prefills.with(index, entry) : [...prefills, entry];
}

/** Tokens that an instance found, as its report has them; one of an earlier version reports only how many it fetched. */
type FoundTokens = NonNullable<Report['sources']>;

function foundIn({ sources, cachedTokens, fetchedTokens }: Report): FoundTokens {
  const fetched = { dram: 0, instance: fetchedTokens, storeDram: 0, storeDisk: 0, handoff: 0 };
  return sources ?? { device: cachedTokens, ...fetched };
}

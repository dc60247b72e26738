/**
 * Counts where the KV of a sequence's first tokens came from (cache, fetch, computation), and how long queueing, loading and computing
 * took.
 */
import type { TokenSources } from '../protocol/messages.ts';

/** Place from which a block comes that is delivered to a sequence. */
export type BlockOrigin = Exclude<keyof TokenSources, 'device'>;

/** Counts of tokens; durations in ms. */
export interface SequenceReport {
  readonly cachedTokens: number;
  readonly fetchedTokens: number;
  readonly computedTokens: number;
  /** Cached and fetched tokens by where they were found. */
  readonly sources: TokenSources;
  /** From submission until device blocks were taken. */
  readonly queueMs: number;
  /** Until every fetched block was in, or given up. */
  readonly loadMs: number;
  /** Until the first token (decode), the last block (prefill) or the last row (embed). */
  readonly computeMs: number;
}

/** Measures one sequence until its first token (decode), its last block (prefill) or its last row (embed). */
export class SequenceTimes {
  readonly submittedMs: number;
  #admittedMs: number | undefined;
  #readyMs: number | undefined;
  #numCached = 0;
  readonly #fetched = { dram: 0, instance: 0, storeDram: 0, storeDisk: 0, handoff: 0 };
  /** Rows run before the first token, those run again after a preemption too. */
  numRun = 0;

  constructor(nowMs: number) {
    this.submittedMs = nowMs;
  }

  /** Device blocks were taken, `numCached` tokens of them hit. Only the first time counts. */
  admitted(nowMs: number, numCached: number): void {
    if (this.#admittedMs !== undefined) return;
    this.#admittedMs = nowMs;
    this.#numCached = numCached;
  }

  /** Tokens that turn out to have been hit, because the state after them came from elsewhere. */
  cached(numCached: number): void {
    this.#numCached = numCached;
  }

  /** Tokens were fetched from `origin`. */
  fetched(origin: BlockOrigin, numTokens: number): void {
    this.#fetched[origin] += numTokens;
  }

  /** Forgets the tokens that were fetched so far, because they are counted anew. */
  clearFetched(): void {
    Object.assign(this.#fetched, { dram: 0, instance: 0, storeDram: 0, storeDisk: 0, handoff: 0 });
  }

  /** Rows are computed. Only the first time counts. */
  ready(nowMs: number): void {
    this.#readyMs ??= nowMs;
  }

  report(nowMs: number): SequenceReport {
    const { numRun: computedTokens } = this;
    const sources = { device: this.#numCached, ...this.#fetched };
    const { dram, instance, storeDram, storeDisk, handoff } = this.#fetched;
    const fetchedTokens = dram + instance + storeDram + storeDisk + handoff;
    const [admittedMs, readyMs] = [this.#admittedMs ?? nowMs, this.#readyMs ?? nowMs];
    return {
      cachedTokens: this.#numCached,
      fetchedTokens,
      computedTokens,
      sources,
      queueMs: admittedMs - this.submittedMs,
      loadMs: readyMs - admittedMs,
      computeMs: nowMs - readyMs,
    };
  }
}

/**
 * The longest-prefix policy, which also decides what other policies cannot price: longest matched prefix, then shortest queue. With few
 * tokens to compute, decode computes them without a prefill instance. An embedding runs on one instance: with many tokens to compute on a
 * prefill instance, where no stream waits for them, else on any. Alternatives are priced for the log; the prices do not decide. A request
 * waits for a decode instance that is expected.
 */
import assert from 'node:assert/strict';
import { fetchPlan, matchesOf, type PrefixMatches } from './fetch_plan.ts';
import { ablePrefills, eligibleOf, leftOf, matchOf, placementOf } from './placement.ts';
import {
  MAX_ALTERNATIVES,
  type Alternative,
  type ClusterSnapshot,
  type Decision,
  type InstanceSnapshot,
  type Placement,
  type Policy,
  type Question,
} from './policy.ts';
import { computeMs, fetchTimes } from './unloaded_time.ts';

/** Name of the {@link LongestPrefixPolicy}. */
export const LONGEST_PREFIX = 'longest_prefix';

/** Sequences by which a queue may be longer for the sake of a longer matched prefix; beyond that the cache would make a hot spot. */
const MAX_EXTRA_QUEUE = 8;

/**
 * Chooses the longest matched prefix among instances of similar load, and adds a prefill instance when more than `localPrefillTokens`
 * tokens are left to compute.
 */
export class LongestPrefixPolicy implements Policy {
  readonly #localPrefillTokens: number;

  constructor(localPrefillTokens: number) {
    this.#localPrefillTokens = localPrefillTokens;
  }

  decide(question: Question, snapshot: ClusterSnapshot): Decision {
    const matches: PrefixMatches = matchesOf(snapshot.ranges);
    const all = question.isEmbedding ? this.#embedding(question, snapshot) : snapshot.decode;
    const { instances: eligible = [], decision } = eligibleOf(all, question, snapshot);
    const decode = question.decode?.id ?? choose(eligible, matches, snapshot.tieBreak)?.id;
    if (decode === undefined && decision) return decision;
    assert(decode !== undefined, 'without an eligible instance there is a decision');
    const priceOf = prices(question, snapshot, matches);
    const others = eligible.filter(({ id }) => id !== decode).map(priceOf);
    const chosen = all.find(({ id }) => id === decode);
    return {
      kind: 'place',
      policy: LONGEST_PREFIX,
      placement: this.#place(decode, question, snapshot, matches),
      priceMs: chosen && priceOf(chosen).priceMs,
      alternatives: others.sort(byPrice).slice(0, MAX_ALTERNATIVES),
    };
  }

  /** Instances that may compute an embedding: prefill instances alone when there is much to compute and one of them can. */
  #embedding(question: Question, snapshot: ClusterSnapshot): readonly InstanceSnapshot[] {
    const { decode, prefill } = snapshot;
    const able = ablePrefills(prefill, { ...question, numTokens: question.numTokens - 1 });
    const { numLeft } = leftOf(0, question, snapshot);
    return numLeft > this.#localPrefillTokens && able.length > 0 ? able : [...decode, ...prefill];
  }

  #place(decode: string, question: Question, snapshot: ClusterSnapshot, matches: PrefixMatches): Placement {
    const { numTokens, numBlocks } = question;
    const { prefill: all, ranges, tieBreak } = snapshot;
    const decodeMatch = matchOf(decode, question, matches);
    const { covered, numLeft } = leftOf(decodeMatch, question, snapshot);
    const numSources = fetchPlan(ranges, decodeMatch).length;
    // A prefill instance computes full blocks only, so it cannot help when just the tail is left.
    const isMuch = !question.isEmbedding && numLeft > this.#localPrefillTokens && covered < numBlocks;
    const able = ablePrefills(all, question);
    const prefill = isMuch ? choose(able, matches, tieBreak) : undefined;
    const hit = `${covered} of ${numBlocks} blocks held (decode ${decodeMatch}${numSources > 1 ? `, the rest by ${numSources}` : ''})`;
    const place = (maxSelfCompute: number, reason: string): Placement =>
      placementOf(decode, prefill, question, snapshot, { maxSelfCompute, reason });
    if (question.isEmbedding) {
      const reason = `${covered} of ${numBlocks} blocks held (${decodeMatch} by the instance); an embedding: it computes ${numLeft} tokens`;
      return place(numTokens, reason);
    }
    if (!prefill) {
      const why = isMuch ? 'no prefill instance' : `${numLeft} tokens to compute are too few for a prefill instance`;
      const most = isMuch || all.length === 0 ? numTokens : Math.max(this.#localPrefillTokens, numLeft);
      return place(most, `${hit}; ${why}: decode computes them`);
    }
    return place(this.#localPrefillTokens, `${hit}; ${numLeft} tokens to compute: prefill first`);
  }
}

/**
 * Returns a function that prices an instance: milliseconds to the first token without its queue. Instances with the same matched prefix
 * fetch the same blocks, so the plan is made once for each length.
 */
function prices(
  question: Question,
  snapshot: ClusterSnapshot,
  matches: PrefixMatches,
): (instance: InstanceSnapshot) => Alternative {
  type Plan = { readonly fetchMs: ReturnType<typeof fetchTimes>; readonly start: number };
  const plans = new Map<number, Plan>();
  return ({ id, queueLength, work }) => {
    const run = matchOf(id, question, matches);
    if (!work) return { decode: id, run, queueLength, priceMs: undefined };
    let plan = plans.get(run);
    if (!plan) {
      const { covered } = leftOf(run, question, snapshot);
      const fetchMs = fetchTimes(fetchPlan(snapshot.ranges, run), snapshot);
      plans.set(run, (plan = { fetchMs, start: covered * snapshot.blockSize }));
    }
    const { fetchMs, start } = plan;
    const priceMs = fetchMs(id, work.blockBytes) + computeMs(work, start, question.numTokens - start);
    return { decode: id, run, queueLength, priceMs };
  };
}

/** Orders alternatives by price, those without a price last. */
function byPrice(a: Alternative, b: Alternative): number {
  return (a.priceMs ?? Infinity) - (b.priceMs ?? Infinity) || 0;
}

/**
 * Chooses among instances whose queue is at most MAX_EXTRA_QUEUE longer than the shortest: longest matched prefix, then shortest queue,
 * then by name and `tieBreak`. Returns undefined when none is eligible.
 */
function choose(
  eligible: readonly InstanceSnapshot[],
  matches: PrefixMatches,
  tieBreak: number,
): InstanceSnapshot | undefined {
  let shortest = Infinity;
  for (const { queueLength } of eligible) shortest = Math.min(shortest, queueLength);
  let [equals, bestRun, bestQueue]: [InstanceSnapshot[], number, number] = [[], -1, Infinity];
  for (const one of eligible) {
    const { id, queueLength } = one;
    if (queueLength > shortest + MAX_EXTRA_QUEUE) continue;
    const run = matches.get(id) ?? 0;
    if (run < bestRun || (run === bestRun && queueLength > bestQueue)) continue;
    if (run === bestRun && queueLength === bestQueue) equals.push(one);
    else [equals, bestRun, bestQueue] = [[one], run, queueLength];
  }
  return equals.sort((a, b) => (a.name < b.name ? -1 : 1))[tieBreak % equals.length];
}

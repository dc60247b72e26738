/**
 * The default placement policy: longest matched prefix, then shortest queue. With few tokens to compute, decode computes them without
 * a prefill instance. An embedding runs on one instance: with many tokens to compute on a prefill instance, where no stream waits for
 * them, else on any. Alternatives are priced for the log; the prices do not decide. A request waits for a decode instance that is
 * expected.
 */
import { coveredTo, fetchPlan, matchesOf } from './fetch_plan.ts';
import type {
  Alternative,
  ClusterSnapshot,
  Decision,
  InstanceSnapshot,
  Placement,
  Policy,
  Question,
} from './policy.ts';
import type { Price } from './prices.ts';

/** Sequences by which a queue may be longer for the sake of a longer matched prefix; beyond that the cache would make a hot spot. */
const MAX_EXTRA_QUEUE = 8;
/** Milliseconds after the router's start during which a decode instance is expected, since none can have registered before. */
const START_MS = 5_000;
/**
 * Milliseconds after a decode instance was last seen during which another is expected: a supervisor restarts it, or a rolling update
 * replaces it.
 */
const EXPECTED_MS = 60_000;
/** Milliseconds before a request retries instances that failed or were busy, when no other instance is left. */
const AVOIDED_MS = 100;

type PrefixMatches = ReadonlyMap<string, number>;

/**
 * The default policy: chooses the longest matched prefix among instances of similar load, and adds a prefill instance when more than
 * `localPrefillTokens` tokens are left to compute.
 */
export class LongestPrefixPolicy implements Policy {
  readonly #localPrefillTokens: number;

  constructor(localPrefillTokens: number) {
    this.#localPrefillTokens = localPrefillTokens;
  }

  decide(question: Question, snapshot: ClusterSnapshot): Decision {
    const matches: PrefixMatches = matchesOf(snapshot.ranges);
    const all = question.isEmbedding ? this.#embedding(question, snapshot) : snapshot.decode;
    const hasRoom = all.filter(({ isPlaceable, maxModelLen }) => isPlaceable && maxModelLen >= question.maxLength);
    const eligible = hasRoom.filter(({ isAvoided }) => !isAvoided || question.retryAvoided);
    const decode = question.decode?.id ?? choose(eligible, matches, snapshot.tieBreak)?.id;
    if (decode === undefined)
      return hasRoom.length > 0 ? { kind: 'wait', why: 'all are avoided', forMs: AVOIDED_MS } : absent(snapshot);
    const priced = ({ id, queueLength, price }: InstanceSnapshot): Alternative => {
      const run = question.decode?.id === id ? question.decode.from : (matches.get(id) ?? 0);
      const numFetched = (coveredTo(snapshot.ranges, run) - run) * snapshot.blockSize;
      const numComputed = question.numTokens - run * snapshot.blockSize - numFetched;
      return { decode: id, run, queueLength, priceMs: priceOf(price, numFetched, numComputed) };
    };
    const prices = all.filter((one) => one.id === decode || eligible.includes(one)).map(priced);
    return {
      kind: 'place',
      placement: this.#place(decode, question, snapshot, matches),
      priceMs: prices.find((one) => one.decode === decode)?.priceMs,
      alternatives: prices.filter((one) => one.decode !== decode),
    };
  }

  /** Instances that may compute an embedding: prefill instances alone when there is much to compute and one of them can. */
  #embedding({ numTokens, maxLength, retryAvoided }: Question, snapshot: ClusterSnapshot): readonly InstanceSnapshot[] {
    const { decode, prefill, ranges, blockSize } = snapshot;
    const numLeft = numTokens - coveredTo(ranges, 0) * blockSize;
    const able = prefill.filter(
      ({ isPlaceable, isAvoided, maxModelLen }) =>
        isPlaceable && (!isAvoided || retryAvoided) && maxModelLen >= maxLength,
    );
    return numLeft > this.#localPrefillTokens && able.length > 0 ? able : [...decode, ...prefill];
  }

  #place(
    decode: string,
    question: Question,
    { blockSize, prefill: all, ranges, tieBreak }: ClusterSnapshot,
    matches: PrefixMatches,
  ): Placement {
    const { numTokens, numBlocks } = question;
    const decodeMatch = question.decode?.from ?? matches.get(decode) ?? 0;
    const held = fetchPlan(ranges, decodeMatch);
    const last = held.at(-1);
    const covered = last?.end ?? decodeMatch;
    const numLeft = numTokens - covered * blockSize;
    // A prefill instance computes full blocks only, so it cannot help when just the tail is left.
    const isMuch = !question.isEmbedding && numLeft > this.#localPrefillTokens && covered < numBlocks;
    const able = all.filter(
      ({ isPlaceable, isAvoided, maxModelLen }) =>
        isPlaceable && (!isAvoided || question.retryAvoided) && maxModelLen > numTokens,
    );
    const prefill = isMuch ? choose(able, matches, tieBreak) : undefined;
    const hit = `${covered} of ${numBlocks} blocks held (decode ${decodeMatch}${held.length > 1 ? `, the rest by ${held.length}` : ''})`;
    if (question.isEmbedding) {
      return {
        ...{ decode, prefill: undefined, decodeSources: held, prefillSources: [] },
        ...{ heldTokens: covered * blockSize, maxSelfCompute: numTokens },
        reason: `${covered} of ${numBlocks} blocks held (${decodeMatch} by the instance); an embedding: it computes ${numLeft} tokens`,
      };
    }
    if (!prefill) {
      return {
        ...{ decode, prefill: undefined, decodeSources: held, prefillSources: [] },
        heldTokens: covered * blockSize,
        maxSelfCompute: isMuch || all.length === 0 ? numTokens : Math.max(this.#localPrefillTokens, numLeft),
        reason: `${hit}; ${isMuch ? 'no prefill instance' : `${numLeft} tokens to compute are too few for a prefill instance`}: decode computes them`,
      };
    }
    // Merge the prefill instance's held range with the range it computes, so that one fetch covers both.
    const isLast = last?.address === prefill.address;
    const others = isLast ? held.slice(0, -1) : held;
    const prefillMatch = matches.get(prefill.id) ?? 0;
    return {
      ...{ decode, prefill: prefill.id },
      heldTokens: covered * blockSize,
      decodeSources: [
        ...others,
        { address: prefill.address, start: isLast ? last.start : covered, end: numBlocks, isComputing: true },
      ],
      prefillSources: fetchPlan(ranges, prefillMatch),
      maxSelfCompute: this.#localPrefillTokens,
      reason: `${hit}; ${numLeft} tokens to compute: prefill first`,
    };
  }
}

/**
 * Returns the predicted milliseconds of fetching and computing the tokens; undefined when the compute price or a needed fetch price
 * was never measured.
 */
function priceOf({ computeMs, fetchMs }: Price, numFetched: number, numComputed: number): number | undefined {
  const fetch = numFetched === 0 ? 0 : fetchMs;
  return fetch === undefined || computeMs === undefined ? undefined : fetch * numFetched + computeMs * numComputed;
}

function absent({ ageMs, withoutDecodeMs }: ClusterSnapshot): Decision {
  const forMs = Math.max(START_MS - ageMs, withoutDecodeMs === undefined ? 0 : EXPECTED_MS - withoutDecodeMs);
  if (forMs > 0) return { kind: 'wait', why: 'one is expected', forMs };
  return {
    kind: 'reject',
    code: 'overloaded',
    message: 'no decode instance is available: start one with `penstock decode`, or wait until it has loaded',
  };
}

/**
 * Chooses among instances whose queue is at most MAX_EXTRA_QUEUE longer than the shortest: longest matched prefix, then shortest
 * queue, then by name and `turn`. Returns undefined when none is eligible.
 */
function choose(
  eligible: readonly InstanceSnapshot[],
  matches: PrefixMatches,
  tieBreak: number,
): InstanceSnapshot | undefined {
  const shortest = Math.min(...eligible.map(({ queueLength }) => queueLength));
  const runOf = ({ id }: InstanceSnapshot): number => matches.get(id) ?? 0;
  const order = (a: InstanceSnapshot, b: InstanceSnapshot): number =>
    runOf(b) - runOf(a) || a.queueLength - b.queueLength;
  const sorted = eligible
    .filter(({ queueLength }) => queueLength <= shortest + MAX_EXTRA_QUEUE)
    .sort((a, b) => order(a, b) || (a.name < b.name ? -1 : 1));
  const [best] = sorted;
  const equals = sorted.filter((one) => best && order(one, best) === 0);
  return equals[tieBreak % equals.length];
}

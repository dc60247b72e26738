/**
 * The parts that all policies share: which instances can take a request, and the placement once the instances are chosen.
 *
 *   eligible ──a policy chooses──► decode instance, perhaps a prefill instance ──placementOf──► sources, limits, reason
 */
import type { Source } from '../protocol/messages.ts';
import { EXPECTED_MS } from './decode_sightings.ts';
import { coveredTo, deviceMatchOf, fetchPlan, type PrefixMatches } from './fetch_plan.ts';
import type { ClusterSnapshot, Decision, HeldSnapshot, InstanceSnapshot, Placement, Question } from './policy.ts';

/** Milliseconds after the router's start during which a decode instance is expected, since none can have registered before. */
const START_MS = 5_000;
/** Milliseconds before a request retries instances that failed or were busy, when no other instance is left. */
const AVOIDED_MS = 100;

/** Instances that may run the request, or the decision when there is none. */
export type Eligible =
  | { readonly instances: readonly InstanceSnapshot[]; readonly decision?: undefined }
  | { readonly instances?: undefined; readonly decision: Decision };

/**
 * Returns the instances of `all` that have room for the whole request and are not avoided, or why the request cannot be placed now. A
 * request with output goes on in the numerics class that generated it, while an instance of that class has room.
 */
export function eligibleOf(
  all: readonly InstanceSnapshot[],
  { maxLength, retryAvoided, numericsClass }: Question,
  snapshot: ClusterSnapshot,
): Eligible {
  const hasRoom = all.filter(({ isPlaceable, maxModelLen }) => isPlaceable && maxModelLen >= maxLength);
  const equals = hasRoom.filter((one) => one.numericsClass === numericsClass);
  const instances = (equals.length > 0 ? equals : hasRoom).filter(({ isAvoided }) => !isAvoided || retryAvoided);
  if (instances.length > 0) return { instances };
  if (hasRoom.length > 0) return { decision: { kind: 'wait', why: 'all are avoided', forMs: AVOIDED_MS } };
  return { decision: absent(snapshot) };
}

/** Returns the instances of `all` that can compute the prompt. */
export function ablePrefills(
  all: readonly InstanceSnapshot[],
  { numTokens, retryAvoided }: Question,
): InstanceSnapshot[] {
  return all.filter(
    ({ isPlaceable, isAvoided, maxModelLen }) => isPlaceable && (!isAvoided || retryAvoided) && maxModelLen > numTokens,
  );
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

/** Returns how many leading blocks of the request the instance `id` has. */
export function matchOf(id: string, { decode }: Question, matches: PrefixMatches): number {
  return decode?.id === id ? decode.from : (matches.get(id) ?? 0);
}

/** Returns the end of the held blocks after `match`, and the tokens then left to compute. */
export function leftOf(
  match: number,
  { numTokens }: Question,
  { ranges, blockSize }: ClusterSnapshot,
): { readonly covered: number; readonly numLeft: number } {
  const covered = coveredTo(ranges, match);
  return { covered, numLeft: numTokens - covered * blockSize };
}

/** Limits and explanation of a placement. */
export interface PlacementTerms {
  /** Tokens that the decode instance may compute without asking the router for more sources. */
  readonly maxSelfCompute: number;
  readonly reason: string;
  /** Held blocks up to here are fetched, the others computed; undefined: every held block is fetched. */
  readonly fetchTo?: number | undefined;
}

/**
 * Returns the placement on a decode instance and perhaps a prefill instance, which computes the blocks that nobody holds while the decode
 * instance fetches them from it. Held blocks that are not on the device are fetched from their holders, the instance itself included.
 */
export function placementOf(
  decode: string,
  prefill: InstanceSnapshot | undefined,
  question: Question,
  { ranges, blockSize }: Pick<ClusterSnapshot, 'ranges' | 'blockSize'>,
  { maxSelfCompute, reason, fetchTo }: PlacementTerms,
): Placement {
  const decodeMatch = question.decode?.id === decode ? question.decode.from : deviceMatchOf(ranges, decode);
  const held = upTo(fetchPlan(ranges, decodeMatch), fetchTo);
  const last = held.at(-1);
  const covered = last?.end ?? decodeMatch;
  const heldTokens = covered * blockSize;
  if (!prefill || covered >= question.numBlocks)
    return { decode, prefill: undefined, decodeSources: held, prefillSources: [], heldTokens, maxSelfCompute, reason };
  // Merge the prefill instance's held range with the range it computes, so that one fetch covers both.
  const isLast = last?.address === prefill.address;
  const others = isLast ? held.slice(0, -1) : held;
  return {
    decode,
    prefill: prefill.id,
    heldTokens,
    maxSelfCompute,
    reason,
    decodeSources: [
      ...others,
      { address: prefill.address, start: isLast ? last.start : covered, end: question.numBlocks, isComputing: true },
    ],
    prefillSources: upTo(fetchPlan(ranges, deviceMatchOf(ranges, prefill.id)), fetchTo),
  };
}

/** Returns the sources of the blocks before `end`. */
export function upTo(sources: readonly Source[], end = Infinity): readonly Source[] {
  return sources.flatMap((one) => (one.start >= end ? [] : [one.end > end ? { ...one, end } : one]));
}

/** Limits and explanation of a placement on a pair of instances, and where its prefix comes from. */
export interface PairTerms extends PlacementTerms {
  /**
   * Whether the instance that computes the prompt fetches the held blocks that it lacks from whoever holds them; otherwise it uses
   * its own prefix alone.
   */
  readonly fetchesPrefix: boolean;
}

/**
 * Returns the placement of systems whose decode instances get a prompt from one prefill instance: that instance computes what its
 * prefix leaves, and sends all blocks which the decode instance lacks. Without a prefill instance the decode instance computes the
 * prompt. Nothing is prefilled when the decode or the prefill instance has all full blocks, or may fetch them.
 */
export function pairPlacementOf(
  decode: string,
  prefill: InstanceSnapshot | undefined,
  question: Question,
  { ranges, blockSize }: Pick<ClusterSnapshot, 'ranges' | 'blockSize'>,
  matches: PrefixMatches,
  { fetchesPrefix, maxSelfCompute, reason }: PairTerms,
): Placement {
  const { numBlocks } = question;
  const terms = { decode, prefill: undefined, prefillSources: [], maxSelfCompute, reason };
  const decodeMatch = matchOf(decode, question, matches);
  const reachOf = (match: number): number => (fetchesPrefix ? coveredTo(ranges, match) : match);
  const sourcesOf = (id: string, from: number, match: number): readonly Source[] =>
    fetchesPrefix ? fetchPlan(ranges, from) : ownSources(ranges, id, from, match);
  const decodeFrom = question.decode?.id === decode ? question.decode.from : deviceMatchOf(ranges, decode);
  if (!prefill || reachOf(decodeMatch) >= numBlocks) {
    const decodeSources = sourcesOf(decode, decodeFrom, decodeMatch);
    return { ...terms, decodeSources, heldTokens: reachOf(decodeMatch) * blockSize };
  }
  const match = matches.get(prefill.id) ?? 0;
  const isComputing = match < numBlocks;
  return {
    ...terms,
    prefill: isComputing ? prefill.id : undefined,
    prefillSources: isComputing ? sourcesOf(prefill.id, deviceMatchOf(ranges, prefill.id), match) : [],
    decodeSources: [
      ...ownSources(ranges, decode, decodeFrom, decodeMatch),
      { address: prefill.address, start: decodeMatch, end: numBlocks, isComputing },
    ],
    heldTokens: reachOf(match) * blockSize,
  };
}

/** Returns the blocks [from, to) of an instance's own prefix that only its host memory has. */
function ownSources(ranges: readonly HeldSnapshot[], id: string, from: number, to: number): Source[] {
  const address = ranges[0]?.holders.find((holder) => holder.id === id)?.address;
  return address === undefined || to <= from ? [] : [{ address, start: from, end: to, isComputing: false }];
}

/**
 * Where a request runs. The interface is the conductor's; this policy is the plain one: longest run, then least load; little
 * to compute goes straight to decode.
 */
import type { ChainLink } from '../../shared/kv/block_key.ts';
import type { Source } from '../../shared/protocol/messages.ts';
import type { Instance } from './cluster_view.ts';

export interface PlacementQuestion {
  /** Tokens whose KV the request needs before its next token. */
  readonly numTokens: number;
  /** Full blocks before the tail. */
  readonly links: readonly ChainLink[];
  /** The list never grows beyond this: an instance with fewer device blocks cannot take it. */
  readonly maxLength: number;
  /** Instances to keep away from, and holders not to ask. */
  readonly excluded: {
    has(instance: Instance): boolean;
    isHolder(instance: Instance): boolean;
  };
  /** Given when the decode instance is chosen already and holds blocks [0, from). */
  readonly decode?: { readonly instance: Instance; readonly from: number };
}

export interface Placement {
  readonly decode: Instance;
  readonly prefill: Instance | undefined;
  readonly decodeSources: readonly Source[];
  readonly prefillSources: readonly Source[];
  /** Tokens the decode instance may compute itself without asking. */
  readonly maxSelfCompute: number;
  /** For people: why so. */
  readonly reason: string;
}

export interface ClusterState {
  readonly blockSize: number;
  readonly decode: readonly Instance[];
  readonly prefill: readonly Instance[];
  byHolder(id: string): Instance | undefined;
  /** Blocks that each holder has in a run from the first. */
  runs(links: readonly ChainLink[]): ReadonlyMap<string, number>;
}

export interface Placer {
  /** Undefined when no decode instance can take it. */
  place(question: PlacementQuestion, cluster: ClusterState): Placement | undefined;
}

/** A longer run is worth a queue of this much longer; beyond that the cache would make a hot spot. */
const MAX_EXTRA_QUEUE = 8;

export class SimplePlacer implements Placer {
  readonly #localPrefillTokens: number;

  constructor(localPrefillTokens: number) {
    this.#localPrefillTokens = localPrefillTokens;
  }

  place(question: PlacementQuestion, cluster: ClusterState): Placement | undefined {
    const { numTokens, maxLength, links, excluded } = question;
    const { blockSize } = cluster;
    const isAsked = (id: string): boolean => {
      const holder = cluster.byHolder(id);
      return holder !== undefined && excluded.isHolder(holder);
    };
    const runs = new Map([...cluster.runs(links)].filter(([id]) => isAsked(id)));
    const isFree = (instance: Instance): boolean => instance.isPlaceable && !excluded.has(instance);
    const decode =
      question.decode?.instance ??
      choose(
        cluster.decode.filter((instance) => isFree(instance) && instance.maxModelLen >= maxLength),
        runs,
      );
    if (!decode) return undefined;
    const decodeRun = question.decode?.from ?? runs.get(decode.id) ?? 0;
    const [bestId, bestRun] = longest(runs);
    const covered = Math.max(decodeRun, bestRun);
    const numLeft = numTokens - covered * blockSize;
    // A prefill makes full blocks; the tail alone is nobody else's work.
    const isMuch = numLeft > this.#localPrefillTokens && covered < links.length;
    const able = cluster.prefill.filter((instance) => isFree(instance) && instance.maxModelLen > numTokens);
    const prefill = isMuch ? choose(able, runs) : undefined;
    const hit = `${covered} of ${links.length} blocks held (decode ${decodeRun}, best ${bestRun})`;
    const held = heldSource(cluster.byHolder(bestId), decodeRun, bestRun);
    if (!prefill) {
      return {
        ...{ decode, prefill, decodeSources: held, prefillSources: [] },
        maxSelfCompute:
          isMuch || cluster.prefill.length === 0 ? numTokens : Math.max(this.#localPrefillTokens, numLeft),
        reason: `${hit}; ${isMuch ? 'no prefill instance' : `${numLeft} tokens are little`}: decode computes them`,
      };
    }
    const prefillRun = runs.get(prefill.id) ?? 0;
    return {
      ...{ decode, prefill },
      decodeSources: [
        ...(bestId === prefill.id ? [] : held),
        {
          address: prefill.member.address,
          start: bestId === prefill.id ? decodeRun : covered,
          end: links.length,
          isComputing: true,
        },
      ],
      prefillSources: bestId === prefill.id ? [] : heldSource(cluster.byHolder(bestId), prefillRun, bestRun),
      maxSelfCompute: this.#localPrefillTokens,
      reason: `${hit}; ${numLeft} tokens to compute: prefill first`,
    };
  }
}

function heldSource(holder: Instance | undefined, start: number, end: number): Source[] {
  return holder && end > start ? [{ address: holder.member.address, start, end, isComputing: false }] : [];
}

function longest(runs: ReadonlyMap<string, number>): [id: string, run: number] {
  return [...runs].reduce<[string, number]>((best, entry) => (entry[1] > best[1] ? entry : best), ['', 0]);
}

/** Longest run among those whose queue is not much longer than the shortest; then the shortest queue; then by name. */
function choose(eligible: readonly Instance[], runs: ReadonlyMap<string, number>): Instance | undefined {
  const shortest = Math.min(...eligible.map(({ queueLength }) => queueLength));
  const runOf = ({ id }: Instance): number => runs.get(id) ?? 0;
  return eligible
    .filter(({ queueLength }) => queueLength <= shortest + MAX_EXTRA_QUEUE)
    .sort(
      (a, b) => runOf(b) - runOf(a) || a.queueLength - b.queueLength || (a.member.name < b.member.name ? -1 : 1),
    )[0];
}

/**
 * Input and output of a placement policy: plain values in, a decision out. A policy knows nothing else, so every logged decision can
 * be inspected and reproduced from its snapshot.
 */
import type { FailureCode } from '../../../shared/base/failure.ts';
import type { Source } from '../../../shared/protocol/messages.ts';
import type { Price } from './prices.ts';

/** One prefill or decode instance, as the policy sees it. */
export interface InstanceSnapshot {
  /** One incarnation. */
  readonly id: string;
  readonly name: string;
  readonly address: string;
  /** The longest prompt and output together. */
  readonly maxModelLen: number;
  /** Sequences there, by its own word or by this router's, whichever is more. */
  readonly queueLength: number;
  /** Heard of, and not draining. */
  readonly isPlaceable: boolean;
  /** Whether this request avoids the instance because a call to the instance failed or found it busy (relay/exclusions.ts). */
  readonly isAvoided: boolean;
  readonly price: Price;
}

/** An instance or store that blocks may be fetched from. */
interface HolderSnapshot {
  readonly id: string;
  readonly address: string;
  readonly isInMemory: boolean;
}

/** Blocks [start, end) of the question, and who may be asked for all of them. */
export interface HeldSnapshot {
  readonly start: number;
  readonly end: number;
  readonly holders: readonly HolderSnapshot[];
}

/** The cluster at one moment, as far as one question goes. */
export interface ClusterSnapshot {
  readonly blockSize: number;
  readonly decode: readonly InstanceSnapshot[];
  readonly prefill: readonly InstanceSnapshot[];
  /** Ascending; what nobody has is in none. */
  readonly ranges: readonly HeldSnapshot[];
  /**
   * Picks one of several equal instances (modulo their number). Routers differ in this number, so that they do not all pick the same
   * instance; 0 with a single router.
   */
  readonly tieBreak: number;
  /** How long this router has been there, ms: a young one has seen nobody yet. */
  readonly ageMs: number;
  /** Since when no decode instance has room for the question, ms; 0: one has; undefined: none ever had. */
  readonly withoutDecodeMs: number | undefined;
}

/** One request to place, without the state of the cluster. */
export interface Question {
  /** Tokens whose KV the request needs before its next token. */
  readonly numTokens: number;
  /** Full blocks before the tail. */
  readonly numBlocks: number;
  /** The list never grows beyond this: an instance with fewer device blocks cannot take it. */
  readonly maxLength: number;
  /** Whether avoided instances may be chosen too, because no other instance is left. */
  readonly retryAvoided: boolean;
  /** The decode instance, when already chosen, which holds blocks [0, from); undefined on a first placement. */
  readonly decode: { readonly id: string; readonly from: number } | undefined;
}

/** Chosen instances by id, and the sources that each of them fetches blocks from. */
export interface Placement {
  readonly decode: string;
  readonly prefill: string | undefined;
  readonly decodeSources: readonly Source[];
  readonly prefillSources: readonly Source[];
  /** Tokens whose KV the index says somebody has. */
  readonly heldTokens: number;
  /** Tokens the decode instance may compute itself without asking. */
  readonly maxSelfCompute: number;
  /** For people: why so. */
  readonly reason: string;
}

/** A decode instance that could have been chosen, or was. */
export interface Alternative {
  readonly decode: string;
  readonly run: number;
  readonly queueLength: number;
  /** Until the first token, were it alone there and computed itself what nobody holds, ms; undefined: what it costs is not known. */
  readonly priceMs: number | undefined;
}

/** Decision of a policy: place the request, wait for a change of the cluster, or reject the request. */
export type Decision =
  | {
      readonly kind: 'place';
      readonly placement: Placement;
      readonly priceMs: number | undefined;
      readonly alternatives: readonly Alternative[];
    }
  /** Asked again when the cluster changes, and after `forMs` at the latest. */
  | { readonly kind: 'wait'; readonly why: 'all are avoided' | 'one is expected'; readonly forMs: number }
  | { readonly kind: 'reject'; readonly code: FailureCode; readonly message: string };

/** A placement policy. Decisions depend on the arguments alone. */
export interface Policy {
  decide(question: Question, snapshot: ClusterSnapshot): Decision;
}

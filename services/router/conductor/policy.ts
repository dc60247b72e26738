/**
 * Input and output of a placement policy: plain values in, a decision out. A policy knows nothing else, so every logged decision can
 * be inspected and reproduced from its snapshot.
 */
import type { FailureCode } from '../../../shared/base/failure.ts';
import type { Source } from '../../../shared/protocol/messages.ts';
import type { Price } from './prices.ts';

/** One prefill or decode instance, as the policy sees it. */
export interface InstanceSnapshot {
  /** Id of the instance's current incarnation, by name and epoch. */
  readonly id: string;
  readonly name: string;
  readonly address: string;
  /** Longest prompt and output together, in tokens. */
  readonly maxModelLen: number;
  /** Sequences on the instance: its own count plus placements since then, or this router's open calls if they are more. */
  readonly queueLength: number;
  /** Whether the instance counts, is not suspect and is not draining. */
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

/** Blocks [start, end) of the question, with the holders that may be asked for all of them. */
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
  /** Ranges of held blocks, ascending; blocks that nobody holds are in none. */
  readonly ranges: readonly HeldSnapshot[];
  /**
   * Picks one of several equal instances (modulo their number). Routers differ in this number, so that they do not all pick the same
   * instance; 0 with a single router.
   */
  readonly tieBreak: number;
  /** Milliseconds since this router started; shortly after its start a router has seen no instances yet. */
  readonly ageMs: number;
  /** Milliseconds since a decode instance with room for the question was last a member; 0 when one is, undefined when none ever was. */
  readonly withoutDecodeMs: number | undefined;
}

/** One request to place, without the state of the cluster. */
export interface Question {
  /** Tokens whose KV the request needs before its next token. */
  readonly numTokens: number;
  /** Full blocks before the tail. */
  readonly numBlocks: number;
  /** Most tokens that prompt and output can have together. An instance with a smaller maxModelLen cannot run the request. */
  readonly maxLength: number;
  /** Whether avoided instances may be chosen too, because no other instance is left. */
  readonly retryAvoided: boolean;
  /** Whether the embedding of the prompt is wanted: one instance computes it, of either role, and nothing is sampled. */
  readonly isEmbedding: boolean;
  /** The decode instance, when already chosen, which holds blocks [0, from); undefined on a first placement. */
  readonly decode: { readonly id: string; readonly from: number } | undefined;
}

/** Chosen instances by id, and the sources that each of them fetches blocks from. */
export interface Placement {
  /** The instance that the request runs on; a prefill or a decode instance for an embedding. */
  readonly decode: string;
  readonly prefill: string | undefined;
  readonly decodeSources: readonly Source[];
  readonly prefillSources: readonly Source[];
  /** Tokens whose KV some instance or store holds, by the prefix index. */
  readonly heldTokens: number;
  /** Tokens that the decode instance may compute itself when blocks do not arrive, without asking the router for more sources. */
  readonly maxSelfCompute: number;
  /** Explanation of the placement, for people. */
  readonly reason: string;
}

/** A decode instance that could have been chosen, or was. */
export interface Alternative {
  readonly decode: string;
  readonly run: number;
  readonly queueLength: number;
  /**
   * Predicted milliseconds to the first token on this instance without its queue, when it fetches the held blocks and computes the
   * rest; undefined when a price is not known.
   */
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
  /** The conductor is asked again when the cluster changes, and after `forMs` at the latest. */
  | { readonly kind: 'wait'; readonly why: 'all are avoided' | 'one is expected'; readonly forMs: number }
  | { readonly kind: 'reject'; readonly code: FailureCode; readonly message: string };

/** A placement policy. Decisions depend on the arguments alone. */
export interface Policy {
  decide(question: Question, snapshot: ClusterSnapshot): Decision;
}

/**
 * Input and output of a placement policy: plain values in, a decision out. A policy knows nothing else, so every logged decision can
 * be inspected and reproduced from its snapshot.
 */
import type { FetchingBytes } from './open_fetches.ts';
import type { FailureCode } from '../base/failure.ts';
import type { InstanceWork } from '../protocol/instance_work.ts';
import type { Source } from '../protocol/messages.ts';

/** One prefill or decode instance, as the policy sees it. */
export interface InstanceSnapshot {
  /** Id of the instance's current incarnation, by name and epoch. */
  readonly id: string;
  readonly name: string;
  readonly role: 'prefill' | 'decode';
  readonly address: string;
  /** Instances of one numerics class give the same bits (E2). */
  readonly numericsClass: string;
  /**
   * Whether the instance may generate under a policy that uses any role: always for a decode instance, for a prefill instance where it
   * has the numerics class of a decode instance.
   */
  readonly mayGenerate: boolean;
  /** Longest prompt and output together, in tokens. */
  readonly maxModelLen: number;
  /** Sequences on the instance: its own count plus placements since then, or this router's open calls if they are more. */
  readonly queueLength: number;
  /** Whether the instance counts, is not suspect and is not draining. */
  readonly isPlaceable: boolean;
  /** Whether this request avoids the instance because a call to the instance failed or found it busy (relay/exclusions.ts). */
  readonly isAvoided: boolean;
  /**
   * Work of the instance: its last heartbeat, with the placements of this router that the heartbeat does not count yet. Undefined
   * when its heartbeats do not carry it.
   */
  readonly work: InstanceWork | undefined;
  /** Router time, in ms, when this router last placed a request without any hit there; undefined: never. */
  readonly coldAtMs: number | undefined;
}

/** Measured speed of moving blocks from one holder to one instance. */
export interface LinkSnapshot {
  /** Address of the holder. */
  readonly from: string;
  /** Id of the instance that fetches. */
  readonly to: string;
  readonly bytesPerMs: number;
  /** Milliseconds from the request to the first byte. */
  readonly latencyMs: number;
}

/** An instance or store that blocks may be fetched from. */
interface HolderSnapshot {
  readonly id: string;
  readonly address: string;
  /** Whether it has the blocks in device or host memory, which is served without reading a disk. */
  readonly isInMemory: boolean;
  /** Whether it has the blocks on its device, where its own sequences use them without a fetch. */
  readonly isOnDevice: boolean;
}

/** Blocks [start, end) of the question, with the holders that may be asked for all of them. */
export interface HeldSnapshot {
  readonly start: number;
  readonly end: number;
  readonly holders: readonly HolderSnapshot[];
}

/** The recurrent state at the end of block `blocks` - 1, after which a hybrid model's prefix can be used. */
export interface StateSnapshot {
  readonly blocks: number;
  readonly holders: readonly HolderSnapshot[];
  /** Bytes of its record. */
  readonly bytes: number;
}

/** Blocks [0, end) of the question that an instance has, or will have once the requests placed there before are computed. */
export interface PromisedPrefix {
  readonly id: string;
  readonly end: number;
  /**
   * End, in blocks, of the last range that earlier requests only fetch; all blocks from here to `end` are computed there. 0: none is only
   * fetched.
   */
  readonly fetchedTo: number;
}

/** The cluster at one moment, as far as one question goes. */
export interface ClusterSnapshot {
  readonly blockSize: number;
  readonly decode: readonly InstanceSnapshot[];
  readonly prefill: readonly InstanceSnapshot[];
  /** Ranges of held blocks, ascending; blocks that nobody holds are in none. */
  readonly ranges: readonly HeldSnapshot[];
  /** Present for a model with recurrent layers whose state is held after a part of the prefix: `ranges` end there. */
  readonly state?: StateSnapshot | undefined;
  /** Whether the model has recurrent layers. */
  readonly hasStates?: boolean;
  /** Prefixes that instances will have, where these are longer than what they have. */
  readonly promised: readonly PromisedPrefix[];
  /** Links that were measured last, a bounded number. */
  readonly links: readonly LinkSnapshot[];
  /** Mean of all measured links: assumed of a link to an instance that has none (links.ts). */
  readonly otherLink: Omit<LinkSnapshot, 'from' | 'to'>;
  /** Bytes that earlier placements of this router are still to fetch; undefined: none. */
  readonly fetching?: FetchingBytes | undefined;
  /** Number of decisions that this router made before, for policies that take turns. */
  readonly turn: number;
  /** Random numbers in [0, 1), drawn for this decision, for policies that choose by chance. */
  readonly random: readonly [number, number];
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
  /** Tokens that the answer is expected to have. */
  readonly outputTokens: number;
  /** Targets of the request; undefined where it has none. */
  readonly targets: Targets | undefined;
  /** Milliseconds since the request arrived at this router. */
  readonly waitedMs: number;
  /** Whether an instance has worked for the request already: it is not refused for its targets any more. */
  readonly isBegun: boolean;
  /** Numerics class of the instance that generated the output so far; undefined while there is none. */
  readonly numericsClass: string | undefined;
}

/** Service level objectives of a request, in milliseconds. */
export interface Targets {
  /** From the request's arrival to its first token. */
  readonly ttftMs: number | undefined;
  /** Between two tokens. */
  readonly tbtMs: number | undefined;
  /** From the request's arrival to its last token. */
  readonly totalMs?: number | undefined;
}

/** A further prefill instance, which computes some chunks of a prompt in a pipeline with another one that computes the others. */
export interface SecondPrefill {
  /** Id of the instance. */
  readonly prefill: string;
  /** Held blocks, and the chunks that the other one computes. */
  readonly sources: readonly Source[];
  /** Tokens of the prompt that are computed there, the other one's not counted. */
  readonly tokens: number;
  /** Milliseconds after which either instance no longer waits for the other, and computes all that is left. */
  readonly patienceMs: number;
}

/** Chosen instances by id, and the sources that each of them fetches blocks from. */
export interface Placement {
  /** The instance that the request runs on; a prefill or a decode instance for an embedding. */
  readonly decode: string;
  readonly prefill: string | undefined;
  readonly decodeSources: readonly Source[];
  readonly prefillSources: readonly Source[];
  /** Present when the prompt is computed in a pipeline. Its chunks are in `prefillSources` too. */
  readonly second?: SecondPrefill | undefined;
  /** Tokens that the placement need not compute, because an instance or store that it uses holds their KV by the prefix index. */
  readonly heldTokens: number;
  /** Tokens that the decode instance may compute itself when blocks do not arrive, without asking the router for more sources. */
  readonly maxSelfCompute: number;
  /** Explanation of the placement, for people. */
  readonly reason: string;
}

/** Times and cache hits that a policy expects of a placement. */
export interface Prediction {
  /** Milliseconds from the decision to the first token. */
  readonly ttftMs: number;
  /** Milliseconds of `ttftMs` that it waits for others: for prompts before it, and for room on the device. */
  readonly waitMs: number;
  /** Milliseconds between two tokens, at the time when the first one comes. */
  readonly tbtMs: number;
  /** Milliseconds from the decision to the last token. */
  readonly totalMs: number;
  /** Prompt tokens that are not computed for this request. */
  readonly cachedTokens: number;
}

/** A placement that could have been chosen, or was. */
export interface Alternative {
  readonly decode: string;
  readonly prefill?: string | undefined;
  /** The second prefill instance of a pipeline. */
  readonly second?: string | undefined;
  /** Parts of the price in milliseconds, by name; undefined where the policy knows only the whole. */
  readonly parts?: Readonly<Record<string, number>> | undefined;
  readonly prediction?: Prediction | undefined;
  /** Leading blocks of the question that the decode instance has. */
  readonly run: number;
  readonly queueLength: number;
  /**
   * Price in ms, as the policy counts: for `longest_prefix` the time to the first token without the queue, for `priced` the whole price;
   * undefined for policies that price nothing, and where the instance reports no step times.
   */
  readonly priceMs: number | undefined;
}

/** Why a placement was chosen: its price, what is predicted of it, and the placements that were not taken. */
export interface Explanation {
  readonly priceMs: number | undefined;
  /** Parts of the price in milliseconds, by name; undefined for policies without them. */
  readonly parts?: Readonly<Record<string, number>> | undefined;
  /** Corrected by earlier requests for a placement (prediction_correction.ts). Undefined for policies that predict nothing. */
  readonly prediction?: Prediction | undefined;
  /** Prediction of the policy itself, from which the correction is learnt. */
  readonly uncorrected?: Prediction | undefined;
  /** Name of the policy that decided. */
  readonly policy?: string | undefined;
  /** Whether the request misses a target by its own work alone, and is served nevertheless (overload.ts). */
  readonly isLate?: boolean | undefined;
  /** The placements of the lowest prices that were not taken, at most MAX_ALTERNATIVES. */
  readonly alternatives: readonly Alternative[];
}

/** Upper bound of the alternatives that a decision names (P1). */
export const MAX_ALTERNATIVES = 8;

/** Why a request is refused for its targets (overload.ts). */
export interface Rejection {
  /** The rule that refuses: too long a wait for others, or a target that no placement is predicted to meet. */
  readonly reason: 'wait' | 'ttft' | 'tbt' | 'deadline' | 'hopeless';
  /** Prediction of the placement that would have been chosen. */
  readonly prediction: Prediction;
  /** Milliseconds after which the request may be accepted; undefined where waiting does not help. */
  readonly retryAfterMs: number | undefined;
}

/** Decision of a policy: place the request, wait for a change of the cluster, or reject the request. */
export type Decision =
  | ({ readonly kind: 'place'; readonly placement: Placement } & Explanation)
  /** The conductor is asked again when the cluster changes, and after `forMs` at the latest. */
  | { readonly kind: 'wait'; readonly why: 'all are avoided' | 'one is expected'; readonly forMs: number }
  | {
      readonly kind: 'reject';
      readonly code: FailureCode;
      readonly message: string;
      /** Undefined for a request that is not refused for its targets. */
      readonly rejection?: Rejection | undefined;
    };

/** A placement policy. Decisions depend on the arguments alone. */
export interface Policy {
  /** Whether prefill instances may generate too; otherwise, or when undefined, only decode instances may. */
  readonly usesAnyRole?: boolean | undefined;
  /** Decides one question from the snapshot alone; never throws for a full cluster. */
  decide(question: Question, snapshot: ClusterSnapshot): Decision;
}

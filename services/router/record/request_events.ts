/**
 * Events of a request: all that the router's log, its counts, metrics, spans, history and pages know of it. They are emitted as values
 * where they happen, through `RequestTrace.emit`; {@link RequestRecord} is a fold of them. No event quotes a prompt or an answer.
 */
import type { Explanation, Rejection } from '../../../shared/placement/policy.ts';
import type { Report } from '../../../shared/protocol/messages.ts';
import type { PromptMisses } from './miss_reasons.ts';
import type { RequestFacts, RequestIds } from './request_facts.ts';
import type { RequestKind } from './request_kind.ts';

/** Last phase of a request: how it ended. */
export type EndPhase = 'finished' | 'failed' | 'cancelled';

/** The request has come; nothing of it is read but its headers. */
export interface OpenedEvent {
  readonly kind: 'opened';
  readonly id: string;
  readonly requestKind: RequestKind;
  /** Number of the request in the order of their starts at this router, from 1. */
  readonly sequence: number;
  readonly names: RequestIds;
  /** The first sample of the prompt, for a further one (`n`, `best_of`). */
  readonly sampleOf?: { readonly id: string; readonly facts: RequestFacts } | undefined;
  /** Trace id of its spans; undefined without tracing. */
  readonly traceId?: string | undefined;
  /** Start in milliseconds since 1970. */
  readonly startedAtMs: number;
}

/** The request is placed, and an attempt begins. */
export interface PlacedEvent {
  readonly kind: 'placed';
  /** Name of the instance that generates. */
  readonly decode: string;
  /** Reason of the placement, in words. */
  readonly reason: string;
  /** Undefined where no policy chose the placement. */
  readonly explanation?: Explanation | undefined;
  /** Tokens of the prompt whose KV is held somewhere, by the prefix index. */
  readonly heldTokens: number;
  /** Whether tokens are computed before the instance that generates can load them. */
  readonly isPrefilling: boolean;
}

/** State of one prefill of an attempt. */
export interface PrefillEntry {
  readonly name: string;
  readonly readyTokens: number;
  readonly computedTokens: number;
  /** Tokens that the prefill has to compute according to the prefix index; counted until the instance reports what it computes. */
  readonly expectedTokens: number;
  readonly outcome: string;
  readonly report: Report | undefined;
}

/** A prefill has begun, has come further or has ended. Attempts are numbered from 1, prefills of an attempt from 0. */
export interface PrefillEvent {
  readonly kind: 'prefill';
  readonly attempt: number;
  readonly index: number;
  readonly entry: PrefillEntry;
  /** Whether it begins. */
  readonly begins?: boolean | undefined;
  /** Why it is asked again. */
  readonly again?: string | undefined;
  /** Why it has failed, though its blocks were waited for. */
  readonly failure?: string | undefined;
}

/** Where a prompt departs from the earlier sequence that it continues. */
export interface RewrittenText {
  /** Index of the first token that differs. */
  readonly start: number;
  /** Tokens of the full blocks that were the same before `start`. */
  readonly sameTokens: number;
  /** Tokens that would have been cache hits if the text had not been rewritten, those before `start` included. */
  readonly reusableTokens: number;
}

/** The request has ended. */
export interface EndedEvent {
  readonly kind: 'ended';
  readonly phase: EndPhase;
  readonly finishReason: string;
  /** Error that ended the request, when it failed; quotes nothing of the prompt. */
  readonly failure: unknown;
}

/** Something that happened to a request. */
export type RequestEvent = OpenedEvent | StepEvent | EndedEvent;

/** Something that happened to a request on its way. */
export type StepEvent =
  /** More of the request is known. */
  | { readonly kind: 'read'; readonly facts: Partial<RequestFacts> }
  /** Its prompt has token ids, and a placement is sought: the first, or one after a failed attempt. */
  | { readonly kind: 'placing' }
  /** The length of its answer is predicted, or why tokens of its prompt are computed is known. */
  | {
      readonly kind: 'expected';
      readonly outputTokens?: number | undefined;
      readonly misses?: PromptMisses | undefined;
    }
  /** No instance can take it now: it waits for one. */
  | { readonly kind: 'waiting' }
  /** It is refused for its targets. */
  | { readonly kind: 'rejected'; readonly rejection: Rejection | undefined }
  | PlacedEvent
  | PrefillEvent
  /** The instance that generates has no block `block`, nor those after it. */
  | { readonly kind: 'missed'; readonly instance: string; readonly block: number; readonly reason: string }
  /** The first token of an attempt, or an embedding, has come, with the report of its instance. `isFirst`: it is that of the request. */
  | {
      readonly kind: 'firstToken';
      readonly attempt: number;
      readonly report: Report | undefined;
      readonly isFirst: boolean;
    }
  | typeof TOKEN
  | typeof REASONING_TOKEN
  /** An attempt has ended. `outcome`: the message of its failure, or one word. */
  | { readonly kind: 'attempt'; readonly attempt: number; readonly outcome: string }
  /** An instance has failed, and the request goes on elsewhere, with the output tokens that it has. */
  | {
      readonly kind: 'lost';
      readonly instance: string;
      readonly outputTokens?: number | undefined;
      readonly message: string;
    }
  | { readonly kind: 'rewritten'; readonly rewritten: RewrittenText };

/** An output token has come: one value for all, so that a token costs no allocation. */
export const TOKEN = { kind: 'token' } as const;
/** The output token that came last belongs to the reasoning. */
export const REASONING_TOKEN = { kind: 'reasoningToken' } as const;

/** State of the record of a request: all that is known of one prompt, as plain values. */
import type { Prediction, Rejection } from '../../../shared/placement/policy.ts';
import type { PromptMisses } from './miss_reasons.ts';
import type { CountsState } from './request_counts.ts';
import type { EndPhase } from './request_events.ts';
import type { RequestFacts } from './request_facts.ts';
import type { RequestKind } from './request_kind.ts';

/** Phase of a request. Failure tests read the phase to show which stage a fault hit. */
export type RequestPhase =
  | 'tokenizing'
  | 'placing'
  /** Waits for a decode instance that is expected. */
  | 'waiting'
  | 'prefilling'
  | 'loading'
  | 'decoding'
  | EndPhase;

/** Time to first token in milliseconds, by where it was spent; the parts add up to the total. */
export interface MeasuredTtft {
  /** Validation, template, tokens, placement. */
  readonly router: number;
  /** Attempts that were lost before the one that gave the first token. */
  readonly failover: number;
  /** On the decode instance: waiting for device blocks. */
  readonly queue: number;
  /** On the decode instance: waiting for blocks to arrive; a prefill elsewhere happens in here. */
  readonly load: number;
  readonly compute: number;
  readonly transport: number;
}

/** Values that are predicted of a request before it runs. */
export interface Expected {
  /** Tokens of the answer; undefined while the request is not placed. */
  readonly outputTokens: number | undefined;
  /** Prompt tokens that the prefix index reported as held when the request was first placed. */
  readonly heldTokens: number;
  /** Times and hits that the policy expects of the first placement; undefined for policies that predict nothing. */
  readonly placement: Prediction | undefined;
  /** Why the request was refused for its targets; undefined when it was not. */
  readonly rejection: Rejection | undefined;
  /** Why tokens of the prompt are computed, if they are; undefined before the first placement, and for further samples. */
  readonly misses: PromptMisses | undefined;
}

/** How a request has ended. */
interface RequestEnd {
  readonly totalMs: number;
  readonly finishReason: string;
  /** Error that ended the request, when it failed; quotes nothing of the prompt. */
  readonly failure: unknown;
}

/** Times of a request, in ms since its start. */
export interface RequestTimes {
  /** First placement. */
  placedMs: number | undefined;
  /** Last placement. */
  attemptMs: number | undefined;
  ttftMs: number | undefined;
  ttft: MeasuredTtft | undefined;
  tokenMs: number | undefined;
  /** From the last but one token to the last one. */
  sinceTokenMs: number | undefined;
}

/** All that is known of one request, as plain values. Its times are on the router's clock, but for `startedAtMs`. */
export interface RecordState {
  readonly id: string;
  readonly kind: RequestKind;
  /** Id of the first sample, for a further sample of the same prompt (`n`, `best_of`). */
  readonly sampleOf: string | undefined;
  /** Start in milliseconds since 1970. */
  readonly startedAtMs: number;
  /** Number of the request in the order of their starts at this router, from 1. */
  readonly sequence: number;
  readonly startMs: number;
  /** Trace id of the request's own spans. */
  readonly ownTraceId: string | undefined;
  readonly notes: string[];
  readonly times: RequestTimes;
  readonly counts: CountsState;
  facts: RequestFacts;
  phase: RequestPhase;
  expected: Expected;
  end: RequestEnd | undefined;
}

/** Body of `/api/requests/{id}`: one request with its attempts, as the page reads it. Durations are milliseconds. */
import type { Miss, TokenSources } from '../../../shared/protocol/router_api.ts';
import { hasEnded } from './request_filter.ts';

/** Predicted value and the one that came. */
export interface Compared {
  readonly predicted: number;
  readonly real: number;
}

/** Report of one instance about its part of a request. */
export interface StageReport {
  readonly cached_tokens: number;
  readonly fetched_tokens: number;
  readonly computed_tokens: number;
  readonly fetched_bytes: number;
  readonly queue_ms: number;
  readonly load_ms: number;
  readonly compute_ms: number;
}

/** Values that a policy predicts of a placement. */
interface PlacementPrediction {
  readonly ttft_ms: number | null;
  readonly wait_ms: number | null;
  readonly tbt_ms: number | null;
  readonly total_ms: number | null;
  readonly cached_tokens: number | null;
}

/** Price of a placement, its parts, and what is predicted of it. */
export interface Priced {
  readonly price_ms: number | null;
  readonly price_parts_ms: Readonly<Record<string, number | null>> | null;
  readonly prediction: PlacementPrediction | null;
}

/** Placement that was possible and not taken. */
export interface OtherPlacement extends Priced {
  readonly decode: string;
  readonly prefill: string | null;
  readonly second_prefill?: string;
  readonly matched_blocks: number;
  readonly queue_length: number;
}

/** Prefill of an attempt. */
export interface PrefillPart {
  readonly prefill: string;
  readonly ready_tokens: number;
  readonly outcome: string;
  readonly report: StageReport | null;
}

/** Attempt of a request on one decode instance. */
export interface AttemptPart {
  readonly decode: string;
  readonly reason: string;
  readonly outcome: string;
  readonly placement:
    | (Priced & {
        readonly policy: string | null;
        readonly is_late: boolean;
        readonly alternatives: readonly OtherPlacement[];
      })
    | null;
  readonly report: StageReport | null;
  readonly prefills: readonly PrefillPart[];
}

/** Parts of the time to the first token; they add up to it. */
export type TtftBreakdown = Readonly<
  Record<'router' | 'failover' | 'queue' | 'load' | 'compute' | 'transport', number | null>
>;

/** One request with all that the router knows of it. */
export interface RequestDetail {
  /** When the request was read, on the router's clock. */
  readonly as_of?: number;
  readonly id: string;
  readonly client_id: string | null;
  readonly trace_id: string | null;
  readonly endpoint: string;
  readonly sample_of: string | null;
  readonly model?: string | null;
  /** Time of day: ISO 8601, or milliseconds since 1970. */
  readonly started_at: string | number;
  readonly phase: string;
  readonly finish_reason: string | null;
  readonly error: string | null;
  readonly prompt_tokens: number;
  readonly output_tokens: number;
  readonly sources?: TokenSources;
  readonly misses?: readonly Miss[];
  readonly fetched_bytes: number;
  readonly ttft_ms: number | null;
  readonly ttft_parts_ms: TtftBreakdown | null;
  readonly total_ms: number;
  readonly predictions: Readonly<Record<'ttft_ms' | 'tbt_ms' | 'cached_tokens' | 'output_tokens', Compared | null>>;
  readonly targets: Readonly<Record<'ttft_ms' | 'tbt_ms' | 'deadline_ms', number | null>> | null;
  readonly rejection: { readonly reason: string; readonly retry_after_ms: number | null } | null;
  readonly attempts: readonly AttemptPart[];
  readonly notes: readonly string[];
  /** Text or token ids, from a router with `--log-prompts` only. */
  readonly prompt?: string | readonly number[];
  readonly answer?: string | readonly number[];
  /** Sentences that say which of the two is cut. */
  readonly cut?: readonly string[];
}

/** Returns the tokens of the prompt; null where they are not known, because the prompt was refused before it became tokens, or is not there yet. */
export function promptTokens({ prompt_tokens: tokens }: { readonly prompt_tokens: number }): number | null {
  return tokens > 0 ? tokens : null;
}

/** Returns why nothing is known of where the prompt's KV came from, as a sentence. */
export function unknownSources({ phase, sample_of: first }: Pick<RequestDetail, 'phase' | 'sample_of'>): string {
  if (first !== null)
    return 'A further sample starts from the blocks of the first one, whose page says where they came from.';
  return hasEnded({ phase })
    ? 'The request ended before its prompt was computed.'
    : 'Not known yet: the prompt has not been computed.';
}

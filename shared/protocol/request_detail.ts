/** Body of `/api/requests/{id}`: one request with its attempts. Durations are milliseconds. */
import type { Miss, MissReason, TokenSources } from './router_api.ts';

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
  /** Where the tokens were found; null in the report of an instance that does not say it. */
  readonly sources: Omit<TokenSources, 'computed'> | null;
  readonly fetched_bytes: number;
  readonly queue_ms: number;
  readonly load_ms: number;
  readonly compute_ms: number;
}

/** Values that a policy predicts of a placement. */
export interface PlacementPrediction {
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

/** Placement of an attempt, as its policy explains it. */
export interface PlacementPart extends Priced {
  readonly policy: string | null;
  readonly is_late: boolean;
  readonly alternatives: readonly OtherPlacement[];
}

/** Attempt of a request on one decode instance. */
export interface AttemptPart {
  readonly decode: string;
  readonly reason: string;
  readonly outcome: string;
  readonly placement: PlacementPart | null;
  readonly report: StageReport | null;
  readonly prefills: readonly PrefillPart[];
}

/** Parts of the time to the first token; they add up to it. */
export type TtftBreakdown = Readonly<
  Record<'router' | 'failover' | 'queue' | 'load' | 'compute' | 'transport', number | null>
>;

/** Predicted and real values of a request; null where one of both is not known. */
export type PredictionParts = Readonly<
  Record<'ttft_ms' | 'tbt_ms' | 'cached_tokens' | 'output_tokens', Compared | null>
>;

/** Targets of a request, and why it was refused for them. */
export interface TargetParts {
  readonly targets: Readonly<Record<'ttft_ms' | 'tbt_ms' | 'deadline_ms', number | null>> | null;
  readonly rejection: {
    readonly reason: string;
    readonly retry_after_ms: number | null;
    readonly prediction: PlacementPrediction | null;
  } | null;
}

/** Tokens of a prompt by where their KV came from, over all attempts. */
export interface PromptTokenCounts {
  readonly cached: number;
  readonly fetched: number;
  readonly computed: number;
  readonly computed_by_prefill: number;
  readonly computed_by_decode: number;
}

/** Lost cache hits: both keys, or none when no token was lost. */
export interface LostTokens {
  readonly lost_tokens?: number;
  /** Index of the first prompt token that differs from the earlier text. */
  readonly rewritten_from?: number;
}

/** One request with all that the router knows of it, as a list with `view=full` has it too. */
export interface RequestFull extends TargetParts, LostTokens {
  readonly id: string;
  readonly client_id: string | null;
  /** Address from which the client called; null where it is not known. */
  readonly client: string | null;
  /** Names of the client's key and of its tenant; null where the router asks for no keys. */
  readonly key: string | null;
  readonly tenant: string | null;
  readonly trace_id: string | null;
  readonly endpoint: string;
  readonly sample_of: string | null;
  /** Absent until the body has named the model. */
  readonly model?: string | undefined;
  /** Time of day in ISO 8601. */
  readonly started_at: string;
  readonly phase: string;
  readonly finish_reason: string | null;
  readonly error: string | null;
  /** Reason of the last placement, in words. */
  readonly reason: string;
  readonly prompt_tokens: number;
  readonly output_tokens: number;
  readonly tokens: PromptTokenCounts;
  readonly sources: TokenSources;
  readonly miss_tokens: Partial<Record<MissReason, number>>;
  readonly misses: readonly Miss[];
  readonly fetched_bytes: number;
  readonly ttft_ms: number | null;
  readonly ttft_parts_ms: TtftBreakdown | null;
  readonly total_ms: number;
  readonly predictions: PredictionParts;
  readonly attempts: readonly AttemptPart[];
  readonly notes: readonly string[];
}

/** Prompt and answer of a request, from a router with `--log-prompts` only. */
export interface LoggedTexts {
  /** Text or token ids. */
  readonly prompt: string | readonly number[];
  readonly answer: string | readonly number[];
  /** Sentences that say which of the two is cut. */
  readonly cut: readonly string[];
}

/** Body of `/api/requests/{id}`. */
export interface RequestDetail extends RequestFull, Partial<LoggedTexts> {
  /** When the request was read, on the router's clock. */
  readonly as_of: number;
}

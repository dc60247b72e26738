/**
 * Log of requests, for people: `/api/requests`, the dashboard and a response header show what happened to each request. There is
 * one trace per prompt; nothing that serves a request reads the log.
 *
 * All times are durations, measured by this router or by the instance that spent the time. The parts of a TTFT add up to the
 * total, because `transport` is the time that no other part accounts for.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { messageOf } from '../../../shared/base/failure.ts';
import type { SpanContext } from '../../../shared/base/tracing/tracing.ts';
import type { Report } from '../../../shared/protocol/messages.ts';
import type { RequestFull } from '../../../shared/protocol/request_detail.ts';
import type { Prediction, Rejection, Targets } from '../../../shared/placement/policy.ts';
import type { MissTokens, PromptMisses } from './miss_reasons.ts';
import { comparedJson, explanationJson, targetsJson, type ComparedValues } from './explained_placement.ts';
import { inThousandths, partsJson, reportJson, rounded } from './report_json.ts';
import { NO_SOURCES, NO_TOKENS, type AttemptEntry, type RequestCounts } from './request_counts.ts';
import type { RequestKind } from './request_kind.ts';
import type { RequestSpans } from './request_spans.ts';
import { unquoted } from './unquoted.ts';

/** Notes per request (P1). */
const MAX_NOTES = 64;

/** Alternatives to a placement that an older request keeps: the cheapest ones. */
const OLD_ALTERNATIVES = 3;

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
/** Last phase of a request: how it ended. */
export type EndPhase = 'finished' | 'failed' | 'cancelled';

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
interface Expected {
  /** Tokens of the answer; undefined while the request is not placed. */
  outputTokens: number | undefined;
  /** Times and hits that the policy expects of the first placement; undefined for policies that predict nothing. */
  placement: Prediction | undefined;
  targets: Targets | undefined;
  /** Why the request was refused for its targets; undefined when it was not. */
  rejection: Rejection | undefined;
  /** Why tokens of the prompt are computed, if they are; undefined before the first placement, and for further samples. */
  misses: PromptMisses | undefined;
}

/** Who sent a request, and the client's ids of it; undefined where the client sent none. */
interface RequestIds {
  readonly clientId: string | undefined;
  readonly traceId: string | undefined;
  /** Address from which the client calls. */
  readonly address?: string | undefined;
  readonly parent?: SpanContext | undefined;
  /** Tenant of the client; left out or empty where a router has only one. */
  readonly tenant?: string | undefined;
}

/** Trace of one prompt for the request log: phase, timings, attempts and result. */
export class RequestTrace {
  readonly id: string;
  readonly kind: RequestKind;
  /** Served model that the request names; undefined until the body is read. */
  model: string | undefined;
  /** Request id and trace id from the client; undefined where the client sent none. */
  names: RequestIds;
  /** Spans of the request; undefined without tracing. */
  spans: RequestSpans | undefined;
  /** Id of the trace of the first sample, for a further sample of the same prompt (`n`, `best_of`). */
  readonly sampleOf: string | undefined;
  /** Start in milliseconds since 1970. */
  readonly startedAtMs: number;
  /** Number of the request in the order of their starts at this router, from 1. */
  readonly sequence: number;
  readonly #clock: Clock;
  readonly #startMs: number;
  phase: RequestPhase = 'tokenizing';
  promptTokens: number;
  /** Parameters of the request: the upper bound of new tokens, undefined while it is not known, and the samples of the prompt. */
  readonly wanted: { maxTokens: number | undefined; numSamples: number } = { maxTokens: undefined, numSamples: 1 };
  /** Token counts of the attempts; undefined before the prompt runs. */
  counts: RequestCounts | undefined;
  readonly notes: string[] = [];
  ttftMs: number | undefined;
  ttft: MeasuredTtft | undefined;
  totalMs: number | undefined;
  finishReason: string | undefined;
  /** Error that ended the request, when it failed; quotes nothing of the prompt. */
  failure: unknown;
  /** Prompt tokens that the prefix index reported as held when the request was first placed. */
  predictedTokens = 0;
  readonly expected: Expected = {
    ...{ outputTokens: undefined, placement: undefined, targets: undefined, rejection: undefined, misses: undefined },
  };
  #placedMs: number | undefined;
  #attemptMs: number | undefined;

  /** `first` is the trace of the first sample, for a further sample of its prompt. */
  constructor(
    { id, kind, names, sequence }: Pick<RequestTrace, 'id' | 'kind' | 'names' | 'sequence'>,
    clock: Clock,
    first?: RequestTrace,
  ) {
    this.id = id;
    this.sequence = sequence;
    this.kind = kind;
    this.names = names;
    this.sampleOf = first?.id;
    this.model = first?.model;
    this.promptTokens = first?.promptTokens ?? 0;
    this.#clock = clock;
    this.#startMs = clock.nowMs();
    this.startedAtMs = clock.wallMs();
  }

  get endpoint(): string {
    return this.kind.endpoint;
  }

  get elapsedMs(): number {
    return this.#clock.nowMs() - this.#startMs;
  }

  note(text: string): void {
    if (this.notes.length < MAX_NOTES) this.notes.push(`${this.elapsedMs.toFixed(1)} ms: ${text}`);
  }

  /**
   * Records the start of an attempt. `heldTokens`: tokens whose KV is held somewhere, by the prefix index; `prediction`: what the policy
   * expects of the placement.
   */
  placed(heldTokens: number, prediction?: Prediction): void {
    // Only the first placement tests index and policy: later ones follow a failure.
    if (this.#placedMs === undefined) {
      this.predictedTokens = heldTokens;
      this.expected.placement = prediction;
    }
    this.#placedMs ??= this.elapsedMs;
    this.#attemptMs = this.elapsedMs;
  }

  /**
   * Milliseconds from the first placement to the first token, and from one token to the next, of a request that one attempt has served
   * so far; undefined where they are not known.
   */
  get measured(): { readonly ttftMs: number | undefined; readonly tbtMs: number | undefined } {
    const { ttftMs, outputTokens } = this;
    if (ttftMs === undefined || this.attempts.length !== 1) return { ttftMs: undefined, tbtMs: undefined };
    const endMs = this.totalMs ?? this.elapsedMs;
    return {
      ttftMs: ttftMs - (this.#placedMs ?? 0),
      tbtMs: outputTokens > 1 ? (endMs - ttftMs) / (outputTokens - 1) : undefined,
    };
  }

  get attempts(): readonly AttemptEntry[] {
    return this.counts?.attempts ?? [];
  }

  get outputTokens(): number {
    return this.counts?.outputTokens ?? 0;
  }

  /** Predicted values of the request and the real ones, as far as both are known; of the first attempt's times and hits only. */
  get compared(): ComparedValues {
    const { totalMs, outputTokens, expected } = this;
    const prediction = expected.placement;
    const { ttftMs, tbtMs } = this.measured;
    return {
      ttftMs: prediction && ttftMs !== undefined ? { predicted: prediction.ttftMs, real: ttftMs } : undefined,
      tbtMs:
        prediction && tbtMs !== undefined && totalMs !== undefined
          ? { predicted: prediction.tbtMs, real: tbtMs }
          : undefined,
      cachedTokens:
        prediction && ttftMs !== undefined && this.sampleOf === undefined
          ? { predicted: prediction.cachedTokens, real: this.tokens.cached }
          : undefined,
      outputTokens:
        expected.outputTokens !== undefined && (this.finishReason === 'stop' || this.finishReason === 'length')
          ? { predicted: expected.outputTokens, real: outputTokens }
          : undefined,
    };
  }

  /** Records the first token: TTFT and its breakdown. `report` is the decode instance's. */
  firstToken(report: Report | undefined): void {
    const ttftMs = this.elapsedMs;
    const router = this.#placedMs ?? ttftMs;
    const failover = (this.#attemptMs ?? router) - router;
    const { queueMs: queue = 0, loadMs: load = 0, computeMs: compute = 0 } = report ?? {};
    this.spans?.firstToken();
    this.ttftMs = ttftMs;
    this.ttft = {
      router,
      failover,
      queue,
      load,
      compute,
      transport: ttftMs - router - failover - queue - load - compute,
    };
  }

  end(phase: EndPhase, finishReason: string, failure: unknown): void {
    this.phase = phase;
    this.finishReason = finishReason;
    this.failure = unquoted(failure);
    this.totalMs = this.elapsedMs;
    this.spans?.end(this);
  }

  /** Forgets the dearer ones of the placements that were not taken: thousands of requests are kept. */
  thin(): void {
    for (const attempt of this.attempts) {
      const { explanation } = attempt;
      if (!explanation || explanation.alternatives.length <= OLD_ALTERNATIVES) continue;
      attempt.explanation = { ...explanation, alternatives: explanation.alternatives.slice(0, OLD_ALTERNATIVES) };
    }
  }

  /** Computed tokens of the prompt by reason; empty until the prompt was computed. */
  get missTokens(): MissTokens {
    return (this.ttftMs !== undefined && this.expected.misses?.tokens(this.tokens.computed)) || {};
  }

  get tokens(): RequestCounts['tokens'] {
    return this.counts?.tokens ?? NO_TOKENS;
  }

  toJSON(): RequestFull {
    const fetchedBytes = sum(
      this.attempts
        .flatMap(({ report, prefills }) => [report, ...prefills.map((prefill) => prefill.report)])
        .map((report) => report?.fetchedBytes ?? 0),
    );
    return {
      id: this.id,
      client_id: this.names.clientId ?? null,
      client: this.names.address ?? null,
      trace_id: this.names.traceId ?? this.spans?.context.traceId ?? null,
      endpoint: this.endpoint,
      sample_of: this.sampleOf ?? null,
      model: this.model,
      started_at: new Date(this.startedAtMs).toISOString(),
      phase: this.phase,
      finish_reason: this.finishReason ?? null,
      error: this.failure === undefined ? null : messageOf(this.failure),
      reason: this.attempts.at(-1)?.reason ?? '',
      prompt_tokens: this.promptTokens,
      output_tokens: this.outputTokens,
      tokens: this.tokens,
      sources: this.counts?.sources ?? NO_SOURCES,
      ...this.counts?.lost,
      miss_tokens: this.missTokens,
      misses: (this.ttftMs !== undefined && this.expected.misses?.of(this.tokens.computed)) || [],
      fetched_bytes: fetchedBytes,
      ttft_ms: rounded(this.ttftMs),
      ttft_parts_ms: this.ttft ? partsJson(this.ttft) : null,
      total_ms: inThousandths(this.totalMs ?? this.elapsedMs),
      predictions: comparedJson(this.compared),
      ...targetsJson(this.expected),
      attempts: this.attempts.map(({ decode, reason, explanation, outcome, report, prefills }) => ({
        decode,
        reason,
        outcome,
        placement: explanation ? explanationJson(explanation) : null,
        report: report ? reportJson(report) : null,
        prefills: prefills.map((prefill) => ({
          prefill: prefill.name,
          ready_tokens: prefill.readyTokens,
          outcome: prefill.outcome,
          report: prefill.report ? reportJson(prefill.report) : null,
        })),
      })),
      notes: this.notes,
    };
  }

  /** Returns the value of the `x-penstock-request` header: the request and its last attempt as one line of JSON. */
  header(): string {
    const last = this.attempts.at(-1);
    return JSON.stringify({
      id: this.id,
      decode: last?.decode ?? null,
      prefill: last?.prefills.at(-1)?.name ?? null,
      prompt_tokens: this.promptTokens,
      tokens: this.tokens,
      ...this.counts?.lost,
      ttft_ms: rounded(this.ttftMs),
      ttft_parts_ms: this.ttft ? partsJson(this.ttft) : null,
      attempts: this.attempts.length,
    });
  }
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

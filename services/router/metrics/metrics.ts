/** Series of `/metrics` that describe one model's requests: Prometheus text, under vLLM's names where the meaning is the same, so that existing dashboards work. */
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import { Failure } from '../../../shared/base/failure.ts';
import { RejectedFailure } from '../conductor/rejected_failure.ts';
import { errorStatus } from '../openai/errors.ts';
import type { Log } from '../../../shared/base/log.ts';
import { IndexDrift } from '../index_drift.ts';
import type { MembersView } from '../cluster/members_view.ts';
import type { RequestTrace } from '../relay/request_log.ts';
import { PredictionMetrics } from './prediction_metrics.ts';
import { recommendedInstances, RequestDemand } from './recommended_instances.ts';

/** vLLM's histogram buckets, in seconds or tokens, so that quantiles of both compare. */
const LATENCY_BUCKETS = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680];
const TTFT_BUCKETS = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
];
const TOKEN_LATENCY_BUCKETS = [
  0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
];
const TOKEN_BUCKETS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000];

/** Instances of a model, for the number that its requests need. */
export interface ServingInstances {
  readonly nowMs: () => number;
  readonly instances: () => Pick<MembersView, 'all' | 'model'>;
}

/** Prometheus metrics of one model's requests, with their registry. */
export class RouterMetrics {
  /** All series of this model, for `/metrics` and the reference page. */
  readonly registry = new Registry();
  readonly failovers = new Counter({
    name: 'penstock_failovers_total',
    help: 'requests that were continued on another decode instance',
    registers: [this.registry],
  });
  readonly #interToken: readonly Histogram[];
  readonly #perOutputToken: Histogram;
  readonly #ttft: Histogram;
  readonly #endToEnd: Histogram;
  readonly #queue: Histogram;
  readonly #prefill: Histogram;
  readonly #decode: Histogram;
  readonly #inference: Histogram;
  readonly #promptTokens: Counter;
  readonly #promptSizes: Histogram;
  readonly #cachedTokens: Counter;
  readonly #generatedTokens: Counter;
  readonly #generatedSizes: Histogram;
  readonly #maxSizes: Histogram;
  readonly #prefixQueries: Counter;
  readonly #prefixHits: Counter;
  readonly #predictedTokens: Counter;
  readonly #lostTokens = new Counter({
    name: 'penstock_lost_cached_tokens_total',
    help: 'prompt tokens that would have been cached if their client had not rewritten text before them',
    registers: [this.registry],
  });
  readonly #predictions = new PredictionMetrics(this.registry);
  readonly #drift: IndexDrift;
  readonly #demand = new RequestDemand();
  readonly #instances: ServingInstances;
  readonly #ended: Counter<'finished_reason'>;
  readonly #failed: Counter<'reason' | 'status'>;
  readonly #rejected = new Counter({
    name: 'penstock_rejections_total',
    help: 'requests that were refused before anything was computed for them: for their targets (wait, ttft, tbt, deadline, hopeless), or because of max_requests, draining or no_instance',
    labelNames: ['reason'],
    registers: [this.registry],
  });
  readonly #routerSeconds: Histogram;
  /** Failures that were counted already: several callers report the same one. */
  readonly #counted = new WeakSet<object>();

  constructor(modelName: string, log: Log, instances: ServingInstances) {
    this.#instances = instances;
    this.#drift = new IndexDrift((missing) => {
      log.warn({ missing: Number(missing.toFixed(3)) }, 'the prefix index lists blocks that no instance has');
    });
    this.registry.setDefaultLabels({ model_name: modelName });
    const shared = { registers: [this.registry] };
    const histogram = (name: string, help: string, buckets: number[]): Histogram =>
      new Histogram({ name, help, buckets, ...shared });
    const counter = (name: string, help: string): Counter => new Counter({ name, help, ...shared });
    this.#interToken = [
      histogram('vllm:inter_token_latency_seconds', 'time between two tokens', TOKEN_LATENCY_BUCKETS),
      histogram(
        'vllm:time_per_output_token_seconds',
        'time between two tokens, under the older name of vllm:inter_token_latency_seconds',
        TOKEN_LATENCY_BUCKETS,
      ),
    ];
    this.#perOutputToken = histogram(
      'vllm:request_time_per_output_token_seconds',
      'mean time per output token of a request, after the first',
      TOKEN_LATENCY_BUCKETS,
    );
    this.#ttft = histogram('vllm:time_to_first_token_seconds', 'request received to first token', TTFT_BUCKETS);
    this.#endToEnd = histogram('vllm:e2e_request_latency_seconds', 'request received to last token', LATENCY_BUCKETS);
    this.#queue = histogram(
      'vllm:request_queue_time_seconds',
      'waiting for device blocks on the decode instance',
      LATENCY_BUCKETS,
    );
    this.#prefill = histogram(
      'vllm:request_prefill_time_seconds',
      'from device blocks to the first token: blocks computed elsewhere, fetched, and computed here',
      LATENCY_BUCKETS,
    );
    this.#decode = histogram('vllm:request_decode_time_seconds', 'first token to last', LATENCY_BUCKETS);
    this.#inference = histogram('vllm:request_inference_time_seconds', 'prefill and decode', LATENCY_BUCKETS);
    this.#promptSizes = histogram('vllm:request_prompt_tokens', 'prompt tokens of a request', TOKEN_BUCKETS);
    this.#generatedSizes = histogram('vllm:request_generation_tokens', 'generated tokens of a request', TOKEN_BUCKETS);
    this.#maxSizes = histogram(
      'vllm:request_max_num_generation_tokens',
      'tokens that a request allowed at most',
      TOKEN_BUCKETS,
    );
    this.#routerSeconds = histogram(
      'penstock_router_seconds',
      "the router's own part of a TTFT: template, tokens, placement",
      TTFT_BUCKETS,
    );
    this.#promptTokens = counter('vllm:prompt_tokens_total', 'prompt tokens');
    this.#cachedTokens = counter(
      'vllm:prompt_tokens_cached_total',
      'prompt tokens that were not computed for their request',
    );
    this.#generatedTokens = counter('vllm:generation_tokens_total', 'generated tokens');
    this.#prefixQueries = counter('vllm:prefix_cache_queries_total', 'prompt tokens that were looked up in the pool');
    this.#prefixHits = counter('vllm:prefix_cache_hits_total', 'prompt tokens that were found in the pool');
    this.#predictedTokens = counter(
      'penstock_predicted_cached_tokens_total',
      'prompt tokens that the prefix index reported as cached somewhere when their request was placed',
    );
    this.#ended = new Counter({
      name: 'vllm:request_success_total',
      help: 'requests by how they ended',
      labelNames: ['finished_reason'],
      ...shared,
    });
    this.#failed = new Counter({
      name: 'penstock_requests_failed_total',
      help: 'requests that failed or were refused, by reason and HTTP status',
      labelNames: ['reason', 'status'],
      ...shared,
    });
    this.#addGauges();
  }

  #addGauges(): void {
    this.#addDrift();
    this.#addRecommended();
  }

  #addRecommended(): void {
    const [demand, instances, registers] = [this.#demand, this.#instances, [this.registry]];
    new Gauge({
      name: 'penstock_recommended_instances',
      help: "instances that this router's requests of the last minutes need, at 80 % use: for prompts (prefill), for tokens at the pacing target (decode), or any part (both); absent while unknown",
      labelNames: ['role'],
      registers,
      collect() {
        this.reset();
        const view = instances.instances();
        const rates = demand.rates(instances.nowMs());
        const works = view.all().flatMap(({ load }) => load?.work ?? []);
        const found = rates && view.model && recommendedInstances(rates, works, view.model.format.blockSize);
        for (const [role, count] of Object.entries(found ?? {})) this.set({ role }, count as number);
      },
    });
  }

  #addDrift(): void {
    const [drift, registers] = [this.#drift, [this.registry]];
    new Gauge({
      name: 'penstock_index_missing_ratio',
      help: 'share of the tokens promised by the prefix index that no instance had, over the last 256 requests; above 0.1 is an alarm',
      registers,
      collect() {
        this.set(drift.missing);
      },
    });
    new Gauge({
      name: 'penstock_index_alarm',
      help: '1 while penstock_index_missing_ratio is above 0.1: the prefix index promises blocks that no instance has',
      registers,
      collect() {
        this.set(drift.isAlarmed ? 1 : 0);
      },
    });
  }

  /** Whether the prefix index promises blocks that no instance has. */
  get isIndexAlarmed(): boolean {
    return this.#drift.isAlarmed;
  }

  interToken(seconds: number): void {
    for (const histogram of this.#interToken) histogram.observe(seconds);
  }

  /** Counts a request that failed or was refused; one error object counts once, however often it is reported. */
  failed(error: unknown): void {
    if (typeof error === 'object' && error !== null) {
      if (this.#counted.has(error)) return;
      this.#counted.add(error);
    }
    const status = String(errorStatus(error));
    if (error instanceof RejectedFailure) this.#rejected.inc({ reason: error.reason });
    this.#failed.inc({ reason: error instanceof Failure ? error.code : `http_${status}`, status });
  }

  /** Records a completion that ended in any way. Requests outside `/v1/` and requests that were never placed are ignored. */
  observeRequest(trace: RequestTrace): void {
    // Requests refused before placement count as failed, not as requests of zero length.
    if (!trace.endpoint.startsWith('/v1/') || trace.attempts.length === 0) return;
    this.#ended.inc({ finished_reason: trace.finishReason ?? 'unknown' });
    const { ttft, ttftMs, totalMs = 0, outputTokens } = trace;
    this.#endToEnd.observe(totalMs / 1_000);
    // The prompt of several samples is counted with the first of them.
    const isFirst = trace.sampleOf === undefined;
    const promptTokens = isFirst ? trace.promptTokens : 0;
    this.#promptSizes.observe(trace.promptTokens);
    const isEmbedding = trace.endpoint === '/v1/embeddings';
    if (!isEmbedding) this.#generatedSizes.observe(outputTokens);
    if (trace.maxTokens !== undefined) this.#maxSizes.observe(trace.maxTokens);
    this.#promptTokens.inc(promptTokens);
    this.#cachedTokens.inc(trace.tokens.cached);
    this.#generatedTokens.inc(outputTokens);
    const cachedTokens = Math.min(promptTokens, trace.tokens.cached);
    this.#demand.ended({ promptTokens, cachedTokens, outputTokens }, this.#instances.nowMs());
    this.#lostTokens.inc(trace.counts?.lost.lost_tokens ?? 0);
    if (ttftMs === undefined || !ttft) return;
    this.#prefixQueries.inc(promptTokens);
    this.#prefixHits.inc(trace.tokens.cached);
    const { predictedTokens, attempts } = trace;
    this.#predictedTokens.inc(predictedTokens);
    // Skip requests with a failover: blocks lost with the instance are no error of the index.
    if (attempts.length === 1 && isFirst) this.#drift.observe(predictedTokens, trace.tokens.cached);
    this.#predictions.observe(trace.compared);
    // An embedding has no tokens whose times could be compared.
    if (isEmbedding) return;
    const [prefillMs, decodeMs] = [ttft.load + ttft.compute, totalMs - ttftMs];
    this.#ttft.observe(ttftMs / 1_000);
    this.#routerSeconds.observe(ttft.router / 1_000);
    this.#queue.observe(ttft.queue / 1_000);
    this.#prefill.observe(prefillMs / 1_000);
    this.#decode.observe(decodeMs / 1_000);
    this.#inference.observe((prefillMs + decodeMs) / 1_000);
    this.#perOutputToken.observe(outputTokens > 1 ? decodeMs / 1_000 / (outputTokens - 1) : 0);
  }

  text(): Promise<string> {
    return this.registry.metrics();
  }
}

/** Series of `/metrics` that describe one model's requests: Prometheus text, under vLLM's names where the meaning is the same, so that existing dashboards work. */
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import { errorStatus, Failure } from '../../../shared/base/failure.ts';
import { RejectedFailure } from '../conductor/rejected_failure.ts';
import type { Log } from '../../../shared/base/log.ts';
import { IndexDrift } from './index_drift.ts';
import type { MembersView } from '../../../shared/placement/members_view.ts';
import type { RequestTrace, MeasuredTtft } from '../record/request_log.ts';
import { PredictionMetrics } from './prediction_metrics.ts';
import { promptShares, type PromptShare } from './prompt_shares.ts';
import { recommendedInstances, RequestDemand } from './recommended_instances.ts';
import { RequestSeries, ttftBuckets, type EngineValues } from './request_series.ts';

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
  readonly #series: RequestSeries;
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
    this.#series = new RequestSeries(this.registry);
    const shared = { registers: [this.registry] };
    this.#routerSeconds = new Histogram({
      name: 'penstock_router_seconds',
      help: "the router's own part of a TTFT: template, tokens, placement",
      buckets: [...ttftBuckets],
      ...shared,
    });
    this.#predictedTokens = new Counter({
      name: 'penstock_predicted_cached_tokens_total',
      help: 'prompt tokens that the prefix index reported as cached somewhere when their request was placed',
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

  /** Records the time between two tokens of a request, in seconds; `engine` is the instance that generates them. */
  interToken(engine: string, seconds: number): void {
    this.#series.of(engine).observe('interToken', seconds);
  }

  /** Instances on which requests have ended, with the router time, in ms, of the last one. */
  ended(): Iterable<readonly [engine: string, endedMs: number]> {
    return this.#series.ended();
  }

  /** Whether the prefix index promises blocks that no instance has. */
  get isIndexAlarmed(): boolean {
    return this.#drift.isAlarmed;
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

  /** Records a completion that ended in any way. Requests that ask no engine, and those that were never placed, are ignored. */
  observeRequest(trace: RequestTrace): void {
    const { attempts, counts, ttft, ttftMs, outputTokens } = trace;
    // Requests refused before placement count as failed, not as requests of zero length.
    const last = attempts.at(-1);
    if (trace.kind.counts === 'none' || !last || !counts) return;
    const engine = this.#series.of(last.decode);
    engine.endedMs = this.#instances.nowMs();
    observeSizes(engine, trace);
    // The prompt of several samples is counted with the first of them.
    const isFirst = trace.sampleOf === undefined;
    const promptTokens = isFirst ? trace.promptTokens : 0;
    const cachedTokens = Math.min(promptTokens, trace.tokens.cached);
    this.#demand.ended({ promptTokens, cachedTokens, outputTokens }, engine.endedMs);
    this.#lostTokens.inc(counts.lost.lost_tokens ?? 0);
    if (ttftMs === undefined || !ttft) return;
    if (isFirst) {
      for (const share of promptShares(counts)) countShare(this.#series.of(share.engine), share);
      engine.observe('computedSizes', trace.tokens.computed);
      this.#predictedTokens.inc(trace.predictedTokens);
      // Skip requests with a failover: blocks lost with the instance are no error of the index.
      if (attempts.length === 1) this.#drift.observe(trace.predictedTokens, trace.tokens.cached);
    }
    this.#predictions.observe(trace.compared);
    // An embedding has no tokens whose times could be compared.
    if (isEmbedding(trace)) return;
    this.#routerSeconds.observe(ttft.router / 1_000);
    observeTimes(engine, trace, { ...ttft, ttftMs });
  }

  text(): Promise<string> {
    return this.registry.metrics();
  }
}

function isEmbedding({ kind }: RequestTrace): boolean {
  return kind.counts === 'embedding';
}

/** Records how a request ended, and its sizes in tokens. */
function observeSizes(engine: EngineValues, trace: RequestTrace): void {
  const { finishReason = 'error', totalMs = 0, outputTokens } = trace;
  const { maxTokens, numSamples } = trace.wanted;
  engine.incOf('ended', finishReason, 1);
  engine.observe('endToEnd', totalMs / 1_000);
  engine.observe('promptSizes', trace.promptTokens);
  engine.inc('generatedTokens', outputTokens);
  if (!isEmbedding(trace)) engine.observe('generatedSizes', outputTokens);
  if (maxTokens !== undefined) {
    engine.observe('maxSizes', maxTokens);
    engine.observe('maxTokens', maxTokens);
  }
  if (trace.sampleOf === undefined) engine.observe('samples', numSamples);
}

/** Counts the tokens of a prompt that one instance served, by source and tier. */
function countShare(engine: EngineValues, { computed, cached }: PromptShare): void {
  const { device, dram, instance, store_dram: storeDram, store_disk: storeDisk } = cached;
  const external = dram + instance + storeDram + storeDisk;
  engine.inc('promptTokens', computed + device + external);
  engine.inc('cachedTokens', device + external);
  engine.inc('prefixQueries', computed + device + external);
  engine.inc('prefixHits', device);
  engine.inc('externalQueries', computed + external);
  engine.inc('externalHits', external);
  engine.incOf('bySource', 'local_compute', computed);
  engine.incOf('bySource', 'local_cache_hit', device);
  engine.incOf('bySource', 'external_kv_transfer', external);
  engine.incOf('cachedBySource', 'device', device);
  engine.incOf('cachedBySource', 'host', dram);
  engine.incOf('cachedBySource', 'p2p', instance);
  engine.incOf('cachedBySource', 'disk', storeDisk);
  engine.incOf('cachedBySource', 'external_unspecified', storeDram);
}

/** Records the times of a request that has generated a token. */
function observeTimes(
  engine: EngineValues,
  { totalMs = 0, outputTokens }: RequestTrace,
  { ttftMs, queue, load, compute }: MeasuredTtft & { readonly ttftMs: number },
): void {
  const [prefillMs, decodeMs] = [load + compute, totalMs - ttftMs];
  engine.observe('ttft', ttftMs / 1_000);
  engine.observe('queue', queue / 1_000);
  engine.observe('prefill', prefillMs / 1_000);
  engine.observe('decode', decodeMs / 1_000);
  engine.observe('inference', (prefillMs + decodeMs) / 1_000);
  engine.observe('perOutputToken', outputTokens > 1 ? decodeMs / 1_000 / (outputTokens - 1) : 0);
}

/** Series of `/metrics` that describe one model's requests: Prometheus text, under vLLM's names where the meaning is the same, so that existing dashboards work. */
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import { errorStatus, Failure } from '../../../shared/base/failure.ts';
import { RejectedFailure } from '../conductor/rejected_failure.ts';
import type { Log } from '../../../shared/base/log.ts';
import { IndexDrift } from './index_drift.ts';
import type { MembersView } from '../../../shared/placement/members_view.ts';
import type { RequestEvent } from '../record/request_events.ts';
import type { RequestListener } from '../record/request_listener.ts';
import type { RequestRecord } from '../record/request_record.ts';
import type { MeasuredTtft } from '../record/request_state.ts';
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
export class RouterMetrics implements RequestListener {
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
    help: 'requests that were refused before anything was computed for them: for their targets (wait, ttft, tbt, deadline, hopeless), or because of max_requests, draining, no_instance or a limit of their tenant (rate_limit)',
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

  on(record: RequestRecord, event: RequestEvent): void {
    if (event.kind === 'token') this.#token(record);
    else if (event.kind === 'ended') this.#ended(record);
  }

  /** Records the time between two tokens of a request, at the instance that generates them. */
  #token({ sinceTokenMs, counts: { attempts } }: RequestRecord): void {
    if (sinceTokenMs !== undefined)
      this.#series.of(attempts.at(-1)?.decode ?? '').observe('interToken', sinceTokenMs / 1_000);
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
  #ended(record: RequestRecord): void {
    const { counts, expected, facts, ttft, ttftMs } = record;
    const { attempts, tokens } = counts;
    // Requests refused before placement count as failed, not as requests of zero length.
    const last = attempts.at(-1);
    if (record.kind.counts === 'none' || !last) return;
    const engine = this.#series.of(last.decode);
    engine.endedMs = this.#instances.nowMs();
    observeSizes(engine, record);
    // The prompt of several samples is counted with the first of them.
    const isFirst = record.sampleOf === undefined;
    const promptTokens = isFirst ? facts.promptTokens : 0;
    const cachedTokens = Math.min(promptTokens, tokens.cached);
    this.#demand.ended({ promptTokens, cachedTokens, outputTokens: counts.outputTokens }, engine.endedMs);
    this.#lostTokens.inc(counts.lost.lost_tokens ?? 0);
    if (ttftMs === undefined || !ttft) return;
    if (isFirst) {
      for (const share of promptShares(counts)) countShare(this.#series.of(share.engine), share);
      engine.observe('computedSizes', tokens.computed);
      this.#predictedTokens.inc(expected.heldTokens);
      // Skip requests with a failover: blocks lost with the instance are no error of the index.
      if (attempts.length === 1) this.#drift.observe(expected.heldTokens, tokens.cached);
    }
    this.#predictions.observe(record.compared);
    // An embedding has no tokens whose times could be compared.
    if (isEmbedding(record)) return;
    this.#routerSeconds.observe(ttft.router / 1_000);
    observeTimes(engine, record, { ...ttft, ttftMs });
  }

  text(): Promise<string> {
    return this.registry.metrics();
  }
}

function isEmbedding({ kind }: RequestRecord): boolean {
  return kind.counts === 'embedding';
}

/** Records how a request ended, and its sizes in tokens. */
function observeSizes(engine: EngineValues, record: RequestRecord): void {
  const { finishReason = 'error', totalMs = 0, facts } = record;
  const { maxTokens, numSamples, promptTokens } = facts;
  const { outputTokens } = record.counts;
  engine.incOf('ended', finishReason, 1);
  engine.observe('endToEnd', totalMs / 1_000);
  engine.observe('promptSizes', promptTokens);
  engine.inc('generatedTokens', outputTokens);
  if (!isEmbedding(record)) engine.observe('generatedSizes', outputTokens);
  if (maxTokens !== undefined) {
    engine.observe('maxSizes', maxTokens);
    engine.observe('maxTokens', maxTokens);
  }
  if (record.sampleOf === undefined) engine.observe('samples', numSamples);
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
  { totalMs = 0, counts: { outputTokens } }: RequestRecord,
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

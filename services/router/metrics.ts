/** `/metrics`: Prometheus text, under vLLM's names where the meaning is the same, so that existing dashboards work. */
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { ClusterView } from './cluster_view.ts';
import type { PrefixIndex } from './prefix_index.ts';
import type { RequestRecord } from './request_log.ts';

const LATENCY_BUCKETS = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
];
const TOKEN_LATENCY_BUCKETS = [
  0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
];
const TOKEN_BUCKETS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000];

export class RouterMetrics {
  readonly #registry = new Registry();
  readonly interTokenLatency: Histogram;
  readonly failovers: Counter;
  readonly #ttft: Histogram;
  readonly #endToEnd: Histogram;
  readonly #promptTokens: Counter;
  readonly #promptSizes: Histogram;
  readonly #cachedTokens: Counter;
  readonly #generatedTokens: Counter;
  readonly #generatedSizes: Histogram;
  readonly #ended: Counter<'finished_reason'>;
  readonly #routerSeconds: Histogram;

  constructor(modelName: string, view: ClusterView, index: PrefixIndex) {
    this.#registry.setDefaultLabels({ model_name: modelName });
    const shared = { registers: [this.#registry] };
    const histogram = (name: string, help: string, buckets: number[]): Histogram =>
      new Histogram({ name, help, buckets, ...shared });
    const counter = (name: string, help: string): Counter => new Counter({ name, help, ...shared });
    this.interTokenLatency = histogram(
      'vllm:inter_token_latency_seconds',
      'time between two tokens',
      TOKEN_LATENCY_BUCKETS,
    );
    this.#ttft = histogram('vllm:time_to_first_token_seconds', 'request received to first token', LATENCY_BUCKETS);
    this.#endToEnd = histogram('vllm:e2e_request_latency_seconds', 'request received to last token', LATENCY_BUCKETS);
    this.#promptSizes = histogram('vllm:request_prompt_tokens', 'prompt tokens of a request', TOKEN_BUCKETS);
    this.#generatedSizes = histogram('vllm:request_generation_tokens', 'generated tokens of a request', TOKEN_BUCKETS);
    this.#routerSeconds = histogram(
      'penstock_router_seconds',
      "the router's own part of a TTFT: template, tokens, placement",
      LATENCY_BUCKETS,
    );
    this.#promptTokens = counter('vllm:prompt_tokens_total', 'prompt tokens');
    this.#cachedTokens = counter(
      'vllm:prompt_tokens_cached_total',
      'prompt tokens that were not computed for their request',
    );
    this.#generatedTokens = counter('vllm:generation_tokens_total', 'generated tokens');
    this.failovers = counter('penstock_failovers_total', 'requests that went on on another decode instance');
    this.#ended = new Counter({
      name: 'vllm:request_success_total',
      help: 'requests by how they ended',
      labelNames: ['finished_reason'],
      ...shared,
    });
    this.#addGauges(view, index);
  }

  #addGauges(view: ClusterView, index: PrefixIndex): void {
    const gauge = (
      name: string,
      help: string,
      labelNames: string[],
      collect: (set: (labels: Record<string, string>, value: number) => void) => void,
    ): void => {
      new Gauge({
        name,
        help,
        labelNames,
        registers: [this.#registry],
        collect() {
          this.reset();
          collect((labels, value) => {
            this.set(labels, value);
          });
        },
      });
    };
    const perInstance =
      (value: (load: NonNullable<ReturnType<ClusterView['all']>[number]['load']>) => number) =>
      (set: (labels: Record<string, string>, value: number) => void): void => {
        for (const { member, load } of view.all())
          if (load) set({ engine: member.name, role: member.role }, value(load));
      };
    gauge(
      'vllm:num_requests_running',
      'sequences that hold device blocks',
      ['engine', 'role'],
      perInstance(({ running }) => running),
    );
    gauge(
      'vllm:num_requests_waiting',
      'sequences that wait',
      ['engine', 'role'],
      perInstance(({ waiting }) => waiting),
    );
    gauge(
      'penstock_preemptions',
      'preemptions since the start of the instance',
      ['engine', 'role'],
      perInstance(({ preemptions }) => preemptions),
    );
    gauge(
      'penstock_step_seconds',
      'duration of the last step',
      ['engine', 'role'],
      perInstance(({ lastStepMs }) => lastStepMs / 1_000),
    );
    gauge('penstock_instances', 'processes in the cluster', ['role'], (set) => {
      for (const role of ['prefill', 'decode', 'store'] as const) set({ role }, view.of(role).length);
    });
    gauge('penstock_index_keys', 'block keys in the prefix index', [], (set) => {
      set({}, index.size);
    });
    const tierValues = ['blocks', 'bytes', 'hits', 'misses', 'evictions'] as const;
    for (const value of tierValues) {
      gauge(`penstock_tier_${value}`, `${value} of a tier`, ['engine', 'role', 'tier'], (set) => {
        for (const { member, load } of view.all()) {
          for (const [tier, stats] of Object.entries(load?.tiers ?? {}))
            set({ engine: member.name, role: member.role, tier }, stats[value]);
        }
      });
    }
  }

  observeRequest(record: RequestRecord): void {
    this.#ended.inc({ finished_reason: record.finishReason ?? 'unknown' });
    if (record.ttftMs !== undefined) this.#ttft.observe(record.ttftMs / 1_000);
    if (record.ttft) this.#routerSeconds.observe(record.ttft.router / 1_000);
    if (record.totalMs !== undefined) this.#endToEnd.observe(record.totalMs / 1_000);
    this.#promptSizes.observe(record.promptTokens);
    this.#generatedSizes.observe(record.outputTokens);
    this.#promptTokens.inc(record.promptTokens);
    this.#cachedTokens.inc(record.tokens.cached);
    this.#generatedTokens.inc(record.outputTokens);
  }

  text(): Promise<string> {
    return this.#registry.metrics();
  }

  get contentType(): string {
    return this.#registry.contentType;
  }
}

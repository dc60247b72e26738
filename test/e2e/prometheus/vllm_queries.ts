/**
 * The queries of vLLM's Grafana dashboards (November 2026: `examples/observability`), written again from what they ask: dashboard, panel, expression.
 * A panel with several percentiles of one histogram has a query for each. `without` says which series a cluster does not have, and why.
 */

/** A query with its place. */
export interface DashboardQuery {
  readonly dashboard: string;
  readonly panel: string;
  readonly expr: string;
}

const ALL = 'job=~"$job", model_name=~"$model_name", instance=~"$instance"';
const ENGINE = `${ALL}, engine=~"$engine"`;
const HTTP = 'job=~"$job", instance=~"$instance"';
const DEPLOYMENT = 'model_name=~"$Deployment_id"';
const ONE = 'model_name="$model_name"';
const RATE = '$__rate_interval';

const rate = (name: string, selector: string, range = RATE): string => `rate(vllm:${name}{${selector}}[${range}])`;
const sum = (name: string, selector: string, by = '', range = RATE): string =>
  `sum${by}(${rate(name, selector, range)})`;
const quantile = (p: number, name: string, selector: string, by = 'le', range = RATE): string =>
  `histogram_quantile(${p}, sum by (${by}) (${rate(`${name}_bucket`, selector, range)}))`;
const share = (part: string, whole: string, selector: string, by = ''): string =>
  `${sum(part, selector, by)} / (${sum(whole, selector, by)} > 0)`;
const mean = (name: string, selector: string, by = ''): string => share(`${name}_sum`, `${name}_count`, selector, by);
/** The four lines of a panel of times or sizes. */
const spread = (name: string, selector: string): string[] => [
  ...[0.5, 0.95, 0.99].map((p) => quantile(p, name, selector)),
  mean(name, selector),
];
const MODEL = ' by (model_name) ';
const BY_ENGINE = ' by (instance, engine) ';
const BY_INSTANCE = ' by (instance) ';
const AT = ' by (model_name, instance) ';

type Panels = Readonly<Record<string, readonly string[]>>;

const HITS = ['prefix_cache_hits_total', 'prefix_cache_queries_total'] as const;
const EXTERNAL = ['external_prefix_cache_hits_total', 'external_prefix_cache_queries_total'] as const;
const IMAGES = ['mm_cache_hits_total', 'mm_cache_queries_total'] as const;
const bySource = (selector: string): string[] =>
  ['local_compute', 'local_cache_hit', 'external_kv_transfer'].map((source) =>
    sum('prompt_tokens_by_source_total', `${selector}, source="${source}"`),
  );
const queue = (selector: string): string[] => [
  `sum(vllm:num_requests_running{${selector}})`,
  `sum(vllm:num_requests_waiting_by_reason{${selector}, reason="capacity"})`,
  `sum(vllm:num_requests_waiting_by_reason{${selector}, reason="deferred"})`,
];
const times = ['time_to_first_token', 'inter_token_latency', 'e2e_request_latency'].map((name) => `${name}_seconds`);

const overview: Panels = {
  'Requests / s': [sum('request_success_total', ALL)],
  'Input tok/s': [sum('prompt_tokens_total', ALL)],
  'Output tok/s': [sum('generation_tokens_total', ALL)],
  '5xx ratio': [
    `(sum(rate(http_requests_total{${HTTP}, status="5xx"}[${RATE}])) or vector(0)) / (sum(rate(http_requests_total{${HTTP}}[${RATE}])) > 0)`,
  ],
  'TTFT p95, ITL p95, E2E p95': times.map((name) => quantile(0.95, name, ALL)),
  Unreachable: ['count(up{job=~"$job"} == 0) or vector(0)'],
  Engines: [`count(vllm:num_requests_running{${ALL}})`],
  'Running, Waiting': [`sum(vllm:num_requests_running{${ALL}})`, `sum(vllm:num_requests_waiting{${ALL}})`],
  'KV cache': ['max', 'avg', 'min'].map((how) => `${how}(vllm:kv_cache_usage_perc{${ALL}})`),
  Preemptions: [sum('num_preemptions_total', ALL)],
  'Prefix hits': [share(...HITS, ALL)],
  'TTFT SLO': [
    `sum(${rate('time_to_first_token_seconds_bucket', `${ALL}, le="$ttft_slo"`)}) / (${sum('time_to_first_token_seconds_count', ALL)} > 0)`,
  ],
  'TPOT SLO': [
    `sum(${rate('request_time_per_output_token_seconds_bucket', `${ALL}, le="$tpot_slo"`)}) / (${sum('request_time_per_output_token_seconds_count', ALL)} > 0)`,
  ],
  'Per-model summary': [
    `count by (model_name) (group by (model_name, instance) (last_over_time(vllm:num_requests_running{${ALL}}[$__range])))`,
    sum('request_success_total', ALL, MODEL, '$__range'),
    sum('generation_tokens_total', ALL, MODEL, '$__range'),
    ...times.map((name) => quantile(0.95, name, ALL, 'le, model_name', '$__range')),
    `${sum('request_success_total', `${ALL}, finished_reason="error"`, MODEL, '$__range')} / (${sum('request_success_total', ALL, MODEL, '$__range')} > 0)`,
    `max by (model_name) (max_over_time(vllm:kv_cache_usage_perc{${ALL}}[$__range]))`,
    `round(sum by (model_name) (increase(vllm:num_preemptions_total{${ALL}}[$__range])))`,
  ],
  'Time to first token (TTFT)': spread('time_to_first_token_seconds', ALL),
  'Inter-token latency (ITL)': spread('inter_token_latency_seconds', ALL),
  'Time per output token (TPOT)': spread('request_time_per_output_token_seconds', ALL),
  'End-to-end latency': spread('e2e_request_latency_seconds', ALL),
  'Queue time': spread('request_queue_time_seconds', ALL),
  'Mean time per request phase': ['queue', 'prefill', 'decode'].map((phase) =>
    mean(`request_${phase}_time_seconds`, ALL),
  ),
  'TTFT, inter-token and end-to-end latency distribution': times.map((name) => sum(`${name}_bucket`, ALL, ' by (le) ')),
  'Token throughput': [sum('prompt_tokens_total', ALL, MODEL), sum('generation_tokens_total', ALL, MODEL)],
  'Finished requests by reason': [sum('request_success_total', ALL, ' by (finished_reason) ')],
  'Scheduler queue': queue(ALL),
  'Tokens per engine step': [
    quantile(0.5, 'iteration_tokens_total', ALL),
    quantile(0.99, 'iteration_tokens_total', ALL),
    mean('iteration_tokens_total', ALL),
  ],
  'Cache hit rates': [share(...HITS, ALL), share(...EXTERNAL, ALL), share(...IMAGES, ALL)],
  'Prompt tokens by source': bySource(ALL),
  'Prompt length': spread('request_prompt_tokens', ALL),
  'Output length': spread('request_generation_tokens', ALL),
  'Finish reason share': [
    `${sum('request_success_total', ALL, ' by (finished_reason) ')} / ignoring (finished_reason) group_left () (${sum('request_success_total', ALL)} > 0)`,
  ],
  'Prompt and output length distribution': ['prompt', 'generation'].map(
    (what) =>
      `sum by (le) (increase(vllm:request_${what}_tokens_bucket{${ALL}}[$__range])) / on () group_left () (sum(increase(vllm:request_${what}_tokens_count{${ALL}}[$__range])) > 0)`,
  ),
  'HTTP requests by status': [`sum by (status) (rate(http_requests_total{${HTTP}}[${RATE}]))`],
  'HTTP requests by endpoint': [`sum by (handler) (rate(http_requests_total{${HTTP}}[${RATE}]))`],
  'HTTP mean duration by endpoint': [
    `sum by (handler) (rate(http_request_duration_seconds_sum{${HTTP}}[${RATE}])) / (sum by (handler) (rate(http_request_duration_seconds_count{${HTTP}}[${RATE}])) > 0)`,
  ],
};

const nixl = ['nixl_xfer_time_seconds', 'nixl_bytes_transferred', 'nixl_post_time_seconds', 'nixl_num_descriptors'];
const kvCache: Panels = {
  'Max, Mean KV cache usage': ['max', 'avg'].map((how) => `${how}(vllm:kv_cache_usage_perc{${ENGINE}})`),
  'Prefix cache hit rate': [share(...HITS, ENGINE), share(...HITS, ENGINE, BY_ENGINE)],
  'Cached prompt tokens': [share('prompt_tokens_cached_total', 'prompt_tokens_total', ENGINE)],
  'Preemptions / s': [sum('num_preemptions_total', ENGINE), sum('num_preemptions_total', ENGINE, BY_ENGINE)],
  'KV cache usage by engine': [`max${BY_ENGINE}(vllm:kv_cache_usage_perc{${ENGINE}})`],
  'Scheduler queue, Waiting for capacity': queue(ENGINE),
  'Prompt tokens by source': bySource(ENGINE),
  'Cached prompt tokens by tier': [sum('prompt_tokens_cached_by_source_total', ENGINE, ' by (source) ')],
  'Prompt and computed tokens per request': [
    mean('request_prompt_tokens', ENGINE),
    mean('request_prefill_kv_computed_tokens', ENGINE),
  ],
  'Cache hit rates': [share(...HITS, ENGINE), share(...EXTERNAL, ENGINE), share(...IMAGES, ENGINE)],
  'Block lifetime': spread('kv_block_lifetime_seconds', ENGINE),
  'Idle time before eviction': spread('kv_block_idle_before_evict_seconds', ENGINE),
  'Block reuse gap': spread('kv_block_reuse_gap_seconds', ENGINE),
  'Requests waiting on KV loads': [`sum by (stage) (vllm:num_requests_kv_fetch_by_stage{${ENGINE}})`],
  'NIXL transfers': [
    ...nixl.flatMap((name) => spread(name, ENGINE)),
    ...['failed_transfers', 'failed_notifications', 'kv_expired_reqs', 'notifications_after_expiry'].map((name) =>
      sum(`nixl_num_${name}_total`, ENGINE),
    ),
  ],
  'KV offloading': [
    ...['load_bytes', 'store_bytes', 'allocation_failure', 'stores_skipped'].map((name) =>
      sum(`kv_offload_${name}_total`, ENGINE),
    ),
    ...['load', 'store'].map((way) => share(`kv_offload_${way}_bytes_total`, `kv_offload_${way}_time_total`, ENGINE)),
    ...['load', 'store'].map((way) => mean(`kv_offload_${way}_size`, ENGINE)),
    ...['sync', 'async'].map((how) => quantile(0.99, `kv_offload_lookup_${how}_delay_seconds`, ENGINE)),
    ...['usage', 'write_usage', 'read_usage'].map((use) => `max(vllm:kv_offload_cpu_cache_${use}_perc{${ENGINE}})`),
  ],
  'Simple CPU offload': [
    sum('simple_kv_offload_save_outcomes_total', ENGINE, ' by (outcome) '),
    sum('simple_kv_offload_load_blocks_total', ENGINE),
    ...['used_blocks', 'pending_store_blocks'].map((name) => `sum(vllm:simple_kv_offload_${name}{${ENGINE}})`),
  ],
};

const operations = (part: string): string[] =>
  ['sleep_mode', 'rl_weight_update'].map(
    (name) => `last_over_time(vllm:${name}_operation_duration_seconds_${part}{${HTTP}}[$__range])`,
  );
const instances: Panels = {
  'Instances (last 5 minutes)': [
    `count${AT}(vllm:num_requests_running{${ENGINE}})`,
    `sum${AT}(vllm:num_requests_running{${ENGINE}})`,
    `sum${AT}(vllm:num_requests_waiting{${ENGINE}})`,
    `max${AT}(vllm:kv_cache_usage_perc{${ENGINE}})`,
    ...['request_success_total', 'generation_tokens_total', 'num_preemptions_total'].map((name) =>
      sum(name, ENGINE, AT, '5m'),
    ),
    ...times.slice(0, 2).map((name) => quantile(0.95, name, ENGINE, 'le, model_name, instance', '5m')),
    `max${AT}((time() - process_start_time_seconds{${HTTP}}) * on (job, instance) group_left (model_name) group by (job, instance, model_name) (vllm:num_requests_running{${ENGINE}}))`,
  ],
  'Running, Waiting requests, KV cache usage': [
    `sum${BY_ENGINE}(vllm:num_requests_running{${ENGINE}})`,
    `sum${BY_ENGINE}(vllm:num_requests_waiting{${ENGINE}})`,
    `max${BY_ENGINE}(vllm:kv_cache_usage_perc{${ENGINE}})`,
  ],
  'Requests / s': [sum('request_success_total', ENGINE, BY_INSTANCE)],
  'Input, Output tokens / s': ['prompt_tokens_total', 'generation_tokens_total'].map((name) =>
    sum(name, ENGINE, BY_ENGINE),
  ),
  'TTFT p95, Inter-token latency p95, E2E latency p95': times.map((name) =>
    quantile(0.95, name, ENGINE, 'le, instance'),
  ),
  'Mean queue time': [mean('request_queue_time_seconds', ENGINE, BY_INSTANCE)],
  'Engine steps / s': [sum('iteration_tokens_total_count', ENGINE, BY_ENGINE)],
  'Mean tokens per engine step': [mean('iteration_tokens_total', ENGINE, BY_ENGINE)],
  'Preemptions / s': [sum('num_preemptions_total', ENGINE, BY_ENGINE)],
  'Waiting requests by reason': [`sum by (instance, engine, reason) (vllm:num_requests_waiting_by_reason{${ENGINE}})`],
  'Prefix cache hit rate': [share(...HITS, ENGINE, BY_ENGINE)],
  'CPU usage': [`sum by (instance) (rate(process_cpu_seconds_total{${HTTP}}[${RATE}]))`],
  'Resident memory': [`sum by (instance) (process_resident_memory_bytes{${HTTP}})`],
  'Open file descriptors': [
    `sum by (instance) (process_open_fds{${HTTP}}) / sum by (instance) (process_max_fds{${HTTP}})`,
  ],
  'Cache configuration': [`vllm:cache_config_info{${HTTP}, engine=~"$engine"}`],
  'LoRA adapters': [`topk by (job, instance) (1, vllm:lora_requests_info{${HTTP}})`],
  'Engine sleep state': [
    `(1 - max${BY_ENGINE}(vllm:engine_sleep_state{${ENGINE}, sleep_state="awake"})) * (1 + max${BY_ENGINE}(vllm:engine_sleep_state{${ENGINE}, sleep_state="discard_all"}))`,
  ],
  'Sleep mode and weight update operations': [
    operations('count')
      .map((one) => `sum by (operation) (${one})`)
      .join(' or '),
    operations('bucket')
      .map((one) => `histogram_quantile(0.99, sum by (le, operation) (${one}))`)
      .join(' or '),
  ],
  'Model FLOPs utilization': [
    sum('estimated_flops_per_gpu_total', ENGINE, BY_ENGINE),
    `${sum('estimated_read_bytes_per_gpu_total', ENGINE, BY_ENGINE)} + ${sum('estimated_write_bytes_per_gpu_total', ENGINE, BY_ENGINE)}`,
  ],
};

const DRAFTS = ['spec_decode_num_accepted_tokens_total', 'spec_decode_num_draft_tokens_total'] as const;
const speculative: Panels = {
  'Draft acceptance rate': [share(...DRAFTS, ENGINE), share(...DRAFTS, ENGINE, MODEL)],
  'Acceptance length': [`1 + ${share(DRAFTS[0], 'spec_decode_num_drafts_total', ENGINE)}`],
  'Accepted, Draft tokens / s, Drafts / s': [...DRAFTS, 'spec_decode_num_drafts_total'].map((name) =>
    sum(name, ENGINE),
  ),
  'Output from drafts': [share(DRAFTS[0], 'generation_tokens_total', ENGINE)],
};

const statistics: Panels = Object.fromEntries(
  (
    [
      ['E2E Latency', 'e2e_request_latency_seconds'],
      ['TTFT', 'time_to_first_token_seconds'],
      ['ITL', 'inter_token_latency_seconds'],
    ] as const
  ).map(([panel, name]) => [
    `${panel}: over time, P99, P90, Avg, P50`,
    [
      `rate(vllm:${name}_sum[$__interval]) / rate(vllm:${name}_count[$__interval])`,
      ...[0.99, 0.9, 0.5].map((p) => `histogram_quantile(${p}, sum by(le) (rate(vllm:${name}_bucket[$__range])))`),
      `(sum(increase(vllm:${name}_sum[$__range])) / sum(increase(vllm:${name}_count[$__range])))`,
    ],
  ]),
);
const performance: Panels = {
  ...statistics,
  'TPS (Tokens Per Second) Over Time': [
    'generation_tokens_total',
    'prompt_tokens_total',
    'iteration_tokens_total_count',
  ].map((name) => `rate(vllm:${name}[$__interval])`),
};

const queries: Panels = {
  'Successful Requests Over Time, Requests Avg Rate': [
    sum('request_success_total', DEPLOYMENT, MODEL),
    sum('request_success_total', DEPLOYMENT),
  ],
  'p50, p90, p99 Latency': [0.5, 0.9, 0.99].map((p) =>
    quantile(p, 'e2e_request_latency_seconds', DEPLOYMENT, 'le, model_name'),
  ),
  'Input Token Size': [
    sum('request_prompt_tokens_bucket', DEPLOYMENT, ' by (le, model_name) '),
    ...[0.5, 0.9, 0.99].map((p) => quantile(p, 'request_prompt_tokens', DEPLOYMENT, 'le, model_name')),
    `${sum('prompt_tokens_total', DEPLOYMENT)} / ${sum('request_success_total', DEPLOYMENT)}`,
  ],
  'Input, Output Tokens': ['prompt_tokens_total', 'generation_tokens_total'].flatMap((name) => [
    sum(name, DEPLOYMENT, MODEL),
    sum(name, DEPLOYMENT),
  ]),
};

const oldest: Panels = {
  'E2E Request Latency, Inter Token Latency, Time Per Output Token (TPOT), Time To First Token Latency': [
    ...times,
    'request_time_per_output_token_seconds',
  ].flatMap((name) => [
    ...[0.99, 0.95, 0.9, 0.5].map((p) => quantile(p, name, ONE)),
    `${rate(`${name}_sum`, ONE)} / ${rate(`${name}_count`, ONE)}`,
  ]),
  'Token Throughput': [rate('prompt_tokens_total', ONE), rate('generation_tokens_total', ONE)],
  'Scheduler State': [`vllm:num_requests_running{${ONE}}`, `vllm:num_requests_waiting{${ONE}}`],
  'Cache Utilization': [`vllm:kv_cache_usage_perc{${ONE}}`],
  'Request Prompt, Generation Length': ['prompt', 'generation'].map(
    (what) => `sum by(le) (increase(vllm:request_${what}_tokens_bucket{${ONE}}[${RATE}]))`,
  ),
  'Finish Reason': [`sum by(finished_reason) (increase(vllm:request_success_total{${ONE}}[${RATE}]))`],
  'Queue, Prefill and Decode Time, Max Generation Token': [
    ...['queue', 'prefill', 'decode'].map((phase) => `request_${phase}_time_seconds_sum`),
    'request_max_num_generation_tokens_sum',
  ].map((name) => rate(name, ONE)),
};

/** Every query, dashboard by dashboard. */
export const dashboardQueries: readonly DashboardQuery[] = Object.entries({
  vllm_overview: overview,
  vllm_kv_cache: kvCache,
  vllm_instances: instances,
  vllm_speculative_decoding: speculative,
  performance_statistics: performance,
  query_statistics: queries,
  grafana: oldest,
}).flatMap(([dashboard, panels]) =>
  Object.entries(panels).flatMap(([panel, exprs]) => exprs.map((expr) => ({ dashboard, panel, expr }))),
);

/** Why a query has no data, by a part of its expression. */
export const without: readonly (readonly [part: string, why: string])[] = [
  ['vllm:mm_cache_', 'there are no models of images or sound'],
  ['vllm:nixl_', "NIXL is vLLM's connector; penstock_fetched_bytes_total has the transfers"],
  ['vllm:kv_offload_', "offloading is vLLM's connector; penstock_tier_* has the host memory of instances and stores"],
  [
    'vllm:simple_kv_offload_',
    "offloading is vLLM's connector; penstock_tier_* has the host memory of instances and stores",
  ],
  ['vllm:lora_requests_info', 'there are no LoRA adapters'],
  ['vllm:engine_sleep_state', 'an instance does not sleep'],
  ['vllm:sleep_mode_operation_', 'an instance does not sleep, and weights do not change while it serves'],
  ['vllm:estimated_', 'FLOPs of a step are not estimated'],
  ['vllm:spec_decode_', 'there is no speculative decoding'],
  [
    'group_left (model_name)',
    'the join takes an instance for a process with one model, and here it is a cluster with two',
  ],
];

/** The queries of SGLang's Grafana dashboard (`examples/monitoring/grafana/dashboards/json/sglang-dashboard.json`), written again from what they ask. */

const latencies = ['sglang:e2e_request_latency_seconds', 'sglang:time_to_first_token_seconds'];

/** Every query: latencies and their heatmaps, running and queued requests, throughput and hit rate. */
export const sglangQueries: readonly string[] = [
  ...latencies.flatMap((name) => [
    ...[0.99, 0.9, 0.5].map((p) => `histogram_quantile(${p}, sum by (le) (rate(${name}_bucket[$__rate_interval])))`),
    `avg(rate(${name}_sum[$__rate_interval]) / rate(${name}_count[$__rate_interval]))`,
    `sum(increase(${name}_bucket{model_name=~"$model_name"}[$__rate_interval])) by (le)`,
  ]),
  'sglang:num_running_reqs',
  'sglang:gen_throughput',
  'sglang:cache_hit_rate',
  'sglang:num_queue_reqs',
];

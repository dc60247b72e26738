/** Series of `/api/history` that the made-up cluster has, and about how large their values are. */
export const SERIES: Readonly<Record<string, number>> = {
  requests_per_s: 17,
  errors_per_s: 0.3,
  prompt_tokens_per_s: 42_000,
  output_tokens_per_s: 3_100,
  running: 64,
  waiting: 5,
  ttft_p50_ms: 95,
  ttft_p95_ms: 310,
  ttft_p99_ms: 620,
  tbt_p50_ms: 21,
  tbt_p95_ms: 34,
  tbt_p99_ms: 58,
};

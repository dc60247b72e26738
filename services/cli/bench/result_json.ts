/**
 * The result of a run as JSON with the keys of `vllm bench serve`, so that tools for its files read these; keys of ours come after them.
 */
import { metricNames, percentile } from './figures.ts';
import { clientWarnings, statisticsOf, type RunResult } from './run_result.ts';

/** Percentiles of the curves that the page draws. */
export const curvePercents: readonly number[] = [...Array.from({ length: 50 }, (_, i) => 2 * i), 99, 99.5, 99.9, 100];

/** Returns the result as the text of a JSON file. */
export function resultJson(result: RunResult): string {
  const { options, model, dateMs } = result;
  const { rate, maxConcurrency } = options;
  const { rampUp } = rate;
  const value = {
    date: stamp(dateMs),
    endpoint_type: options.backend,
    backend: options.backend,
    label: options.label ?? null,
    model_id: model,
    tokenizer_id: model,
    num_prompts: result.numRequests,
    ...options.metadata,
    request_rate: Number.isFinite(rate.ratePerSecond) ? rate.ratePerSecond : 'inf',
    burstiness: Number.isFinite(rate.burstiness) ? rate.burstiness : 'inf',
    max_concurrency: Number.isFinite(maxConcurrency) ? maxConcurrency : null,
    ...(rampUp === undefined
      ? {}
      : {
          ramp_up_strategy: rampUp.kind,
          ramp_up_start_rps: rampUp.startPerSecond,
          ramp_up_end_rps: rampUp.endPerSecond,
        }),
    ...measured(result),
    ...(options.isDetailed ? detailed(result) : {}),
    penstock: ours(result),
  };
  return `${JSON.stringify(value)}\n`;
}

function measured({ figures, load, options }: RunResult): Record<string, unknown> {
  const { measurements, durationMs } = load;
  return {
    duration: durationMs / 1_000,
    completed: figures.numDone,
    failed: measurements.numFailed,
    total_input_tokens: figures.inputTokens,
    total_output_tokens: figures.outputTokens,
    request_throughput: figures.requestsPerSecond,
    request_goodput: figures.goodputPerSecond ?? null,
    output_throughput: figures.outputTokensPerSecond,
    total_token_throughput: figures.tokensPerSecond,
    max_output_tokens_per_s: figures.peakTokensPerSecond,
    max_concurrent_requests: figures.peakConcurrency,
    ...Object.assign(
      {},
      ...options.metrics.map((name) => statisticsOf(name, figures.times[name], options.percentiles)),
      Number.isFinite(options.maxConcurrency)
        ? statisticsOf('client_queue_time', figures.queue, options.percentiles)
        : {},
    ),
  } as Record<string, unknown>;
}

/** Values by request, in seconds. */
function detailed({ load: { measurements } }: RunResult): Record<string, unknown> {
  const { requests } = measurements;
  const seconds = (ms: number): number => (Number.isFinite(ms) ? ms / 1_000 : 0);
  return {
    input_lens: requests.map(({ inputTokens }) => inputTokens),
    output_lens: requests.map(({ end, outputTokens }) => (end.kind === 'done' ? outputTokens : 0)),
    ttfts: requests.map(({ ttftMs }) => seconds(ttftMs)),
    itls: requests.map(({ intervalsMs }) => Array.from(intervalsMs, (ms) => Math.round(1e3 * ms) / 1e6)),
    latencies: requests.map(({ latencyMs }) => seconds(latencyMs)),
    start_times: requests.map(({ startMs }) => seconds(startMs)),
    queue_times: requests.map(({ queueMs }) => seconds(queueMs)),
    errors: requests.map(({ end }) => (end.kind === 'failed' ? end.message : '')),
  };
}

function ours(result: RunResult): Record<string, unknown> {
  const { options, figures, load, client, notes, areIds } = result;
  const { measurements } = load;
  return {
    dataset: options.dataset.kind,
    endpoint: options.endpoint,
    seed: options.seed,
    prompts: areIds ? 'ids' : 'text',
    cached_share: figures.cachedShare ?? null,
    errors: measurements.errors,
    cut: measurements.numCut,
    is_interrupted: load.isInterrupted,
    client: {
      cpu_cores: client.cpuCores,
      delay_ms: client.delayMs,
      max_delay_ms: client.maxDelayMs,
      late_ms: load.lateMs,
      warnings: clientWarnings(result),
    },
    notes,
    curve_percents: curvePercents,
    curves_ms: Object.fromEntries(
      metricNames.map((name) => [name, curvePercents.map((p) => percentile(figures.times[name].sorted, p))]),
    ),
    seconds: figures.seconds,
  };
}

/** Returns a date as vLLM writes it, `20261127-031500`, in UTC. */
function stamp(dateMs: number): string {
  return new Date(dateMs).toISOString().slice(0, 19).replaceAll(/[-:]/g, '').replace('T', '-');
}

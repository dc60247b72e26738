/** vLLM's checks of `/metrics` (`instrumentator/test_metrics`). */
import assert from 'node:assert/strict';
import { ADMIN_KEY, heartbeats } from '../../../support/cluster.ts';
import { until } from '../../../support/until.ts';
import type { Api } from '../api.ts';
import { model } from '../samples.ts';
import type { Check, PeerSuite } from '../suite.ts';

/** Requests that are counted, the output tokens of each, and their prompt. */
const [NUM_REQUESTS, NUM_TOKENS] = [10, 10];
const text = 'Hello my name is Robert and I love magic';

/** Defines the checks of `instrumentator/test_metrics`. */
export function metricsChecks(suite: PeerSuite, api: Api): void {
  suite.group('instrumentator/test_metrics', (check) => {
    counts(check, api);
    exist(check, api);
    aborts(check, api);
  });
}

/** Tokens that instances have computed: the one counter here that is not the router's own. */
const STEP_TOKENS = 'vllm:iteration_tokens_total_sum';

/** Values of the first sample of each series. */
async function scraped(api: Api): Promise<Map<string, number>> {
  const response = await api.fetch('/metrics');
  assert.equal(response.status, 200);
  const values = new Map<string, number>();
  for (const [, name = '', value = ''] of (await response.text()).matchAll(
    /^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (\S+)$/gm,
  ))
    if (!values.has(name)) values.set(name, Number(value));
  return values;
}

function counts(check: Check, api: Api): void {
  /** How far each series rose through the counted requests, which run once. */
  let measured: Promise<Map<string, number>> | undefined;
  const rises = async (): Promise<Map<string, number>> => {
    const prompt = await api.tokens(text);
    // Counters of instances come with their heartbeats.
    const before = await until('heartbeats have told of earlier requests', async () => {
      const first = await scraped(api);
      await heartbeats(api.url, { authorization: `Bearer ${ADMIN_KEY}` });
      const second = await scraped(api);
      return first.get(STEP_TOKENS) === second.get(STEP_TOKENS) && second;
    });
    for (let i = 0; i < NUM_REQUESTS; i++)
      await api.complete({ model, prompt, max_tokens: NUM_TOKENS, ignore_eos: true, seed: i });
    const numTokens = NUM_REQUESTS * (prompt.length + NUM_TOKENS);
    const after = await until('heartbeats have told of these', async () => {
      const now = await scraped(api);
      return (now.get(STEP_TOKENS) ?? 0) - (before.get(STEP_TOKENS) ?? 0) >= numTokens && now;
    });
    return new Map([...after].map(([name, value]) => [name, value - (before.get(name) ?? 0)]));
  };
  const each = NUM_REQUESTS;
  const ofPrompts = async (): Promise<number> => NUM_REQUESTS * (await api.tokens(text)).length;
  const wanted: [string, number | (() => Promise<number>)][] = [
    ['time_to_first_token_seconds_count', each],
    ['inter_token_latency_seconds_count', each * (NUM_TOKENS - 1)],
    ['e2e_request_latency_seconds_count', each],
    ['request_queue_time_seconds_count', each],
    ['request_inference_time_seconds_count', each],
    ['request_prefill_time_seconds_count', each],
    ['request_decode_time_seconds_count', each],
    ['request_prompt_tokens_sum', ofPrompts],
    ['request_prompt_tokens_count', each],
    ['request_generation_tokens_sum', each * NUM_TOKENS],
    ['request_generation_tokens_count', each],
    ['request_params_n_count', each],
    ['request_params_max_tokens_sum', each * NUM_TOKENS],
    ['iteration_tokens_total_sum', async () => (await ofPrompts()) + each * NUM_TOKENS],
    ['prompt_tokens_total', ofPrompts],
    ['generation_tokens_total', each * NUM_TOKENS],
    ['request_success_total', each],
  ];
  for (const [name, want] of wanted) {
    check(`counts vllm:${name}`, async () => {
      const rise = (await (measured ??= rises())).get(`vllm:${name}`);
      assert.notEqual(rise, undefined, `vllm:${name} is there`);
      assert.equal(rise, typeof want === 'number' ? want : await want());
    });
  }
}

const names = [
  ...['num_requests_running', 'num_requests_waiting', 'kv_cache_usage_perc', 'prefix_cache_queries'],
  ...['prefix_cache_hits', 'num_preemptions_total', 'prompt_tokens_total', 'generation_tokens_total'],
  ...['iteration_tokens_total', 'cache_config_info', 'request_success_total', 'request_prompt_tokens_sum'],
  ...['request_generation_tokens_sum', 'request_params_n_sum', 'request_params_max_tokens_sum'],
  ...['time_to_first_token_seconds_sum', 'inter_token_latency_seconds_sum', 'e2e_request_latency_seconds_sum'],
  ...['request_queue_time_seconds_sum', 'request_inference_time_seconds_sum', 'request_prefill_time_seconds_sum'],
  'request_decode_time_seconds_sum',
];

function exist(check: Check, api: Api): void {
  for (const name of names) {
    check(`exist vllm:${name}`, async () => {
      await api.complete({ model, prompt: 'Hello, my name is', max_tokens: 5, temperature: 0 });
      const found = await until('heartbeats have told', async () => {
        const series = [...(await scraped(api)).keys()];
        return series.includes('vllm:num_requests_running') && series;
      });
      // A histogram is whole: sum, buckets and count.
      const base = name.replace(/_sum$/, '');
      const parts = name === base ? [name] : [`${base}_sum`, `${base}_bucket`, `${base}_count`];
      for (const part of parts)
        assert(
          found.some((one) => one === `vllm:${part}` || one === `vllm:${part}_total` || one === `vllm:${part}_sum`),
          `vllm:${part} is there`,
        );
    });
  }
}

function aborts(check: Check, api: Api): void {
  check('abort resets running/waiting', async () => {
    const gauges = async (): Promise<number[]> => {
      const values = await scraped(api);
      return ['num_requests_running', 'num_requests_waiting', 'kv_cache_usage_perc'].map(
        (name) => values.get(`vllm:${name}`) ?? NaN,
      );
    };
    const isQuiet = async (): Promise<boolean> => (await gauges()).join() === '0,0,0';
    await until('nothing runs', isQuiet);
    const gone = new AbortController();
    const prompt = await api.tokens(text);
    const running = Array.from({ length: 3 }, () =>
      api.post(
        '/v1/completions',
        { model, prompt, max_tokens: 1_500, temperature: 0, ignore_eos: true, stream: true },
        { signal: gone.signal },
      ),
    );
    await until('they run and have blocks', async () => {
      const [numRunning = 0, , usage = 0] = await gauges();
      return numRunning > 0 && usage > 0;
    });
    gone.abort();
    await Promise.allSettled(running);
    await until('nothing runs again, and cached blocks count as free', isQuiet);
  });
}

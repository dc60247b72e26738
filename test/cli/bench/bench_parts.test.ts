/** Parts of `penstock bench` that have an arithmetic or a format of their own. Budget: 2 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { readAnswerEvent } from '../../../services/cli/bench/answer_events.ts';
import { arrivalTimes } from '../../../services/cli/bench/arrivals.ts';
import { ClientLoad } from '../../../services/cli/bench/client_load.ts';
import { EventStreamReader } from '../../../services/cli/bench/event_stream.ts';
import { figuresOf, percentile, timeFigures } from '../../../services/cli/bench/figures.ts';
import { Measurements, type MeasuredRequest } from '../../../services/cli/bench/measurements.ts';
import { PromptMaker } from '../../../services/cli/bench/prompts.ts';
import { reportHtml } from '../../../services/cli/bench/report_html.ts';
import { runsOfFile } from '../../../services/cli/bench/run_file.ts';
import { readServeLine } from '../../../services/cli/bench/serve_arguments.ts';
import { ConfigError } from '../../../shared/base/options.ts';
import { Random } from '../../../shared/base/random.ts';

describe('events', () => {
  test('that never end cost their length, and are refused from a length on', () => {
    const reader = new EventStreamReader(() => undefined);
    const part = Buffer.alloc(2 ** 16, 'x');
    assert.throws(() => {
      for (let i = 0; i <= 2 ** 8; i++) reader.push(part);
    }, /an event has more than/);
  });

  const stream =
    ': ping\n\ndata: {"a": "ä€😀"}\r\n\r\nevent: x\ndata: 1\ndata: 2\n\nid: 7\n\ndata:[DONE]\n\ndata: {"last": true}';

  test('are the same however the bytes are divided', () => {
    const bytes = Buffer.from(stream);
    for (let seed = 1; seed <= 200; seed++) {
      const random = new Random(seed);
      const found: string[] = [];
      const reader = new EventStreamReader((data) => found.push(data));
      for (let at = 0; at < bytes.length;) {
        const end = at + 1 + random.below(9);
        reader.push(bytes.subarray(at, end));
        at = end;
      }
      reader.end();
      assert.deepEqual(found, ['{"a": "ä€😀"}', '1\n2', '[DONE]', '{"last": true}'], `seed ${seed}`);
    }
  });

  test.each([
    ['a token of a completion', { choices: [{ text: 'a' }] }, true, true],
    ['a special token, which has no text', { choices: [{ text: '', finish_reason: null }] }, true, true],
    ['the end of an answer', { choices: [{ text: '', finish_reason: 'stop' }] }, true, false],
    ['a last token with the end', { choices: [{ text: 'a', finish_reason: 'length' }] }, true, true],
    ['the opening of a message', { choices: [{ delta: { role: 'assistant', content: '' } }] }, true, false],
    ['an opening with a token', { choices: [{ delta: { role: 'assistant', content: 'a' } }] }, true, true],
    ['reasoning', { choices: [{ delta: { reasoning_content: 'a' } }] }, true, true],
    ['a tool call', { choices: [{ delta: { tool_calls: [{}] } }] }, true, true],
    ['the usage', { choices: [], usage: { prompt_tokens: 3 } }, false, false],
  ])('with %s', (_, body, isChoice, hasToken) => {
    const event = readAnswerEvent(JSON.stringify(body));
    assert.deepEqual([event.isChoice, event.hasToken, event.error], [isChoice, hasToken, undefined]);
  });

  test('with an error have its message', () => {
    assert.equal(readAnswerEvent('{"error": {"message": "gone", "code": 502}}').error, 'gone');
  });
});

describe('times of arrival', () => {
  const poisson = { ratePerSecond: 8, burstiness: 1, rampUp: undefined };

  test('end at the rate, ascend, and are equal for equal seeds', () => {
    const times = arrivalTimes(400, poisson, new Random(3));
    assert(Math.abs((times.at(-1) ?? 0) - 50_000) < 1e-6);
    times.forEach((ms, i) => {
      assert(ms >= (times[i - 1] ?? 0));
    });
    assert.deepEqual(times, arrivalTimes(400, poisson, new Random(3)));
    assert.notDeepEqual(times, arrivalTimes(400, poisson, new Random(4)));
  });

  test.each([0.25, 1, 4])('with burstiness %d have gaps with a variation of 1 / √burstiness', (burstiness) => {
    const times = arrivalTimes(40_000, { ...poisson, burstiness }, new Random(5));
    const { mean, std } = timeFigures(times.map((ms, i) => ms - (times[i - 1] ?? 0)));
    assert(Math.abs(std / mean - 1 / Math.sqrt(burstiness)) < 0.03, String(std / mean));
  });

  test('are even with infinite burstiness, and all zero with an infinite rate', () => {
    assert.deepEqual([...arrivalTimes(3, { ...poisson, burstiness: Infinity }, new Random(1))], [125, 250, 375]);
    assert.deepEqual([...arrivalTimes(3, { ...poisson, ratePerSecond: Infinity }, new Random(1))], [0, 0, 0]);
  });

  test('of a rate that grows come closer', () => {
    const rampUp = { kind: 'exponential', startPerSecond: 1, endPerSecond: 100 } as const;
    const times = arrivalTimes(3, { ratePerSecond: Infinity, burstiness: Infinity, rampUp }, new Random(1));
    assert.deepEqual([...times], [1_000, 1_100, 1_110]);
  });
});

const request = (over: Partial<MeasuredRequest>): MeasuredRequest => ({
  startMs: 0,
  queueMs: 0,
  ttftMs: 10,
  latencyMs: 30,
  intervalsMs: Float32Array.of(20),
  inputTokens: 5,
  outputTokens: 2,
  cachedTokens: undefined,
  end: { kind: 'done' } as const,
  ...over,
});

describe('figures', () => {
  test('have percentiles between the two nearest values, as numpy has', () => {
    assert.equal(percentile([1, 2, 3, 4], 50), 2.5);
    assert.equal(percentile([1, 2, 3, 4], 99), 3.9699999999999998);
    assert.deepEqual([percentile([], 50), percentile([7], 99)], [0, 7]);
    assert.equal(timeFigures(Float64Array.of(4, 1, 3, 2)).std, Math.sqrt(1.25));
  });

  test('count requests at a time, of which one that ends when another starts is none', () => {
    const measurements = new Measurements();
    for (const startMs of [0, 10, 30, 40]) measurements.add(request({ startMs }));
    const load = { measurements, durationMs: 1_000, isInterrupted: false, lateMs: 0 };
    // 0 to 30, 10 to 40, 30 to 60, 40 to 70.
    assert.equal(figuresOf(load, {}).peakConcurrency, 2);
    assert.equal(figuresOf(load, { ttft: 10, e2el: 30, tpot: 20 }).goodputPerSecond, 4);
    assert.equal(figuresOf(load, { tpot: 19.9 }).goodputPerSecond, 0);
  });

  test('have no time per token of an answer of one, and no failed request', () => {
    const measurements = new Measurements();
    measurements.add(request({ outputTokens: 1, latencyMs: 10, intervalsMs: new Float32Array() }));
    measurements.add(request({ ttftMs: 500, end: { kind: 'failed', error: 'x', message: 'y' } }));
    const { times, numDone } = figuresOf({ measurements, durationMs: 1_000, isInterrupted: false, lateMs: 0 }, {});
    assert.deepEqual([numDone, times.tpot.sorted.length, times.ttft.mean], [1, 0, 10]);
  });
});

test('a load generator that is blocked says how long answers waited for it in the mean', async () => {
  let nowMs = 0;
  let wake = (): void => undefined;
  const clock = {
    nowMs: () => nowMs,
    wallMs: () => nowMs,
    turn: () => Promise.resolve(),
    sleep: () => new Promise<void>((resolve) => (wake = resolve)),
  };
  const load = new ClientLoad(clock, () => nowMs / 2);
  // Timers of 10 ms, of which one is 40 ms late, because the one thread computed something else; 1.5 ms are any timer's.
  for (const passedMs of [10, 10, 51.5, 10, 18.5]) {
    nowMs += passedMs;
    wake();
    await new Promise((resolve) => setImmediate(resolve));
  }
  const { cpuCores, delayMs, maxDelayMs } = load.stop();
  // In 100 ms: within 40 ms what arrives waits 20 ms in the mean, within 7 ms 3.5 ms.
  assert.deepEqual([maxDelayMs, delayMs, cpuCores], [40, (40 ** 2 + 7 ** 2) / 200, 0.5]);
});

describe('prompts', () => {
  const words = [
    { text: ' a', numTokens: 1 },
    { text: ' long', numTokens: 3 },
  ] as const;

  test('of words have exactly the tokens that are wanted', () => {
    const maker = new PromptMaker({ words, ids: [], source: 'tokenize' }, true);
    assert.equal(maker.areIds, false);
    for (let numTokens = 1; numTokens < 60; numTokens++) {
      const text = maker.text({ seed: numTokens, numTokens });
      const counted = text
        .trim()
        .split(' ')
        .reduce((sum, word) => sum + (word === 'a' ? 1 : 3), 0);
      assert.equal(counted, numTokens);
    }
  });

  test('of words that are counted in the mean have about as many', () => {
    const maker = new PromptMaker({ words: [{ text: ' a', numTokens: 1.6 }], ids: [], source: 'usage' }, false);
    assert.equal(maker.text({ seed: 1, numTokens: 160 }).trim().split(' ').length, 100);
  });
});

describe('arguments', () => {
  const read = (...args: string[]): ReturnType<typeof readServeLine> =>
    readServeLine(args, { OPENAI_API_KEY: 'secret' });

  test('have vLLM’s defaults', () => {
    const options = read();
    assert.deepEqual(
      [
        options?.baseUrl.href,
        options?.endpoint,
        options?.numConversations,
        options?.rate.ratePerSecond,
        options?.ignoreEos,
      ],
      ['http://127.0.0.1:8000/', '/v1/completions', 1_000, Infinity, true],
    );
    assert.deepEqual([options?.apiKey, options?.saveTo, options?.goodput], ['secret', undefined, {}]);
  });

  test('have the key of their flag, else of Penstock’s variable, else of OpenAI’s; an empty variable is none', () => {
    const environment = { OPENAI_API_KEY: 'openai', PENSTOCK_API_KEY: 'penstock' };
    const keyOf = (args: string[], change: Record<string, string> = {}): string | undefined =>
      readServeLine(args, { ...environment, ...change })?.apiKey;
    assert.deepEqual(
      [
        keyOf(['--api-key', 'flag']),
        keyOf([]),
        keyOf([], { PENSTOCK_API_KEY: '' }),
        keyOf([], { PENSTOCK_API_KEY: '', OPENAI_API_KEY: '' }),
      ],
      ['flag', 'penstock', 'openai', undefined],
    );
    assert.throws(
      () => keyOf([], { PENSTOCK_API_KEY: 'a b' }),
      /^ConfigError: PENSTOCK_API_KEY: a key is printable ASCII/,
    );
  });

  test('are read as vLLM reads them', () => {
    const options = read(
      '--save-result',
      '--result-dir',
      'd',
      '--goodput',
      'ttft:200',
      'tpot:50',
      '--request-rate',
      'inf',
    );
    assert.deepEqual(
      [options?.saveTo, options?.goodput],
      [
        { name: '', folder: 'd' },
        { ttft: 200, tpot: 50 },
      ],
    );
    assert.deepEqual(read('--save-result', 'run.json')?.saveTo, { name: 'run.json', folder: '' });
    assert.equal(read('--base-url', 'https://host/prefix/v1')?.baseUrl.href, 'https://host/prefix');
    assert.equal(read('--backend', 'openai-chat')?.api, 'chat');
    assert.deepEqual(read('--metadata', 'a=b,c', 'd=e', '--metadata', 'f=g=h')?.metadata, {
      a: 'b,c',
      d: 'e',
      f: 'g=h',
    });
    assert.deepEqual([read('--seed', '0')?.seed, read('--num-warmups', '0')?.numWarmups], [0, 0]);
    assert.equal(read('--help'), undefined);
  });

  test.each([
    [['--goodput', 'itl:3'], /ttft:MS, tpot:MS or e2el:MS/],
    [['stray'], /takes flags only/],
    [['--dataset-name', 'mooncake'], /needs its file: --dataset-path/],
    [
      ['--dataset-path', 'x'],
      /--dataset-path means something with --dataset-name sharegpt or mooncake only, not random/,
    ],
    [['--dataset-name', 'mooncake', '--dataset-path', 'x', '--output-len', '3'], /--output-len means something with/],
    [['--seed', 'x'], /a whole number from 0 to 4294967295/],
    [['--num-prompts', '0'], /a whole number from 1 to/],
    [
      ['--request-rate', '-1'],
      /^--request-rate needs a value; one that begins with a dash is written --request-rate=VALUE/,
    ],
    [['--tokenizer', 'x'], /^Unknown option '--tokenizer'\.\nSee/],
    [['--metadata', 'x'], /KEY=VALUE/],
    [['a=b'], /takes flags only/],
    [['--turns', '2', '--endpoint', '/v1/completions', '--dataset-name', 'multi-turn'], /are chats/],
    [['--endpoint', '/v1/embeddings'], /ends with \/completions/],
    [['--base-url', 'localhost:8000'], /is no URL such as/],
    [['--base-url', 'http://a', '--port', '1'], /leave out --host and --port/],
    [['--random-range-ratio', '1'], /from 0 up to, not including, 1/],
    [['--ramp-up-strategy', 'linear'], /needs --ramp-up-start-rps/],
    [['--ramp-up-strategy', 'linear', '--request-rate', '3'], /leave out --request-rate/],
    [['--extra-body', '[1]'], /no JSON object/],
    [['--metric-percentiles', '50,x'], /numbers from 0 to 100/],
    [['--percentile-metrics', 'ttf'], /there is no "ttf"/],
    [
      ['--dataset-name', 'mooncake', '--dataset-path', 'x', '--trace-speed', '2', '--request-rate', '1'],
      /leave one out/,
    ],
  ])('%j are refused', (args, message) => {
    assert.throws(
      () => read(...args),
      (error) => error instanceof ConfigError && message.test(error.message),
    );
  });
});

describe('the page of several runs', () => {
  // The keys of a file of vLLM's, with its detailed times.
  const ofVllm = {
    date: '20261127-030000',
    backend: 'vllm',
    label: null,
    model_id: 'm',
    request_rate: 2.5,
    max_concurrency: null,
    duration: 10,
    completed: 5,
    failed: 0,
    request_throughput: 0.5,
    output_throughput: 50,
    total_token_throughput: 90,
    mean_ttft_ms: 210,
    median_ttft_ms: 200,
    std_ttft_ms: 1,
    p99_ttft_ms: 300,
    ttfts: [0.1, 0.2, 0.3],
  };
  const html = (...values: object[]): string =>
    reportHtml(values.flatMap((value, i) => runsOfFile(`file ${i}`, JSON.stringify(value))));

  test('reads vLLM’s files, several results in one too, and draws their distribution', () => {
    const [first, second] = runsOfFile('two', `${JSON.stringify(ofVllm)}\n${JSON.stringify(ofVllm)}`);
    assert.deepEqual([first?.name, second?.name, first?.rate], ['two:1', 'two:2', 2.5]);
    assert.equal(first?.times.ttft.curve.find(({ percent }) => percent === 50)?.ms, 200);
    assert.equal(first.times.tpot.mean, undefined);
    const { p99_ttft_ms: p99, ...withoutP99 } = ofVllm;
    const [other] = runsOfFile('other', JSON.stringify(withoutP99));
    assert.deepEqual([p99, Math.round(other?.times.ttft.p99 ?? 0)], [300, 298]);
  });

  test('has charts by rate where rates differ, and tells equal names apart', () => {
    const page = html({ ...ofVllm, label: 'same' }, { ...ofVllm, label: 'same', request_rate: 5 });
    assert.match(page, /By requests per second/);
    assert.match(page, /same, 2\.5\/s \(1\)/);
    assert.match(page, /same, 5\/s \(2\)/);
    assert.doesNotMatch(html(ofVllm), /By requests per second/);
  });

  test('asks no network, and shows names as text', () => {
    const page = html({ ...ofVllm, label: '<img src=x onerror=alert(1)>' });
    assert.doesNotMatch(page, /<img|<script|https?:/);
    assert.match(page, /&lt;img src=x/);
  });

  test('refuses what is no result', () => {
    assert.throws(() => html({ duration: 1 }), /file 0 is no result of penstock bench serve/);
    assert.throws(() => runsOfFile('x', ''), /x is empty/);
  });
});

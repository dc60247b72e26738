/**
 * `penstock bench serve` against a server under simulated time: figures are those of its delays to the last digit, whatever is asked for. Not here:
 * sockets and real time, which alone/bench_serve has. Budget: 5 s.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, test } from 'vitest';
import { RequestError } from '../../../services/cli/bench/http_client.ts';
import { serveCommand, type BenchHost } from '../../../services/cli/bench/serve_command.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { SimulatedServer, type SimulatedDelays } from './simulated_server.ts';

const folder = mkdtempSync(join(tmpdir(), 'bench-'));
afterAll(() => {
  rmSync(folder, { recursive: true });
});

type Json = Readonly<Record<string, unknown>> & {
  readonly penstock: Readonly<Record<string, unknown>> & { readonly client: { readonly warnings: readonly string[] } };
};

interface Ran {
  readonly server: SimulatedServer;
  readonly code: number;
  readonly table: string;
  readonly json: Json;
}

let numFiles = 0;

async function bench(
  args: readonly string[],
  delays: Partial<SimulatedDelays> = {},
  stopped = new AbortController(),
): Promise<Ran> {
  const clock = new SimulatedClock();
  const server = new SimulatedServer(clock, { ttftMs: 200, tokenMs: 20, ...delays });
  const file = join(folder, `${numFiles++}.json`);
  let [table, errors] = ['', ''];
  const host: BenchHost = {
    clock,
    out: { write: (text) => (table += text) },
    errors: { write: (text) => (errors += text) },
    environment: {},
    signal: stopped.signal,
    cpuMs: () => clock.nowMs() / 4,
    openClient: () => server,
  };
  const ended = serveCommand(['--save-result', file, ...args], host);
  let isOver = false;
  ended.then(
    () => (isOver = true),
    () => (isOver = true),
  );
  // Simulated time goes on while files are read and written in real time, before and after the run.
  while (!isOver) {
    await clock.run(clock.nowMs() + 100);
    await new Promise((resolve) => setImmediate(resolve));
  }
  const code = await ended;
  return { server, code, table, json: JSON.parse(readFileSync(file, 'utf8')) as Json };
}

const near = (value: unknown, wanted: number): void => {
  assert(Math.abs(Number(value) - wanted) < 1e-3, `${String(value)} is not ${wanted}`);
};

describe('the figures', () => {
  test.each([
    ['completions', []],
    ['chats, whose message is opened before its first token', ['--backend', 'openai-chat']],
  ])('of %s are the server’s delays', async (_, args) => {
    const { json, table, code } = await bench([
      ...['--num-prompts', '20', '--random-input-len', '30', '--random-output-len', '11'],
      ...[
        '--metric-percentiles',
        '50,99.9',
        '--request-rate',
        '10',
        '--goodput',
        'ttft:200.001',
        'tpot:20.001',
        ...args,
      ],
    ]);
    assert.equal(code, 0);
    for (const statistic of ['mean', 'median', 'p50', 'p99.9']) {
      near(json[`${statistic}_ttft_ms`], 200);
      near(json[`${statistic}_tpot_ms`], 20);
      near(json[`${statistic}_itl_ms`], 20);
      near(json[`${statistic}_e2el_ms`], 400);
    }
    near(json['std_ttft_ms'], 0);
    assert.deepEqual([json['completed'], json['failed'], json['total_output_tokens']], [20, 0, 220]);
    // The last one arrives at 20 / rate.
    near(json['duration'], 2.4);
    near(json['request_goodput'], 20 / 2.4);
    near(json['output_throughput'], 220 / 2.4);
    assert.match(table, /^Successful requests: +20$/m);
    assert.match(table, /^Median TPOT \(ms\): +20\.00$/m);
    assert.match(table, /^P99\.9 TTFT \(ms\): +200\.00$/m);
  });

  test('count what is within targets, by request', async () => {
    const args = ['--num-prompts', '10', '--random-output-len', '11', '--random-input-len', '5'];
    assert.equal((await bench([...args, '--goodput', 'ttft:199'])).json['request_goodput'], 0);
    assert.equal((await bench(args)).json['request_goodput'], null);
  });

  test('of the load are those at one time and a second', async () => {
    const args = [
      '--num-prompts',
      '12',
      '--random-output-len',
      '41',
      '--random-input-len',
      '5',
      '--max-concurrency',
      '4',
    ];
    const { json, server } = await bench(args);
    assert.equal(server.peakOpen, 4);
    assert.equal(json['max_concurrent_requests'], 4);
    // Three rounds of 200 + 40 × 20 ms; the second round waits one of them here, the third two.
    near(json['duration'], 3);
    near(json['mean_client_queue_time_ms'], 1_000);
    // A second has tokens at 200, 220, ... 980 of four requests, and those at 1,000 belong to the next one.
    assert.equal(json['max_output_tokens_per_s'], 164);
  });

  test('say which share of prompts was cached', async () => {
    const { json, table } = await bench(['--num-prompts', '4', '--random-input-len', '12', '--prompt-format', 'text']);
    near(json.penstock['cached_share'], 3 / 12);
    assert.match(table, /^Cached prompt tokens \(%\): +25\.00$/m);
  });
});

describe('prompts', () => {
  const shape = [
    '--num-prompts',
    '6',
    '--random-input-len',
    '40',
    '--random-output-len',
    '2',
    '--random-range-ratio',
    '0.5',
  ];

  test('are token ids of the wanted number where the server has any, and equal for equal seeds', async () => {
    const run = async (seed: string): Promise<unknown[]> => {
      const { server, json } = await bench([...shape, '--seed', seed], { canTokenize: true });
      assert.equal(json.penstock['prompts'], 'ids');
      // The first one asks whether the server answers.
      return server.bodies.slice(1).map(({ prompt }) => prompt);
    };
    const [first, again, other] = [await run('1'), await run('1'), await run('2')];
    assert.deepEqual(first, again);
    assert.notDeepEqual(first, other);
    for (const prompt of first) {
      assert(Array.isArray(prompt));
      assert(prompt.length >= 20 && prompt.length <= 60, String(prompt.length));
    }
    assert(new Set(first.map((prompt) => (prompt as number[]).length)).size > 1);
  });

  test('share a prefix that is wanted, and nothing else', async () => {
    const { server } = await bench([...shape, '--random-prefix-len', '16'], { canTokenize: true });
    const prompts = server.bodies.slice(1).map(({ prompt }) => prompt as number[]);
    const [first = []] = prompts;
    for (const prompt of prompts) assert.deepEqual(prompt.slice(0, 16), first.slice(0, 16));
    assert.equal(new Set(prompts.map((prompt) => prompt.slice(16, 36).join())).size, prompts.length);
  });

  test('of a trace share their blocks, and come at its times', async () => {
    const trace = join(folder, 'trace.jsonl');
    const lines = [
      { timestamp: 0, input_length: 20, output_length: 3, hash_ids: [1, 2] },
      { timestamp: 1_000, input_length: 30, output_length: 3, hash_ids: [1, 2, 3] },
      { timestamp: 3_000, input_length: 9, output_length: 2, hash_ids: [4] },
    ];
    writeFileSync(trace, lines.map((line) => JSON.stringify(line)).join('\n'));
    const args = ['--dataset-name', 'mooncake', '--dataset-path', trace, '--trace-block', '10', '--trace-speed', '2'];
    const { server, json } = await bench([...args, '--save-detailed'], { canTokenize: true });
    const prompts = server.bodies.slice(1).map(({ prompt }) => prompt as number[]);
    assert.deepEqual(
      prompts.map(({ length }) => length),
      [20, 30, 9],
    );
    assert.deepEqual(prompts[1]?.slice(0, 20), prompts[0]);
    assert.deepEqual(json['start_times'], [0, 0.5, 1.5]);
    assert.deepEqual(
      server.bodies.slice(1).map(({ max_tokens: most }) => most),
      [3, 3, 2],
    );
  });

  test('of conversations send the answers before', async () => {
    const args = ['--dataset-name', 'multi-turn', '--num-conversations', '2', '--turns', '3', '--max-concurrency', '1'];
    const { server, json } = await bench([...args, '--random-output-len', '2', '--random-input-len', '8']);
    assert.equal(json['completed'], 6);
    const [first, second = [], third = []] = server.bodies.slice(1).map(({ messages = [] }) => messages);
    assert.deepEqual(
      third.map(({ role }) => role),
      ['user', 'assistant', 'user', 'assistant', 'user'],
    );
    assert.deepEqual(third.slice(0, 3), second);
    assert.deepEqual(second.slice(0, 1), first);
    assert.equal(second[1]?.content, ' w0 w1');
  });

  test('of a ShareGPT file are its questions, with as many tokens as its answers have', async () => {
    const file = join(folder, 'sharegpt.json');
    const conversation = (name: string, answerWords: number): object => ({
      id: name,
      conversations: [
        { from: 'human', value: `${name} asks a question with "quotes", \\ and {brackets]` },
        { from: 'gpt', value: 'word '.repeat(answerWords) },
        { from: 'human', value: 'and now another question, please' },
        { from: 'gpt', value: 'word '.repeat(5) },
      ],
    });
    writeFileSync(
      file,
      JSON.stringify([conversation('a', 7), conversation('too-short', 2), { id: 'empty', conversations: [] }]),
    );
    const args = ['--dataset-name', 'sharegpt', '--dataset-path', file];
    const { server, json, table } = await bench([...args, '--num-prompts', '3'], { canTokenize: true });
    const sent = server.bodies.slice(1);
    assert.deepEqual(
      sent.map(({ prompt, max_tokens: most }) => [String(prompt).split(' ')[0], most]),
      [0, 1, 2].map(() => ['a', 7]),
    );
    assert.equal(sent[0]?.['ignore_eos'], undefined);
    assert.match(table, /has 1 conversations that fit: they are repeated/);
    const turns = await bench([...args, '--num-prompts', '1', '--turns', '4'], { canTokenize: true });
    assert.equal(turns.json['completed'], 2);
    assert.equal(json['completed'], 3);
  });
});

test('an answer that ends at once has one token, that of its end', async () => {
  const { json, code } = await bench(['--num-prompts', '3', '--random-input-len', '4'], { ending: 'at once' });
  assert.deepEqual([code, json['completed'], json['failed']], [0, 3, 0]);
  near(json['mean_ttft_ms'], 200);
});

test('an interrupt before the first request ends the command, and says so', async () => {
  const stopped = new AbortController();
  const clock = new SimulatedClock();
  const server = new SimulatedServer(clock, { ttftMs: 200, tokenMs: 20 });
  let [table, errors] = ['', ''];
  stopped.abort(new Error('interrupted'));
  const code = await serveCommand([], {
    clock,
    out: { write: (text) => (table += text) },
    errors: { write: (text) => (errors += text) },
    environment: {},
    signal: stopped.signal,
    cpuMs: () => 0,
    openClient: () =>
      Object.assign(server, {
        send: (_: unknown, __: unknown, signal: AbortSignal) => Promise.reject(signal.reason as Error),
      }),
  });
  assert.deepEqual([code, table], [130, '']);
  assert.match(errors, /interrupted before the first request/);
});

describe('requests that fail', () => {
  test('by a stream that is broken off are no answers', async () => {
    const args = ['--num-prompts', '3', '--random-output-len', '3', '--random-input-len', '4'];
    const { json, table, code } = await bench(args, { ending: 'cut' });
    assert.deepEqual([code, json['completed'], json['failed']], [1, 0, 3]);
    assert.match(table, /^failed: 3 × answer cut off, the first: the stream ended without finish_reason/m);
  });

  test('by a folder for the result that cannot be made say which', async () => {
    await assert.rejects(
      bench(['--result-dir', join(folder, '0.json', 'x')]),
      /--result-dir: .*0\.json\/x cannot be made/,
    );
  });

  test('are counted by kind, with the first message', async () => {
    const failure = (i: number): RequestError | undefined =>
      i % 3 === 2
        ? new RequestError('HTTP 503', `overloaded ${i}`)
        : i === 4
          ? new RequestError('connection refused', 'no')
          : undefined;
    const { json, table, code } = await bench(
      ['--num-prompts', '9', '--random-output-len', '3', '--random-input-len', '4'],
      { failure },
    );
    assert.equal(code, 0);
    assert.deepEqual([json['completed'], json['failed']], [5, 4]);
    assert.match(table, /^failed: 3 × HTTP 503, the first: overloaded 2$/m);
    assert.match(table, /^failed: 1 × connection refused, the first: no$/m);
    near(json['mean_ttft_ms'], 200);
  });

  test('end the command with 1 when none was answered', async () => {
    const failure = (i: number): RequestError | undefined =>
      i > 0 ? new RequestError('HTTP 500', 'broken') : undefined;
    const { code, json } = await bench(['--num-prompts', '3'], { failure });
    assert.deepEqual([code, json['mean_ttft_ms'], json['completed']], [1, 0, 0]);
  });

  test('before the run end it with the server’s words', async () => {
    const failure = (): RequestError => new RequestError('HTTP 400', 'ignore_eos is unknown');
    await assert.rejects(bench(['--num-prompts', '3'], { failure }), /HTTP 400: ignore_eos is unknown; .*--extra-body/);
  });

  test('take the rest of their conversation with them', async () => {
    const failure = (i: number): RequestError | undefined =>
      i === 2 ? new RequestError('HTTP 500', 'broken') : undefined;
    const args = [
      '--dataset-name',
      'multi-turn',
      '--num-conversations',
      '1',
      '--turns',
      '4',
      '--random-input-len',
      '4',
    ];
    const { json, table } = await bench(args, { failure });
    assert.deepEqual([json['completed'], json['failed']], [1, 1]);
    assert.match(table, /^Requests not sent: +2$/m);
  });
});

test('an interrupted run shows what had ended, and counts what it cut as neither done nor failed', async () => {
  const stopped = new AbortController();
  // Request 0 asks whether the server answers. Of the run one comes every 100 ms and takes 220 ms: the tenth finds two that are open.
  const failure = (i: number): undefined => {
    if (i === 10) stopped.abort(new Error('interrupted'));
  };
  const args = ['--num-prompts', '100', '--request-rate', '10', '--burstiness', 'inf', '--random-output-len', '2'];
  const { code, json, table } = await bench([...args, '--random-input-len', '4'], { failure }, stopped);
  assert.equal(code, 130);
  assert.equal(json.penstock['is_interrupted'], true);
  assert.deepEqual([json['completed'], json.penstock['cut'], json['failed']], [7, 3, 0]);
  assert.match(table, /^Requests cut off: +3$/m);
  assert.match(table, /^Requests not sent: +90$/m);
  assert.match(table, /^interrupted: /m);
});

test('warm-ups do not count and share nothing with the run', async () => {
  const args = ['--num-prompts', '3', '--num-warmups', '2', '--random-input-len', '20', '--random-output-len', '2'];
  const { server, json } = await bench(args, { canTokenize: true });
  assert.equal(json['completed'], 3);
  const prompts = server.bodies.slice(1).map(({ prompt }) => String(prompt));
  assert.deepEqual([prompts.length, new Set(prompts).size], [5, 5]);
});

test('bodies have what was asked for, and null takes a key away', async () => {
  const extra = JSON.stringify({ ignore_eos: null, top_p: 0.5 });
  const args = ['--num-prompts', '1', '--temperature', '0', '--extra-body', extra, '--request-id-prefix', 'mine-'];
  const { server } = await bench([...args, '--model', 'named']);
  const sent = server.bodies[1];
  assert.deepEqual(
    [sent?.model, sent?.['temperature'], sent?.['top_p'], sent && 'ignore_eos' in sent],
    ['named', 0, 0.5, false],
  );
  assert.equal(server.ids[1], 'mine-0');
});

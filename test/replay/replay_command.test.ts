/** The command around the runs: what is read and checked before, what is written after, and when. Runs are played. Budget: 5 s. */
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, test } from 'vitest';
import { ProgressText } from '../../shared/base/progress_text.ts';
import { replayCommand } from '../../services/replay/replay_command.ts';
import type { ReplayInput, ReplayRunner } from '../../services/replay/runner.ts';
import { readTrace } from '../../shared/trace/trace_reader.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { Failure } from '../../shared/base/failure.ts';
import { failsWith } from '../support/failures.ts';
import { policyFigures } from './reports.ts';
import { line } from './traces.ts';

let folder = '';
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'replay-'));
});
afterEach(() => {
  rmSync(folder, { recursive: true });
});

const hardware = {
  name: 'H',
  kv_bytes_per_token: 10,
  link_bytes_per_second: 100,
  dram_to_device_bytes_per_second: 200,
  device_kv_tokens: 1_000,
  dram_kv_tokens: 0,
  max_rows: 8,
  block_tokens_of_the_trace: 4,
  step_seconds: { fixed: 0.5, weights: 4, per_row: 1, per_attended_pair: 0.25, per_context_token_of_a_decode_row: 0 },
};

interface Outcome {
  readonly out: string;
  readonly errors: string;
  readonly inputs: readonly ReplayInput[];
  readonly urls: readonly string[];
}

/** Runs the command; `run` may fail or report progress. */
async function command(args: string, run?: ReplayRunner['run'], isTTY = false): Promise<Outcome> {
  let [out, errors] = ['', ''];
  const inputs: ReplayInput[] = [];
  const urls: string[] = [];
  await replayCommand(
    args.split(' '),
    {
      clock: systemClock,
      out: { write: (text) => (out += text) },
      errors: { write: (text) => (errors += text), isTTY },
      fetchText: async (url) => {
        urls.push(url);
        return JSON.stringify(hardware);
      },
      machine: 'M',
    },
    {
      policies: ['first', 'second'],
      run: async (input, onProgress) => {
        inputs.push(input);
        onProgress({ text: 'halfway', share: 0.5 });
        return run
          ? run(input, onProgress)
          : input.options.policies.map((name) => policyFigures(name, [3], {}, name === 'first'));
      },
    },
  );
  return { out, errors, inputs, urls };
}

function file(name: string, text: string): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

const trace = (): string =>
  file('t.jsonl', `${line()}\n${line({ timestamp: 1_000 })}\n${line({ timestamp: 3_000 })}\n`);

test('the runs get the trace, the hardware and the options; the table, the page and the JSON have their figures', async () => {
  const [html, json, hardwarePath] = [
    join(folder, 'r.html'),
    join(folder, 'r.json'),
    file('h.json', JSON.stringify(hardware)),
  ];
  const { out, errors, inputs } = await command(
    `${trace()} --hardware ${hardwarePath} --compare --html ${html} --json ${json} --cache-curve --link-bytes-per-second 7`,
  );
  const [input] = inputs;
  assert(input && inputs.length === 1);
  assert.equal(input.trace.numRequests, 3);
  assert.deepEqual([input.hardware.maxRows, input.hardware.linkBytesPerSecond], [8, 7]);
  assert.deepEqual(input.options.policies, ['first', 'second']);
  assert.match(out, /^first \(default\) +3 +5 +90\.0 %/m);
  assert.match(out, /Links have 7 bytes a second/);
  assert.match(out, /^unbounded +66\.67 % +66\.67 %$/m);
  assert.equal(errors, '', 'no progress where there is no terminal');
  assert.match(readFileSync(html, 'utf8'), /first \(default\)/);
  const written = JSON.parse(readFileSync(json, 'utf8')) as { policies: { name: string; goodput: number }[] };
  assert.deepEqual(
    written.policies.map(({ name, goodput }) => [name, goodput]),
    [
      ['first', 3],
      ['second', 3],
    ],
  );
  assert.deepEqual(readdirSync(folder).toSorted(), ['h.json', 'r.html', 'r.json', 't.jsonl']);
});

test('hardware comes from a router, whose path need not be named', async () => {
  const first = await command(`${trace()} --hardware http://router:8000`);
  assert.deepEqual(first.urls, ['http://router:8000/api/hardware']);
  assert.equal(first.inputs[0]?.hardware.name, 'H');
  const second = await command(`${trace()} --hardware https://router/other`);
  assert.deepEqual(second.urls, ['https://router/other']);
});

test('a generated trace is replayed, printed or written, and its first requests are those of the whole', async () => {
  const { inputs } = await command('generate:agents:requests=50,seed=3 --requests 20');
  assert.equal(inputs[0]?.trace.numRequests, 20);
  const { out } = await command('--generate agents:requests=50,seed=3');
  const path = join(folder, 'g.jsonl');
  await command(`--generate agents:requests=50,seed=3 --out ${path}`);
  assert.equal(readFileSync(path, 'utf8'), out);
  const whole = await readTrace(path, { blockTokens: 512 });
  assert.equal(whole.numRequests, 50);
  const few = inputs[0].trace;
  for (let i = 0; i < 20; i++) {
    assert.equal(few.requestAt(i).arrivalMs, whole.requestAt(i).arrivalMs);
    assert.equal(few.requestAt(i).inputTokens, whole.requestAt(i).inputTokens);
  }
});

test('progress goes to a terminal, or where it is wanted', async () => {
  assert.match((await command(`${trace()} --trace-block 4`, undefined, true)).errors, /0 s: /);
  assert.match((await command(`${trace()} --trace-block 4 --progress`)).errors, /^\d+ %, 0 s: .*\n$/);
});

test('the line of a terminal is written anew, and not more often than eyes follow; without one a line is added every few seconds', () => {
  let [text, nowMs] = ['', 0];
  const on = (isTTY: boolean): ProgressText => {
    [text, nowMs] = ['', 0];
    return new ProgressText({ write: (more) => (text += more), isTTY }, () => nowMs);
  };
  const play = (progress: ProgressText): string => {
    for (nowMs = 0; nowMs < 10_000; nowMs += 100) progress.show({ text: 'x'.repeat(200), share: nowMs / 10_000 });
    progress.end();
    return text;
  };
  const terminal = play(on(true)).split('\r\x1b[K').slice(1);
  assert.equal(terminal.length, 51);
  assert(terminal.every((shown) => shown.length <= 100 && !shown.includes('\n')));
  assert.equal(terminal.at(-1), '');
  assert.deepEqual(
    play(on(false))
      .split('\n')
      .map((shown) => shown.slice(0, 10)),
    ['0 %, 0 s: ', '50 %, 5 s:', ''],
  );
});

describe('refused before anything runs, and nothing is written', () => {
  const refused = async (args: string, message: RegExp): Promise<void> => {
    const before = readdirSync(folder);
    let ran = false;
    const run = async (): Promise<never> => {
      ran = true;
      throw new Error('it runs');
    };
    await assert.rejects(command(args, run), failsWith('invalid_request', message));
    assert(!ran);
    assert.deepEqual(readdirSync(folder), before);
  };

  test('a trace that is none, or hardware that is none', async () => {
    const json = join(folder, 'r.json');
    await refused(
      `${file('a.jsonl', `${line({ x: 1 })}\n`)} --trace-block 4 --json ${json}`,
      /a\.jsonl:1: x: unknown key/,
    );
    await refused(`${join(folder, 'none')} --json ${json}`, /none cannot be read: ENOENT/);
    await refused(`${trace()} --hardware ${join(folder, 'none')}`, /--hardware .*none cannot be read: ENOENT/);
    await refused(`${trace()} --hardware ${file('h.json', '{}')}`, /h\.json: name: /);
    await refused(`${trace()} --hardware http://`, /--hardware http:\/\/ is no URL/);
  });

  test('a request that the hardware cannot hold, by its line', async () => {
    const small = file('h.json', JSON.stringify({ ...hardware, device_kv_tokens: 8 }));
    await refused(
      `${trace()} --hardware ${small} --json ${join(folder, 'r.json')}`,
      /t\.jsonl:1: .* need 9 tokens of KV, .*, 8 \(H\)/,
    );
  });

  test('requests that all come at once, unless a rate is named', async () => {
    const path = file('once.jsonl', `${line()}\n${line()}\n`);
    await refused(`${path} --trace-block 4`, /all 2 requests arrive at the same time.*--rate/);
    await command(`${path} --trace-block 4 --rate 3`);
  });

  test('a file that could not be written in the end', async () => {
    await refused(`${trace()} --trace-block 4 --json ${folder}`, /cannot be written: it is no regular file/);
    await refused(`--generate zipf --out ${folder}/no/t.jsonl`, /cannot be written: ENOENT/);
  });
});

test('runs that fail leave files as they were', async () => {
  const json = file('r.json', 'old');
  const fail = async (): Promise<never> => {
    throw new Failure('invalid_request', 'no instance can hold it');
  };
  await assert.rejects(
    command(`${trace()} --trace-block 4 --json ${json}`, fail),
    failsWith('invalid_request', /no instance/),
  );
  assert.equal(readFileSync(json, 'utf8'), 'old');
  assert.deepEqual(readdirSync(folder).toSorted(), ['r.json', 't.jsonl']);
});

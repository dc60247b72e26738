/** Traces read from files: every field arrives, and what is no trace is refused by line and key. Budget: 10 s. */
import assert from 'node:assert/strict';
import { createWriteStream } from 'node:fs';
import { once } from 'node:events';
import { describe, test } from 'vitest';
import { readTrace } from '../../shared/trace/trace_reader.ts';
import { MAX_REQUESTS } from '../../shared/trace/trace.ts';
import { failsWith } from '../support/failures.ts';
import { conversationTrace, hasConversationTrace, line, traceOf, withFile } from './traces.ts';

test('a request has what its line says, with times from the first one and ids that keep their order', async () => {
  const trace = await traceOf([
    line({ timestamp: 1_000, hash_ids: [70, 9_007_199_254_740_991] }),
    line({ timestamp: 1_000.5, input_length: 4, output_length: 9, hash_ids: [70], tenant: 'a', priority: -3 }),
    line({ timestamp: 3_000, input_length: 9, hash_ids: [70, 80, 90], session_id: 's', turn: 2, type: 'text' }),
  ]);
  assert.equal(trace.numRequests, 3);
  assert.equal(trace.numBlocks, 4);
  assert.equal(trace.durationMs, 2_000);
  assert.equal(trace.requestsPerSecond, 1.5);
  const shown = [0, 1, 2].map((i) => ({ ...trace.requestAt(i), hashIds: [...trace.requestAt(i).hashIds] }));
  assert.deepEqual(shown, [
    { index: 0, arrivalMs: 0, inputTokens: 7, outputTokens: 2, hashIds: [0, 3], tenant: undefined, priority: 0 },
    { index: 1, arrivalMs: 0.5, inputTokens: 4, outputTokens: 9, hashIds: [0], tenant: 'a', priority: -3 },
    { index: 2, arrivalMs: 2_000, inputTokens: 9, outputTokens: 2, hashIds: [0, 1, 2], tenant: undefined, priority: 0 },
  ]);
  assert.deepEqual(
    [0, 1, 2].map((at) => trace.tokensOfBlock(9, at)),
    [4, 4, 1],
  );
  assert.throws(() => trace.requestAt(3), RangeError);
});

test('line ends of Windows, a byte order mark and a missing last line end change nothing', async () => {
  for (const text of [`\ufeff${line()}\n${line()}\n`, `${line()}\r\n${line()}\r\n`, `${line()}\n${line()}`]) {
    const trace = await withFile('t.jsonl', text, (path) => readTrace(path, { blockTokens: 4 }));
    assert.equal(trace.numRequests, 2);
  }
});

test('only the first requests are read when so many are asked for, whatever follows them', async () => {
  const text = `${line()}\n${line()}\nnot JSON\n`;
  const trace = await withFile('t.jsonl', text, (path) => readTrace(path, { blockTokens: 4, maxRequests: 2 }));
  assert.equal(trace.numRequests, 2);
});

describe('refused, by line and key', () => {
  const good = line();
  test.each([
    ['not JSON', ['{'], /t\.jsonl:2: the line is not JSON/],
    ['NaN', [good.replace('"timestamp":0', '"timestamp":NaN')], /t\.jsonl:2: the line is not JSON/],
    ['no object', ['[1]'], /t\.jsonl:2: the line is \[1\], not an object/],
    ['an unknown key', [line({ lenght: 1 })], /t\.jsonl:2: lenght: unknown key; a request has timestamp, input_length/],
    ['a missing key', [line({ output_length: undefined })], /t\.jsonl:2: output_length: the key is missing/],
    ['a time that is text', [line({ timestamp: '5' })], /t\.jsonl:2: timestamp: "5" is no time/],
    ['a negative time', [line({ timestamp: -1 })], /t\.jsonl:2: timestamp: -1 is no time/],
    [
      'an infinite time',
      [good.replace('"timestamp":0', '"timestamp":1e999')],
      /t\.jsonl:2: timestamp: Infinity is no time/,
    ],
    ['no input', [line({ input_length: 0, hash_ids: [] })], /t\.jsonl:2: input_length: 0 is not allowed/],
    ['half a token', [line({ input_length: 7.5 })], /t\.jsonl:2: input_length: 7.5 is not allowed/],
    ['a huge prompt', [line({ input_length: 1e9 })], /t\.jsonl:2: input_length: 1000000000 is not allowed/],
    ['no output', [line({ output_length: 0 })], /t\.jsonl:2: output_length: 0 is not allowed: an answer has 1 to/],
    ['ids that are no list', [line({ hash_ids: 'x' })], /t\.jsonl:2: hash_ids: "x" is not a list/],
    [
      'too few ids',
      [line({ hash_ids: [0] })],
      /t\.jsonl:2: hash_ids: 1 ids, not 2: one for every 4 of 7 tokens; .*--trace-block/,
    ],
    ['a gap in the ids', [line({ hash_ids: [0, null] })], /t\.jsonl:2: hash_ids\[1\]: null is no block id/],
    ['a fraction as id', [line({ hash_ids: [0.5, 1] })], /t\.jsonl:2: hash_ids\[0\]: 0.5 is no block id/],
    ['a negative id', [line({ hash_ids: [0, -1] })], /t\.jsonl:2: hash_ids\[1\]: -1 is no block id/],
    [
      'an id after another one',
      [line({ hash_ids: [5, 1] })],
      /t\.jsonl:2: hash_ids\[1\]: this id has another id before it on line 1/,
    ],
    [
      'an id that comes again',
      [line({ hash_ids: [0, 0] })],
      /t\.jsonl:2: hash_ids\[1\]: this id has another id before it on line 1/,
    ],
    ['a priority that is text', [line({ priority: 'high' })], /t\.jsonl:2: priority: "high" is no integer/],
    ['a tenant that is a number', [line({ tenant: 4 })], /t\.jsonl:2: tenant: 4 is no name/],
    [
      'unsorted times',
      [line({ timestamp: 9 }), line({ timestamp: 8 })],
      /t\.jsonl:3: timestamp: 8 is before 9 of the line above/,
    ],
    ['a long pause', [line({ timestamp: 4e6 })], /t\.jsonl:2: timestamp: nothing arrived for 4000 s/],
    ['an empty line between', ['', good], /t\.jsonl:2: the line is empty/],
    ['an empty line at the end', [''], /t\.jsonl:2: the line is empty/],
  ] as [string, string[], RegExp][])('%s', async (_, lines, message) => {
    await assert.rejects(traceOf([good, ...lines]), failsWith('invalid_request', message));
  });

  test('a file that ends within a line', async () => {
    const cut = line().slice(0, 30);
    await assert.rejects(
      traceOf([line(), cut], 4, ''),
      failsWith('invalid_request', /t\.jsonl:2: the line is not JSON: the file ends within this line/),
    );
  });

  test('a file without requests, without text, or that is not there', async () => {
    const read = (path: string): Promise<unknown> => readTrace(path, { blockTokens: 4 });
    const refused = (content: string | Uint8Array, message: RegExp): Promise<void> =>
      withFile('t.jsonl', content, (path) => assert.rejects(read(path), failsWith('invalid_request', message)));
    await refused('', /t\.jsonl has no requests/);
    await refused(Uint8Array.of(0x1f, 0x8b, 0xff, 0xfe), /is not UTF-8 text; if it is compressed, unpack it/);
    await refused('x'.repeat(2 ** 24 + 1), /t\.jsonl:1: a line has at most 16777216 characters/);
    await assert.rejects(
      read('/nowhere/t.jsonl'),
      failsWith('invalid_request', /nowhere\/t\.jsonl cannot be read: ENOENT/),
    );
  });

  test('a trace of 10^7 lines, at the first line too many, and read when only its beginning is asked for', async () => {
    await withFile('t.jsonl', '', async (path) => {
      const out = createWriteStream(path);
      const lines = `${line()}\n`.repeat(100_000);
      for (let i = 0; i < 100; i++) if (!out.write(lines)) await once(out, 'drain');
      out.end();
      await once(out, 'finish');
      let progress: [number, number] = [0, 0];
      const onProgress = (done: number, total: number): unknown => (progress = [done, total]);
      await assert.rejects(
        readTrace(path, { blockTokens: 4, onProgress }),
        failsWith('invalid_request', /t\.jsonl:1000001: a trace has at most 1,000,000 requests: .*--requests 1000000/),
      );
      // A tenth of the file was read, not all of it.
      assert(progress[0] < progress[1] / 9, String(progress));
      const trace = await readTrace(path, { blockTokens: 4, maxRequests: 1_000 });
      assert.equal(trace.numRequests, 1_000);
      assert.equal(MAX_REQUESTS, 1e6);
    });
  });
});

test.runIf(hasConversationTrace)('Mooncake’s conversation trace has the sums that its description says', async () => {
  const trace = await readTrace(conversationTrace, { blockTokens: 512 });
  const sum = (column: Int32Array): number => column.reduce((total, value) => total + value, 0);
  assert.equal(trace.numRequests, 12_031);
  assert.equal(trace.columns.hashIds.length, 288_500);
  assert.equal(trace.numBlocks, 182_790);
  assert.equal(Math.round(trace.durationMs / 1_000), 3_537);
  assert.equal(sum(trace.columns.inputTokens), 144_793_823);
  assert.equal(sum(trace.columns.outputTokens), 4_122_048);
});

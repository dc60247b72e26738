/** Hardware of a replay: read from JSON, refused by key, and the time of a step. Budget: 1 s. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'vitest';
import { checkFits, defaultHardware, parseHardware, stepSeconds } from '../../services/replay/hardware.ts';
import { failsWith } from '../support/failures.ts';
import { a800Hardware, builtTrace, hasConversationTrace } from './traces.ts';

const step = { fixed: 0.5, weights: 4, per_row: 1, per_attended_pair: 0.25, per_context_token_of_a_decode_row: 0.125 };
const file = {
  name: 'N',
  step_seconds: step,
  kv_bytes_per_token: 10,
  link_bytes_per_second: 100.5,
  dram_to_device_bytes_per_second: 200,
  device_kv_tokens: 1_000,
  dram_kv_tokens: 0,
  max_rows: 8,
};
const parse = (value: unknown): ReturnType<typeof parseHardware> => parseHardware(JSON.stringify(value), 'h.json');

test('every figure of the file arrives, and blocks of traces have 512 tokens unless it says otherwise', () => {
  const words = { source: 'S', step_formula: 'f', speed_up: 's', comment: 'c', assumed: ['link_bytes_per_second'] };
  const { step: seconds, ...rest } = parse(Object.assign(words, file));
  assert.deepEqual(seconds, {
    fixed: 0.5,
    weights: 4,
    perRow: 1,
    perAttendedPair: 0.25,
    perContextToken: 0.125,
    perSequence: 0,
  });
  assert.deepEqual(rest, {
    name: 'N',
    source: 'S',
    kvBytesPerToken: 10,
    linkBytesPerSecond: 100.5,
    dramToDeviceBytesPerSecond: 200,
    deviceKvTokens: 1_000,
    dramKvTokens: 0,
    maxRows: 8,
    traceBlockTokens: 512,
  });
  assert.equal(parse({ ...file, block_tokens_of_the_trace: 16 }).traceBlockTokens, 16);
});

test('a step takes the larger of its weights and its rows, and its attention', () => {
  const hardware = parse({ ...file, step_seconds: { ...step, per_sequence: 16 } });
  assert.equal(stepSeconds(hardware, 2, 0, 0), 4.5);
  assert.equal(stepSeconds(hardware, 7, 0, 0), 7.5);
  assert.equal(stepSeconds(hardware, 7, 4, 8), 9.5);
  assert.equal(stepSeconds(hardware, 7, 4, 8, 2), 41.5);
});

describe('refused by its key', () => {
  test.each([
    ['an unknown key', { ...file, max_row: 3 }, /h\.json: max_row: unknown key; known are name, .*max_rows/],
    [
      'an unknown coefficient',
      { ...file, step_seconds: { ...step, per_rows: 1 } },
      /step_seconds\.per_rows: unknown key; known are fixed/,
    ],
    ['a missing key', { ...file, max_rows: undefined }, /h\.json: max_rows: .*expected number/],
    ['a missing coefficient', { ...file, step_seconds: { ...step, fixed: undefined } }, /step_seconds\.fixed: /],
    ['a negative time', { ...file, step_seconds: { ...step, per_row: -1 } }, /step_seconds\.per_row: /],
    [
      'a step without time',
      { ...file, step_seconds: { ...step, fixed: 0, weights: 0, per_row: 0 } },
      /step_seconds: a step takes no time/,
    ],
    ['a number as text', { ...file, kv_bytes_per_token: '10' }, /kv_bytes_per_token: .*expected number/],
    ['half a token', { ...file, device_kv_tokens: 10.5 }, /device_kv_tokens: .*expected int/],
    ['no room for KV', { ...file, device_kv_tokens: 0 }, /device_kv_tokens: /],
    ['a link without speed', { ...file, link_bytes_per_second: 0 }, /link_bytes_per_second: /],
    ['no rows', { ...file, max_rows: 0 }, /max_rows: /],
    ['a list', [], /h\.json: the file: /],
    [
      'a model larger than the device',
      { ...file, device_memory_bytes: 100, weight_bytes: 101 },
      /weight_bytes: the model's 101 bytes do not fit device_memory_bytes, which are 100/,
    ],
    [
      'more KV than the model leaves room for',
      { ...file, device_memory_bytes: 1_000, weight_bytes: 500 },
      /device_kv_tokens: the model leaves 500 bytes on the device, which hold 50 tokens, not 1000/,
    ],
  ] as [string, unknown, RegExp][])('%s', (_, value, message) => {
    assert.throws(() => parse(value), failsWith('invalid_request', message));
  });

  test('text that is not JSON, and an infinite number', () => {
    assert.throws(() => parseHardware('{', 'h.json'), failsWith('invalid_request', /h\.json is not JSON/));
    const infinite = JSON.stringify(file).replace('100.5', '1e999');
    assert.throws(() => parseHardware(infinite, 'h.json'), failsWith('invalid_request', /link_bytes_per_second: /));
  });
});

test('the longest request of a trace must fit the device; a refusal names its line and both sizes', () => {
  const hardware = parse(file);
  const request = (inputTokens: number, outputTokens: number) => ({
    timestampMs: 0,
    inputTokens,
    outputTokens,
    hashIds: Array.from({ length: Math.ceil(inputTokens / 4) }, (_, i) => i),
  });
  checkFits(builtTrace([request(990, 10), request(1, 999)]), hardware, 't.jsonl');
  const trace = builtTrace([request(991, 10), request(990, 12), request(1, 1)]);
  assert.throws(
    () => checkFits(trace, hardware, 't.jsonl'),
    failsWith(
      'invalid_request',
      /^t\.jsonl:2: input_length 990 and output_length 12 need 1002 tokens of KV, .*device_kv_tokens of an instance, 1000/,
    ),
  );
});

test('the default hardware takes as long as its published figures say', () => {
  // A decode step of one sequence reads all weights; 512 rows of a prompt are bound by arithmetic.
  assert(
    Math.abs(
      stepSeconds(defaultHardware, 1, 0, 1_000) - (0.001 + 16.06e9 / (0.7 * 3.35e12) + 131_072e3 / (0.7 * 3.35e12)),
    ) < 1e-6,
  );
  assert(Math.abs(stepSeconds(defaultHardware, 512, 0, 0) - (0.001 + (512 * 16.06e9) / (0.65 * 989e12))) < 1e-6);
  assert(defaultHardware.deviceKvTokens * defaultHardware.kvBytesPerToken + 16.06e9 < 0.9 * 80e9);
});

test.runIf(hasConversationTrace)('the hardware next to Mooncake’s trace is read', () => {
  const hardware = parseHardware(readFileSync(a800Hardware, 'utf8'), 'a800');
  // 110 rows are the most that reading the weights pays for.
  assert.equal(stepSeconds(hardware, 110, 0, 0), stepSeconds(hardware, 1, 0, 0));
  assert(stepSeconds(hardware, 111, 0, 0) > stepSeconds(hardware, 110, 0, 0));
  assert.equal(hardware.traceBlockTokens, 512);
  assert.equal(hardware.deviceKvTokens, 1_200_000);
});

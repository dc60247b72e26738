/** The sizes of published models, through the path that serves them, are the known ones. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { kvSizes, publishedSpec } from '../bench/kv_sizes.ts';
import { publishedConfigs } from '../support/published_configs.ts';
import { stateIntervalOf } from '../../shared/engine/engine_options.ts';

const specs = new Map(Object.entries(publishedConfigs).map(([model, config]) => [model, publishedSpec(config)]));

/** Models with recurrent layers. */
const hybrids = ['Qwen3.5-9B', 'Granite-4.0-H-Micro', 'LFM2-1.2B'];

function bytesPerToken(model: string): number {
  const { payloadBytes, blockSize } = specs.get(model)!;
  return payloadBytes / blockSize;
}

test('bytes of KV per token', () => {
  assert.equal(bytesPerToken('Llama-3.1-8B'), 128 << 10);
  assert.equal(bytesPerToken('Qwen3.5-9B'), 32 << 10);
  assert.equal((bytesPerToken('GLM-4.7-Flash') / 1_024).toFixed(1), '52.9');
  // 25 windowed layers with K and V of 8 heads of 256, 5 full layers with one plane of 2 heads of 512.
  assert.equal(bytesPerToken('Gemma-4-26B-A4B'), 2 * (25 * 2 * 8 * 256 + 5 * 2 * 512));
});

test('the state of Qwen3.5-9B takes about 49 MiB, in 24 of 32 layers', () => {
  const spec = specs.get('Qwen3.5-9B')!;
  const mib = spec.state!.payloadBytes / 2 ** 20;
  assert(mib > 48 && mib < 51, `${mib} MiB`);
  assert.equal(spec.groups.find(({ kind }) => kind === 'state')!.layers.length, 24);
  assert.equal(stateIntervalOf(spec), 16);
  for (const [model, { state }] of specs) assert.equal(state !== undefined, hybrids.includes(model));
});

test('the state of Granite-4.0-H-Micro is a window of 3 rows and 64 matrices in 36 layers, that of LFM2-1.2B a window of 2 rows in 10', () => {
  const bytes = (model: string): number => specs.get(model)!.state!.payloadBytes;
  assert.equal(bytes('Granite-4.0-H-Micro'), 36 * 4 * (3 * (64 * 64 + 2 * 128) + 64 * 64 * 128));
  assert.equal(bytes('LFM2-1.2B'), 10 * 4 * 2 * 2_048);
  assert.deepEqual(
    ['Granite-4.0-H-Micro', 'LFM2-1.2B'].map((model) => bytesPerToken(model)),
    [2 * 4 * 2 * 8 * 64, 2 * 6 * 2 * 8 * 64],
  );
});

test('planes by kind of layer', () => {
  const planes = (model: string): unknown[] =>
    specs
      .get(model)!
      .groups.map(({ kind, window, planes: own, layers }) => [
        kind,
        window,
        own.map(({ width }) => width),
        layers.length,
      ]);
  assert.deepEqual(planes('Llama-3.1-8B'), [['paged', 0, [1_024, 1_024], 32]]);
  assert.deepEqual(planes('Gemma-4-26B-A4B'), [
    ['window', 1_024, [2_048, 2_048], 25],
    ['paged', 0, [2 * 512], 5],
  ]);
  assert.deepEqual(planes('GLM-4.7-Flash'), [['paged', 0, [576], 47]]);
  // The last 18 layers read the KV of others, and have no plane.
  assert.deepEqual(planes('Gemma-4-E4B'), [
    ['window', 512, [512, 512], 20],
    ['paged', 0, [1_024, 1_024], 4],
    ['window', 512, [], 15],
    ['paged', 0, [], 3],
  ]);
});

test('figures have records with their preambles, and a state only where there is one', () => {
  const figures = new Map(kvSizes().map(({ name, value }) => [name.replace('transfer/', ''), value]));
  for (const [model, { payloadBytes, preambleBytes, blockSize }] of specs) {
    const record = figures.get(`KV of ${model}/record, in a tier and on the wire`)!;
    assert.equal(record * 1_024 * blockSize, payloadBytes + preambleBytes);
    assert(figures.get(`KV of ${model}/record on the wire, outside all windows`)! <= record);
    assert.equal(figures.has(`state of ${model}/record`), hybrids.includes(model));
  }
});

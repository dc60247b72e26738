/** The engine benchmark runs, tiny, on both devices, so that it cannot rot. Its figures are not judged. Budget: 60 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { benchEngine } from './engine.ts';
import { report } from './figures.ts';
import { isLong } from '../support/long.ts';

const tiny = {
  shapes: ['tiny'],
  formats: ['int8'],
  sets: ['deterministic', 'fast'],
  prefillTokens: [32],
  batches: [1, 2],
  contexts: [64],
  numThreads: 1,
  budgetMs: 60_000,
  hasProfile: true,
  readRegionBytes: 2 ** 22,
} as const;

const devices: [device: string, figures: string[]][] = [
  [
    'wasm',
    [
      'engine/peak/read',
      'engine/peak/multiply-add-int8',
      'engine/peak/barrier',
      'engine/tiny/int8/prefill/32',
      'engine/tiny/int8/prefill/32/kernel/linear-64-to-128/products',
      'engine/tiny/int8/decode/batch2/context64',
      'engine/tiny/int8/decode/batch1/context64/read',
      'engine/tiny/int8/decode/batch2/context64/over-batch1',
      'engine/tiny/int8/decode/batch2/context64/sampling/default',
    ],
  ],
  [
    'webgpu:llvmpipe',
    [
      'engine/peak/read',
      'engine/peak/dispatch',
      'engine/tiny/int8/fast/prefill/32',
      'engine/tiny/int8/deterministic/decode/batch1/context64',
      'engine/tiny/int8/deterministic/decode/batch1/context64/per-dispatch',
      'engine/tiny/int8/fast/decode/batch1/context64/sampling/top_p',
      'engine/tiny/fast/serial-part/batch2',
      'engine/tiny/int8/fast/decode/batch1/context64/kernel/attention-(decode)/read',
      'engine/tiny/int8/price-of-determinism/decode/batch2/context64',
    ],
  ],
];

// In software the other device compiles for half a minute.
test.each(devices.slice(0, isLong ? 2 : 1))('engine on %s reports every figure it promises', async (device, wanted) => {
  const lines: string[] = [];
  const { figures } = report(await benchEngine({ ...tiny, device, print: (line) => lines.push(line) }));
  const names = figures.map(({ name }) => name);
  for (const name of wanted) assert(names.includes(name), `${name} is none of ${names.join(', ')}`);
  for (const { name, value } of figures) assert(Number.isFinite(value) && value >= 0, `${name} is ${value}`);
});

test('a shape with recurrent layers has the time of a row in a layer', async () => {
  const figures = await benchEngine({ ...tiny, shapes: ['tiny-hybrid'], device: 'wasm', print: () => undefined });
  const value = (name: string): number => figures.find((one) => one.name === `engine/tiny-hybrid/int8/${name}`)!.value;
  for (const step of ['prefill/32', 'decode/batch2/context64']) {
    assert(value(step) > 0);
    // Three of the four layers are gated delta nets.
    const rows = step === 'prefill/32' ? 32 : 2;
    const perRow = value(`${step}/kernel/delta_rule/per-row`);
    assert(Math.abs((perRow * rows * 3) / 1_000 - value(`${step}/kernel/delta_rule`)) < 1e-9);
    const share = value(`${step}/kernel/delta_rule/share`);
    assert(share > 0 && share < 1, `${share}`);
  }
});

test('what takes too long or does not fit is skipped with a line', async () => {
  const lines: string[] = [];
  const figures = await benchEngine({ ...tiny, device: 'wasm', budgetMs: 1e-6, print: (line) => lines.push(line) });
  assert(figures.length > 0 && figures.every(({ name }) => name.startsWith('engine/peak/')));
  assert.match(lines.join('\n'), /prefill\/32: skipped, it would take about/);
  await benchEngine({
    ...tiny,
    device: 'wasm',
    shapes: ['8b'],
    formats: ['f32'],
    machineBytes: 2 ** 33,
    print: (line) => lines.push(line),
  });
  assert.match(lines.join('\n'), /engine\/8b\/f32: skipped, it does not fit: .* MiB needed/);
});

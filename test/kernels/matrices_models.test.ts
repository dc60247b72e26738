/** Whole models on subgroup matrices, as matrices.test.ts: the golden vectors with both sets that use them, and E2. Budget: 60 s. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import type { WeightFormat } from '../../kernels/weights/weight_format.ts';
import { typicalProgram } from '../../kernels/wgsl/row_probe.ts';
import { createWebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import { assertSameBits, bitsOf } from './bits.ts';
import { goldenSuite } from '../engine/golden_suite.ts';
import { goldenFolder, goldenFormats, goldenModels } from '../support/golden.ts';
import { isLong, longTest } from '../support/long.ts';
import { testAdapter, testDevice as device, useVectorWidth } from './software_gpu.ts';

useVectorWidth(256, { compiles: 'well' });

const loose: Readonly<Record<string, true>> = { 'qwen3_5-simple': true, gpt_oss: true, 'gpt_oss-mxfp4': true };

// Tiles of many rows hold x, and weights with their scales, as f16.
describe('fast, on matrices', () => {
  const options = { device, kernelSet: 'fast' } as const;
  if (!isLong) goldenSuite(options, ['llama-untied'], 1e-2);
  else {
    const models = [...goldenModels, ...goldenFormats].filter((name) => !(name in loose));
    goldenSuite(options, models, 1e-2);
    // Weights of this one are f32, and lose as much by being f16 as the bound of the others.
    goldenSuite(options, ['qwen3_5-simple'], 2e-2);
    goldenSuite(options, ['gpt_oss', 'gpt_oss-mxfp4'], 1e-2, 1 / 8);
  }
});

describe('matrices for every number of rows', () => {
  if (isLong) goldenSuite({ device, kernelSet: 'matrices' }, goldenModels, 1e-2);
  const models: readonly (readonly [model: string, format: WeightFormat])[] = [
    ['llama-odd', 'int4'],
    ['llama-bias', 'f16'],
    ['gemma2', 'int8'],
    ['mixtral', 'uint4'],
    ['qwen3-moe', 'int4'],
  ];
  test.each(isLong ? models : models.slice(0, 1))(
    'E2: %s with %s weights has the same bits in chunks of 150 down to 1, alone and with others',
    async (model, weightFormat) => {
      const options = { modelPath: goldenFolder(model), device, kernelSet: 'matrices', weightFormat } as const;
      const texts = await bitsOf(options, [
        { chunk: 150, numOthers: 0 },
        { chunk: 70, numOthers: 2 },
        { chunk: 17, numOthers: 0 },
        { chunk: 5, numOthers: 1 },
        { chunk: 1, numOthers: 0 },
      ]);
      assertSameBits(texts);
    },
  );

  longTest('rows that differ there switch them off, and the deterministic set stands in', async () => {
    const opened = await createWebgpuDevice({
      adapter: testAdapter,
      kernelSet: 'matrices',
      memoryBytes: 0,
      // Simulates a unit that sums its first section differently when a step has one row.
      rewriteWgsl: (name, code) =>
        name === 'matmul_subgroup_matrix'
          ? code.replace('let v = clamp(x_next[i],', 'let v = clamp(x_next[i] * select(1.0, 1.002, num_rows == 1),')
          : code,
    });
    expect(opened.capabilities.set).toBe('matrices');
    assert.match(opened.numericsClass, /\/matrices-8-8-8\//);
    await opened.checkRows(typicalProgram, { weightFormat: 'int4', kv: { dtype: 'f16', blockSize: 32 } });
    expect(opened.capabilities.set).toBe('deterministic');
    assert.match(opened.notes.join(), /its matrix units are not used: row 0 of a step of 1 has other bits/);
    assert.match(opened.numericsClass, /\/deterministic\//);
    assert(!opened.numericsClass.includes('unequal'));
    opened.destroy();
  });
});

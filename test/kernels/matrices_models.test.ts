/** Whole models on subgroup matrices, as matrices.test.ts: the golden vectors with the fast set. Budget: 60 s. */
import { describe } from 'vitest';
import { goldenSuite } from '../engine/golden_suite.ts';
import { goldenFormats, goldenModels } from '../support/golden.ts';
import { isLong } from '../support/long.ts';
import { testDevice as device, useVectorWidth } from './software_gpu.ts';

useVectorWidth(256, { compiles: 'well' });

// Tiles of many rows hold x, and weights with their scales, as f16.
describe('fast, on matrices', () => {
  goldenSuite({ device, kernelSet: 'fast' }, isLong ? goldenModels : ['llama-untied', 'qwen3-moe', 'gemma3'], 1e-2);
  if (isLong) goldenSuite({ device, kernelSet: 'fast' }, goldenFormats, 1e-2);
});

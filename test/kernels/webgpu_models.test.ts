/**
 * Whole models on the webgpu device, deterministic set: the golden vectors, and E2, under the software Vulkan
 * driver or on a real GPU.
 * Budget: 150 s.
 */
import { describe, test } from 'vitest';
import { embeddingSuite } from '../engine/embedding_suite.ts';
import type { LoadModelOptions } from '../../shared/engine/load_options.ts';
import { goldenSuite } from '../engine/golden_suite.ts';
import { stateSuite } from '../engine/state_suite.ts';
import { windowSuite } from '../engine/window_suite.ts';
import { assertSameBits, bitsOf } from './bits.ts';
import { weightFormats, type WeightFormat } from '../../kernels/weights/weight_format.ts';
import {
  goldenCases,
  goldenFolder,
  goldenFormats,
  goldenModels,
  hasRanges,
  type GoldenCase,
} from '../support/golden.ts';
import { isLong, sampleOf } from '../support/long.ts';
import { isByHand, isSoftware, testDevice as device, useVectorWidth } from './software_gpu.ts';

useVectorWidth(256, { compiles: 'well' });

/**
 * Architectures that share no operation but the common ones: what the short run has, besides hybrids, whose states are compared too. On
 * wasm all models run.
 */
const fewest = ['qwen2-tied-window', 'gemma4', 'deepseek_v3', 'qwen3_next'] as const;
/** Each architecture once: a software GPU compiles for seconds. */
const architectures = [
  ...[
    'llama-odd',
    'mistral',
    'qwen2-tied-window',
    'qwen3',
    'phi3-longrope',
    'gemma2',
    'gemma3',
    'gemma4',
    'mixtral',
    'qwen3-moe',
    'glm4_moe',
    'deepseek_v3',
    'qwen3_5-simple',
    'qwen3_next',
    'lfm2',
    'granitemoehybrid',
  ],
] as const;
/**
 * Models that differ in their kernels: heads of their own size, an output matrix of its own, inputs of layers, sinks, a mixture next to
 * the MLP.
 */
const more = [
  ...(['llama-head-dim', 'llama-untied', 'deepseek_v3-noq', 'glm4_moe_lite'] as const),
  ...(['qwen3_5', 'qwen3_5-moe', 'gpt_oss', 'gemma4-e', 'gemma4-moe', 'granitemoehybrid-dense'] as const),
] as const;
const isSampled = isSoftware && !isLong;

/** The short run has three prompts of each model, both that are compared at every position among them. */
function golden(options: Partial<LoadModelOptions>, models: readonly string[], bound?: number): void {
  const casesOf = (name: string): GoldenCase[] => sampleOf(goldenCases(name), isSampled && !isByHand ? 3 : 1, 1);
  goldenSuite(options, models, bound, 0, casesOf);
}

const compiled = isSampled ? fewest : isSoftware ? [...architectures, ...more] : goldenModels;
golden({ device }, compiled);
const formats = ['llama-gptq', 'llama-awq', 'gguf-q8_0', 'gguf-q4_0', 'gguf-q4_k_m'] as const;
golden({ device }, isSampled ? ['llama-gptq', 'gguf-q4_k_m'] : isSoftware ? formats : goldenFormats);
describe('as stored', () => {
  // Weights are not rounded again; the activations they multiply are f32.
  golden(
    { device, weightFormat: 'auto' },
    isSampled ? ['gpt_oss-mxfp4'] : ['gguf-q8_0', 'gguf-q4_0', 'gpt_oss-mxfp4'],
    1e-2,
  );
});
// Tiles of many rows hold x as f16.
describe('fast', () => {
  golden({ device, kernelSet: 'fast' }, isSoftware ? ['llama-untied'] : goldenModels, 1e-2);
});

embeddingSuite({ device });

const hybrids = [
  'qwen3_5',
  'qwen3_5-simple',
  'qwen3_next',
  'lfm2',
  'granitemoehybrid',
  'granitemoehybrid-dense',
] as const;
stateSuite(isSampled ? ['qwen3_5', 'granitemoehybrid'] : hybrids, { device });

windowSuite(isSoftware ? ['gemma3'] : ['mistral', 'gemma3', 'qwen2-tied-window'], { device });

/** Every model in every format on a real GPU; what compiles slowly in software is sampled. */
const combinations: readonly (readonly [model: string, kvDtype: 'f16' | 'f32', weightFormat: WeightFormat])[] =
  isSampled
    ? [
        ['deepseek_v3', 'f32', 'int4'],
        ['qwen3_5', 'f16', 'f16'],
      ]
    : isSoftware
      ? [
          ['llama-odd', 'f16', 'f32'],
          ['llama-head-dim', 'f32', 'f16'],
          ['llama-tied', 'f16', 'int8'],
          ['llama-bias', 'f16', 'int4'],
          ['llama-head-dim', 'f16', 'uint4'],
          ['gemma2', 'f16', 'int8'],
          ['gemma3', 'f16', 'f32'],
          ['gemma4', 'f16', 'f16'],
          ['gemma4', 'f32', 'int8'],
          ['gemma4-e', 'f16', 'f16'],
          ['mixtral', 'f16', 'int4'],
          ['mixtral', 'f16', 'uint4'],
          ['deepseek_v3', 'f16', 'int8'],
          ['qwen3_5', 'f16', 'f16'],
          ['gpt_oss', 'f16', 'mxfp4'],
          ['lfm2', 'f16', 'f16'],
          ['granitemoehybrid', 'f16', 'f16'],
          ['llama-head-dim', 'f16', 'iq4'],
        ]
      : goldenModels.flatMap((model) =>
          weightFormats.flatMap((format) => (['f16', 'f32'] as const).map((kv) => [model, kv, format] as const)),
        );

test.each(combinations)(
  'E2: %s with %s KV and %s weights has the same bits in chunks of 150 down to 1, alone and with others',
  async (model, kvDtype, weightFormat) => {
    const inRanges = [
      { chunk: 64, numOthers: 0, isInRanges: true },
      { chunk: 149, numOthers: 2, isInRanges: true },
    ];
    const texts = await bitsOf({ modelPath: goldenFolder(model), device, kvDtype, weightFormat }, [
      { chunk: 150, numOthers: 0 },
      { chunk: 64, numOthers: 5 },
      { chunk: 17, numOthers: 0 },
      { chunk: 5, numOthers: 1 },
      { chunk: 1, numOthers: 0 },
      ...(hasRanges(model) ? inRanges : []),
    ]);
    assertSameBits(texts);
  },
);

/**
 * GGUF files of families whose layers differ, with latent attention or with mixtures that have shared experts: the same bits as from
 * safetensors, other forms of files, and keys that are refused. Budget: 30 s.
 */
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { programOf, shapeOf } from '../../shared/engine/architectures/registry.ts';
import { storageFormats } from '../../shared/engine/storage_formats.ts';
import { configOf } from '../../shared/model/gguf/gguf_config.ts';
import { familyOf } from '../../shared/model/gguf/gguf_families.ts';
import { ModelError } from '../../shared/model/model_folder.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { ggufOf, type GgufOptions } from '../support/gguf_file.ts';
import { folderOfTensors } from '../support/checkpoint_folder.ts';
import { goldenCases, goldenFolder, maxAbs } from '../support/golden.ts';
import { loadReference, logitsOf } from '../support/reference_loop.ts';

const folders: string[] = [];
afterEach(() => {
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true });
});

type More = Parameters<typeof ggufOf>[1];

async function fileOf(folder: string, more: More = {}, options: GgufOptions = {}): Promise<string> {
  const path = await ggufOf(folder, more, options);
  folders.push(dirname(path));
  return path;
}

/** Logits of the model at a path, of both a short prompt and one that is longer than any window. */
async function logitsFrom(path: string, prompts: readonly (readonly number[])[]): Promise<Float32Array[]> {
  const { executable, device } = await loadReference(path, 'f32', 2_048, { weightFormat: 'f32' });
  const rows: Float32Array[] = [];
  for (const prompt of prompts) rows.push(await logitsOf(executable, prompt));
  await executable.close();
  device.destroy();
  return rows;
}

const promptsOf = (name: string): readonly (readonly number[])[] => goldenCases(name).map(({ prompt }) => prompt);

describe('a converted model has the bits of its folder', () => {
  test.each([
    ...['olmo3', 'ministral3', 'deepseek_v3', 'glm4_moe_lite', 'glm4_moe', 'gemma4', 'gemma4-e', 'gemma4-moe'],
  ])('%s', async (name) => {
    const prompts = promptsOf(name);
    const path = await fileOf(goldenFolder(name));
    expect(await logitsFrom(path, prompts)).toEqual(await logitsFrom(goldenFolder(name), prompts));
  });
});

describe('gates and ups in one tensor are the same model', () => {
  test.each(['deepseek_v3', 'glm4_moe', 'mixtral', 'gpt_oss'])('%s', async (name) => {
    const prompts = promptsOf(name).slice(-1);
    const path = await fileOf(goldenFolder(name), {}, { isFused: true });
    expect(await logitsFrom(path, prompts)).toEqual(await logitsFrom(goldenFolder(name), prompts));
  });
});

const wholeLatent: More = {
  'deepseek2.attention.key_length_mla': undefined,
  'deepseek2.attention.value_length_mla': undefined,
  'deepseek2.attention.key_length': 24,
  'deepseek2.attention.value_length': 20,
  'deepseek2.attention.head_count_kv': 4,
};

test('a file with keys and values of latent attention in one tensor is the same model', async () => {
  const prompts = promptsOf('deepseek_v3').slice(-1);
  const path = await fileOf(goldenFolder('deepseek_v3'), wholeLatent, { isWholeLatent: true });
  expect(await logitsFrom(path, prompts)).toEqual(await logitsFrom(goldenFolder('deepseek_v3'), prompts));
});

test('latent attention whose queries are one product has the bits of its folder', async () => {
  // Published models of this form have no biases, and rotate neighbours together.
  const folder = mkdtempSync(join(tmpdir(), 'latent-'));
  folders.push(folder);
  cpSync(goldenFolder('deepseek_v3-noq'), folder, { recursive: true });
  const config = JSON.parse(readFileSync(join(folder, 'config.json'), 'utf8')) as Record<string, unknown>;
  writeFileSync(
    join(folder, 'config.json'),
    JSON.stringify({ ...config, attention_bias: false, rope_interleave: true }),
  );
  const prompts = promptsOf('deepseek_v3-noq').slice(-1);
  expect(await logitsFrom(await fileOf(folder), prompts)).toEqual(await logitsFrom(folder, prompts));
});

/** Tensors of DeepSeek's kind whose matrices have rows of whole blocks: one dense layer, one mixture. */
function latentFolder(): string {
  const [hidden, heads, rank, plain, rotary, value, inner, numExperts] = [64, 2, 32, 32, 8, 32, 64, 4] as const;
  const config = {
    model_type: 'deepseek_v3',
    vocab_size: 200,
    hidden_size: hidden,
    num_hidden_layers: 2,
    num_attention_heads: heads,
    intermediate_size: inner,
    moe_intermediate_size: inner,
    n_routed_experts: numExperts,
    num_experts_per_tok: 2,
    n_shared_experts: 1,
    n_group: 2,
    topk_group: 1,
    first_k_dense_replace: 1,
    norm_topk_prob: true,
    routed_scaling_factor: 1.5,
    q_lora_rank: 32,
    kv_lora_rank: rank,
    qk_nope_head_dim: plain,
    v_head_dim: value,
    qk_rope_head_dim: rotary,
    rms_norm_eps: 1e-5,
    rope_theta: 10_000,
    max_position_embeddings: 128,
    tie_word_embeddings: false,
  };
  const shapes = new Map<string, number[]>([
    ['model.embed_tokens.weight', [200, hidden]],
    ['model.norm.weight', [hidden]],
    ['lm_head.weight', [200, hidden]],
  ]);
  for (const layer of [0, 1]) {
    const at = `model.layers.${layer}`;
    const put = (name: string, ...shape: number[]): void => void shapes.set(`${at}.${name}.weight`, shape);
    put('input_layernorm', hidden);
    put('post_attention_layernorm', hidden);
    put('self_attn.q_a_proj', 32, hidden);
    put('self_attn.q_a_layernorm', 32);
    put('self_attn.q_b_proj', heads * (plain + rotary), 32);
    put('self_attn.kv_a_proj_with_mqa', rank + rotary, hidden);
    put('self_attn.kv_a_layernorm', rank);
    put('self_attn.kv_b_proj', heads * (plain + value), rank);
    put('self_attn.o_proj', hidden, heads * value);
    const experts = Array.from({ length: numExperts }, (_, expert) => `mlp.experts.${expert}`);
    for (const own of layer === 0 ? ['mlp'] : ['mlp.shared_experts', ...experts]) {
      put(`${own}.gate_proj`, inner, hidden);
      put(`${own}.up_proj`, inner, hidden);
      put(`${own}.down_proj`, hidden, inner);
    }
    if (layer === 0) continue;
    put('mlp.gate', numExperts, hidden);
    shapes.set(`${at}.mlp.gate.e_score_correction_bias`, [numExperts]);
  }
  return folderOfTensors(config, shapes, 5).folder;
}

test('latent attention and experts in Q8_0 are held as they are stored', async () => {
  const folder = latentFolder();
  folders.push(folder);
  const matrices = /(attn_(q_a|q_b|kv_a_mqa|k_b|v_b|output)|ffn_(gate|up|gate_up|down)(_exps|_shexp)?)\.weight$/;
  const path = await fileOf(folder, {}, { isFused: true, quantised: matrices });
  const model = await openModel(path);
  const weights = await model.openWeights();
  const { program } = storageFormats(programOf(model.config, shapeOf(model), 128), weights, 'auto', 'f16');
  await weights.close();
  for (const part of ['self_attn.key_up', 'self_attn.value_up', 'mlp.gate_up', 'mlp.down'])
    expect(program.weights[`model.layers.1.${part}`]?.format, part).toBe('int8');
  const prompts = [[7, 3, 9, 150, 21, 8, 77]];
  const [want] = await logitsFrom(path, prompts);
  const { executable, device } = await loadReference(path, 'f32', 2_048, { weightFormat: 'auto' });
  const got = await logitsOf(executable, prompts[0]!);
  await executable.close();
  device.destroy();
  const error = maxAbs(got.map((value, i) => value - want![i]!)) / maxAbs(want!);
  // Products of int8 round what they multiply too.
  assert(error > 0 && error < 0.06, `${error}`);
});

test('OLMo 2 and 3 share an architecture: a window makes the difference', async () => {
  const model = async (more: More): Promise<string> =>
    (await openModel(await fileOf(goldenFolder('olmo3'), more))).config.modelType;
  expect(await model({})).toBe('olmo3');
  expect(await model({ 'olmo2.attention.sliding_window': undefined })).toBe('olmo2');
});

test('a period in place of flags by layer, and none at all, are the usual pattern', async () => {
  for (const pattern of [4, undefined]) {
    const path = await fileOf(goldenFolder('olmo3'), { 'olmo2.attention.sliding_window_pattern': pattern });
    const { layers } = shapeOf(await openModel(path));
    expect(layers.map(({ window }) => window)).toEqual([40, 40, 40, 0]);
  }
});

const rawSchema = z.looseObject({ rope_scaling: z.looseObject({}) });

test("the factors of YaRN are the file's", async () => {
  const scaling = async (name: string, more: More): Promise<Record<string, unknown>> =>
    (await openModel(await fileOf(goldenFolder(name), more))).config.read(rawSchema).rope_scaling;
  const deepseek = await scaling('deepseek_v3', { 'deepseek2.rope.scaling.yarn_log_multiplier': { f32: 0.0707 } });
  expect(deepseek).toMatchObject({ mscale_all_dim: 0.707, attention_factor: 1, factor: 4 });
  const ministral = await scaling('ministral3', { 'mistral3.rope.scaling.yarn_log_multiplier': { f32: 0.5 } });
  const wanted = (0.1 * Math.log(4) + 1) / (0.05 * Math.log(4) + 1);
  expect(ministral).toMatchObject({ attention_factor: wanted, beta_fast: 32, beta_slow: 1, llama_4_scaling_beta: 0.3 });
  const olmo = await scaling('olmo3', { 'olmo2.rope.scaling.yarn_attn_factor': { f32: 1.25 } });
  expect(olmo).toMatchObject({ attention_factor: 1.25 });
  // Earlier converters wrote the whole factor under this name.
  const earlier = await scaling('olmo3', { 'olmo2.rope.scaling.attn_factor': { f32: 1.25 } });
  expect(earlier).toMatchObject({ attention_factor: 1.25 });
});

describe('files that do not say how experts are scored', () => {
  const raw = (vocabSize: number): Record<string, unknown> => {
    const keys = {
      embedding_length: 64,
      block_count: 48,
      nextn_predict_layers: 1,
      context_length: 64,
      feed_forward_length: 96,
      'attention.head_count': 4,
      'attention.layer_norm_rms_epsilon': 1e-5,
      'rope.dimension_count': 8,
      'attention.kv_lora_rank': 24,
      'attention.key_length_mla': 24,
      'attention.value_length_mla': 16,
      expert_feed_forward_length: 32,
      expert_count: 8,
      expert_used_count: 2,
    };
    const metadata = Object.fromEntries(Object.entries(keys).map(([key, value]) => [`deepseek2.${key}`, value]));
    return configOf({ family: familyOf('deepseek2', 8), metadata, vocabSize, tensors: new Map(), ropeFactors: {} });
  };

  test("one of GLM-4.7-Flash's size scores by sigmoids", () => {
    const config = raw(154_880);
    expect(config).toMatchObject({ scoring_func: 'sigmoid', norm_topk_prob: false, routed_scaling_factor: 1 });
    expect(config).toMatchObject({ num_hidden_layers: 47, n_group: 1, q_lora_rank: null, latent_tensors: 'absorbed' });
  });

  test('another scores by a softmax, which is refused', () => {
    assert.throws(() => raw(102_400), /deepseek2\.expert_gating_func is 1 .*softmax.*sigmoid\) is supported/);
  });
});

describe('what cannot be served is refused by its key', () => {
  const sixFlags = [true, true, false, true, true, false];
  test.each<[string, More, RegExp]>([
    ['deepseek_v3', { 'deepseek2.attention.key_length_mla': undefined }, /attention\.key_length_mla is missing/],
    ['deepseek_v3', { 'deepseek2.expert_gating_func': 1 }, /expert_gating_func is 1/],
    ['deepseek_v3', { 'deepseek2.attention.temperature_scale': { f32: 0.1 } }, /llama_4_scaling_beta/],
    [
      'deepseek_v3',
      { 'deepseek2.rope.scaling.yarn_ext_factor': { f32: 0.5 } },
      /yarn_ext_factor is 0\.5; 1 is supported/,
    ],
    [
      'ministral3',
      { 'mistral3.rope.scaling.type': 'none' },
      /attention\.temperature_scale without rope\.scaling\.type yarn/,
    ],
    ['ministral3', { 'mistral3.expert_count': 4 }, /expert_count is not supported/],
    ['olmo3', { 'olmo2.attention.sliding_window_pattern': [true] }, /sliding_window_pattern has 1 values for 4 layers/],
    [
      'gemma4',
      { 'gemma4.attention.sliding_window_pattern': sixFlags.map(() => true) },
      /last layer of type sliding_attention/,
    ],
    ['gemma4', { 'gemma4.attention.sliding_window': undefined }, /attention\.sliding_window is missing/],
    ['gemma4', { 'gemma4.attention.key_length': 64 }, /value_length is 32, keys have 64/],
    [
      'gemma4',
      { 'gemma4.attention.value_length': 64, 'gemma4.attention.key_length': 64 },
      /rope_freqs\.weight .*32 of them/,
    ],
    ['gemma4', { 'gemma4.rope.dimension_count_swa': 8 }, /rope\.dimension_count_swa is 8, of heads of 16/],
    ['gemma4', { 'gemma4.attention.head_count_kv': [2, 2] }, /head_count_kv has 2 values for 6 layers/],
    [
      'gemma4-e',
      { 'gemma4.feed_forward_length': [96, 96, 96, 192, 96, 192] },
      /feed_forward_length differs between layers other/,
    ],
    ['gemma4-moe', { 'gemma4.expert_used_count': undefined }, /expert_used_count is missing/],
    ['glm4_moe', { 'glm4moe.expert_gating_func': 1 }, /glm4moe\.expert_gating_func is 1/],
  ])('%s with %j', async (name, more, pattern) => {
    const path = await fileOf(goldenFolder(name), more);
    const error = await openModel(path).then(
      (model) => {
        try {
          return shapeOf(model);
        } catch (reason) {
          return reason;
        }
      },
      (reason: unknown) => reason,
    );
    assert(error instanceof ModelError, JSON.stringify(error));
    assert.match(error.message, pattern);
  });
});

/** Configurations of latent attention, the KV that they lead to, and the weights that are read transposed. Budget: 2 s. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'vitest';
import { deepseekV3 } from '../../shared/engine/architectures/deepseek_v3.ts';
import { checkTensors } from '../../shared/engine/check_tensors.ts';
import { kvLayoutOf, kvSpecOf } from '../../shared/engine/program_kv.ts';
import { weightSource } from '../../shared/engine/transposed_rows.ts';
import type { ModelRows } from '../../shared/model/weights.ts';
import { goldenFolder } from '../support/golden.ts';
import { shapeWith } from '../support/shape_with.ts';

const read = (name: string): Record<string, unknown> =>
  JSON.parse(readFileSync(`${goldenFolder(name)}/config.json`, 'utf8')) as Record<string, unknown>;

/** GLM-4.7-Flash as it is published, with fewer experts. */
const flash = {
  model_type: 'glm4_moe_lite',
  vocab_size: 154_880,
  hidden_size: 2_048,
  intermediate_size: 10_240,
  num_hidden_layers: 47,
  num_attention_heads: 20,
  num_key_value_heads: 20,
  max_position_embeddings: 202_752,
  q_lora_rank: 768,
  kv_lora_rank: 512,
  qk_nope_head_dim: 192,
  qk_rope_head_dim: 64,
  v_head_dim: 256,
  n_routed_experts: 4,
  num_experts_per_tok: 2,
  n_shared_experts: 1,
  moe_intermediate_size: 1_536,
  n_group: 1,
  topk_group: 1,
  topk_method: 'noaux_tc',
  norm_topk_prob: true,
  routed_scaling_factor: 1.8,
  first_k_dense_replace: 1,
  num_nextn_predict_layers: 1,
  rms_norm_eps: 1e-5,
  attention_bias: false,
  rope_theta: 1_000_000,
  rope_scaling: null,
  partial_rotary_factor: 1,
  hidden_act: 'silu',
};

test('the sizes, the factor of scores and the rotary table of DeepSeek-V3', () => {
  const { layers, ropes } = shapeWith(read('deepseek_v3'));
  assert.deepEqual(layers[0]!.latent, {
    rank: 24,
    plainDim: 16,
    rotaryDim: 8,
    valueDim: 20,
    queryRank: 40,
    isInterleaved: true,
  });
  assert(Math.abs(layers[0]!.scoreScale - (0.1 * Math.log(4) + 1) ** 2 / Math.sqrt(24)) < 1e-12);
  const { dim, scaling } = ropes['plain']!;
  assert(scaling?.kind === 'yarn' && scaling.attentionFactor === 1 && dim === 8);
  assert.deepEqual(
    layers.map(({ experts }) => experts?.sigmoid),
    [undefined, ...Array.from({ length: 2 }, () => ({ hasBias: true, groups: 4, groupsPerToken: 2, scale: 2.5 }))],
  );
});

test('without a latent of queries, with biases, rotated in halves', () => {
  const { layers } = shapeWith(read('deepseek_v3-noq'));
  const { latent, hasQkvBias, hasOutputBias, scoreScale } = layers[0]!;
  assert(latent?.queryRank === null && !latent.isInterleaved && hasQkvBias && hasOutputBias);
  assert.equal(scoreScale, 1 / Math.sqrt(24));
});

test('GLM-4.7-Flash keeps one plane of 576 values a layer: 53 KiB per token in 16 bits', () => {
  const shape = shapeWith(flash);
  const program = deepseekV3.program(shape, 64);
  const windows = shape.layers.map(({ window }) => window);
  const spec = kvSpecOf(program, windows, { blockSize: 32, valueType: 'f16' });
  assert.deepEqual(
    spec.groups.map(({ kind, planes, layers }) => [kind, planes, layers.length]),
    [['paged', [{ width: 576 }], 47]],
  );
  assert.equal(spec.payloadBytes, 32 * 47 * 576 * 2);
  assert.equal(Math.round(spec.payloadBytes / 32 / 1_024), 53);
  const { blockBytes, layers } = kvLayoutOf(spec);
  assert.equal(blockBytes, spec.payloadBytes);
  assert.deepEqual(layers[1], { ...layers[1], offset: 32 * 576 * 2, bytes: 32 * 576 * 2 });
  assert.equal(layers[1].planes[0]!.tokenBytes, 1_152);
});

test('the tensors of a layer are what the checkpoint has, kv_b_proj by its own rows', () => {
  const shape = shapeWith({ ...flash, num_hidden_layers: 1 });
  const program = deepseekV3.program(shape, 64);
  const shapes = new Map<string, number[]>();
  for (const [name, size] of [
    ['self_attn.q_a_proj', [768, 2_048]],
    ['self_attn.q_a_layernorm', [768]],
    ['self_attn.q_b_proj', [20 * 256, 768]],
    ['self_attn.kv_a_proj_with_mqa', [576, 2_048]],
    ['self_attn.kv_a_layernorm', [512]],
    ['self_attn.kv_b_proj', [20 * 448, 512]],
    ['self_attn.o_proj', [2_048, 20 * 256]],
    ['input_layernorm', [2_048]],
    ['post_attention_layernorm', [2_048]],
    ['mlp.gate_proj', [10_240, 2_048]],
    ['mlp.up_proj', [10_240, 2_048]],
    ['mlp.down_proj', [2_048, 10_240]],
  ] as const)
    shapes.set(`model.layers.0.${name}.weight`, [...size]);
  shapes.set('model.embed_tokens.weight', [154_880, 2_048]).set('lm_head.weight', [154_880, 2_048]);
  shapes.set('model.norm.weight', [2_048]);
  checkTensors(program, shapes, 'here');
  shapes.set('model.layers.0.self_attn.kv_b_proj.weight', [20 * 448, 511]);
  assert.throws(() => {
    checkTensors(program, shapes, 'here');
  }, /kv_b_proj\.weight is \[8960, 511\], config\.json makes it \[8960, 512\]/);
});

test('transposed rows come as f32, whatever slices the file gives; other rows as they are stored', async () => {
  const asked: object[] = [];
  const rows = (rowStart: number, values: number[]): ModelRows => ({
    rowStart,
    format: 'f32',
    data: new Uint8Array(Float32Array.from(values).buffer),
  });
  const source = weightSource({
    async *slices(range) {
      asked.push(range);
      yield await Promise.resolve(rows(0, [1, 2, 3, 4, 5, 6]));
      yield rows(2, [7, 8, 9]);
    },
  });
  const part = { tensor: 't', outputs: 3, firstRow: 5, transposedRows: 3 };
  const slices = [];
  for await (const { rowStart, data } of source.slices(part))
    slices.push([rowStart, [...new Float32Array(data.buffer)]]);
  assert.deepEqual(slices, [[0, [1, 4, 7, 2, 5, 8, 3, 6, 9]]]);
  assert.deepEqual(asked, [{ tensor: 't', firstRow: 5, outputs: 3 }]);
  const plain = { tensor: 't', outputs: 3 };
  const stored = [];
  for await (const { rowStart } of source.slices(plain)) stored.push(rowStart);
  assert.deepEqual(stored, [0, 2]);
  assert.equal(asked[1], plain);
});

test.each([
  [{ ...flash, q_lora_rank: undefined }, /without q_lora_rank/],
  [{ ...flash, kv_lora_rank: 510 }, /kv_lora_rank 510, which is no multiple of 4, is not supported/],
  [{ ...flash, topk_method: 'greedy' }, /topk_method "greedy"/],
  [{ ...flash, model_type: 'deepseek_v32' }, /"deepseek_v32" is not supported: .*indexer; deepseek_v3,/],
  [{ ...flash, model_type: 'glm_moe_dsa' }, /"glm_moe_dsa" is not supported: .*glm4_moe_lite/],
])('%# is refused', (config, pattern) => {
  assert.throws(() => shapeWith(config), pattern);
});

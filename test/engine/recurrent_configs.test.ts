/** Configurations of LFM2 and Granite 4 are read as transformers reads them, or refused. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { shapeWith } from '../support/shape_with.ts';

const common = {
  vocab_size: 320,
  hidden_size: 64,
  num_hidden_layers: 3,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 1_024,
};

const lfm2 = {
  ...common,
  model_type: 'lfm2',
  norm_eps: 1e-5,
  conv_L_cache: 3,
  conv_bias: false,
  block_ff_dim: 144,
  block_multiple_of: 16,
  layer_types: ['conv', 'full_attention', 'conv'],
};

test('lfm2: convolutions by layer_types, or all layers but those with attention', () => {
  for (const changes of [{}, { layer_types: undefined, full_attn_idxs: [1] }]) {
    const { layers, epsilon, isTied, ropes } = shapeWith({ ...lfm2, ...changes });
    assert.deepEqual(
      layers.map(({ convolution, qkNorm }) => [convolution, qkNorm]),
      [{ taps: 3, hasBias: false }, undefined, { taps: 3, hasBias: false }].map((one) => [one, 'head']),
    );
    assert.deepEqual([epsilon, isTied, ropes['plain']?.theta], [1e-5, true, 1_000_000]);
  }
  assert.deepEqual(shapeWith({ ...lfm2, conv_bias: true, conv_L_cache: 4 }).layers[0]?.convolution, {
    taps: 4,
    hasBias: true,
  });
  assert.equal(shapeWith({ ...lfm2, tie_embedding: false }).isTied, false);
});

test.each([
  [{}, 96],
  [{ block_multiple_of: 64 }, 128],
  [{ block_multiple_of: undefined }, 256],
  [{ block_ffn_dim_multiplier: 1.5 }, 144],
  [{ block_ffn_dim_multiplier: null, block_multiple_of: 64 }, 96],
  [{ block_ff_dim: undefined, intermediate_size: 150 }, 112],
  [{ block_auto_adjust_ff_dim: false }, 144],
])('lfm2: the width of the MLPs with %j is %i', (changes, inner) => {
  assert.equal(shapeWith({ ...lfm2, ...changes }).layers[0]?.inner, inner);
});

test.each([
  [{ conv_L_cache: 5 }, /conv_L_cache 5/],
  [{ layer_types: ['conv', 'conv', 'conv'] }, /no layer of type full_attention/],
  [{ layer_types: ['conv'] }, /1 layer_types for 3 layers/],
  [{ layer_types: ['conv', 'full_attention', 'mamba'] }, /a layer of type mamba/],
])('lfm2 with %j is refused', (changes, message) => {
  assert.throws(() => shapeWith({ ...lfm2, ...changes }), message);
});

/** Mamba2 in two layers of three, as published, with an MLP alone. */
const granite = {
  ...common,
  model_type: 'granitemoehybrid',
  rms_norm_eps: 1e-5,
  layer_types: ['mamba', 'attention', 'mamba'],
  mamba_n_heads: 8,
  mamba_d_head: 16,
  mamba_d_state: 24,
  mamba_n_groups: 2,
  mamba_d_conv: 4,
  mamba_expand: 2,
  num_local_experts: 0,
  num_experts_per_tok: 0,
  shared_intermediate_size: 96,
  position_embedding_type: 'nope',
  embedding_multiplier: 12,
  residual_multiplier: 0.25,
  attention_multiplier: 0.125,
  logits_scaling: 8,
};
const space = { heads: 8, groups: 2, headDim: 16, stateDim: 24, taps: 4, hasConvolutionBias: true, hasBias: false };

test('granitemoehybrid: state spaces by layer_types, under both names, and attention without rotation', () => {
  for (const changes of [
    {},
    { layer_types: ['linear_attention', 'full_attention', 'linear_attention'] },
    { mamba_d_head: 'auto', time_step_limit: [0, { __float__: 'Infinity' }] },
    { position_embedding_type: null, time_step_limit: [0, 'Infinity'] },
  ]) {
    const { layers, ropes, ...model } = shapeWith({ ...granite, ...changes });
    assert.deepEqual(
      layers.map(({ stateSpace }) => stateSpace),
      [space, undefined, space],
    );
    assert.deepEqual([layers[1]?.rope, ropes['none'], layers[1]?.scoreScale], ['none', { theta: 0, dim: 16 }, 0.125]);
    assert.deepEqual([model.embeddingScale, model.branchScale, model.logitScale], [12, 0.25, 0.125]);
    assert.deepEqual([layers[0]?.inner, layers[0]?.experts], [96, null]);
  }
});

test('granitemoehybrid: attention in all layers, with rotation, and mixtures next to a shared MLP', () => {
  const { layers } = shapeWith({
    ...granite,
    layer_types: ['attention', 'attention', 'attention'],
    position_embedding_type: 'rope',
    num_local_experts: 4,
    num_experts_per_tok: 2,
    intermediate_size: 32,
    mamba_n_heads: 7,
  });
  for (const { stateSpace, rope, inner, experts } of layers) {
    assert.deepEqual([stateSpace, rope, inner], [undefined, 'plain', 32]);
    assert.deepEqual(experts, { count: 4, perToken: 2, isNormalised: true, shared: { inner: 96 } });
  }
});

test.each([
  [[0.001, 0.1], { least: 0.001, most: 0.1 }],
  [[0, 0.1], { least: 0, most: 0.1 }],
  [[0.001, 'Infinity'], { least: 0.001 }],
])('granitemoehybrid: time_step_limit %j bounds the steps', (limit, steps) => {
  const { layers } = shapeWith({ ...granite, time_step_limit: limit });
  assert.deepEqual(layers[0]?.stateSpace, { ...space, steps });
});

test.each([
  [{ mamba_n_heads: 7 }, /7 heads of mamba_d_head 16 for 128 values/],
  [{ mamba_n_groups: 3 }, /8 mamba heads in 3 groups/],
  [{ mamba_d_conv: 5 }, /mamba_d_conv 5/],
  [{ time_step_limit: [1, 0.5] }, /time_step_limit 1 to 0.5/],
  [{ layer_types: undefined }, /no layer of type attention/],
  [{ layer_types: ['mamba', 'attention', 'conv'] }, /a layer of type conv/],
  [{ layer_types: ['mamba'] }, /1 layer_types for 3 layers/],
  [{ position_embedding_type: 'alibi' }, /position_embedding_type alibi/],
  [{ num_local_experts: 4, num_experts_per_tok: 5 }, /5 of 4 experts for each token/],
  [{ num_local_experts: 4, num_experts_per_tok: 2 }, /no intermediate_size/],
])('granitemoehybrid with %j is refused', (changes, message) => {
  assert.throws(() => shapeWith({ ...granite, ...changes }), message);
});

test.each([
  ['lfm2_moe', /"lfm2_moe" is not supported: .*; lfm2,/],
  ['nemotron_h', /"nemotron_h" is not supported: .*; granitemoehybrid,/],
])('%s is refused, with the nearest that is served', (modelType, message) => {
  assert.throws(() => shapeWith({ ...lfm2, model_type: modelType }), message);
});

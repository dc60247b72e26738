/** Configurations of LFM2 and Granite 4 are read as transformers reads them, or refused. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { shapeWith } from '../support/shape_with.ts';

const common = {
  ...{ vocab_size: 320, hidden_size: 64, num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2 },
  ...{ max_position_embeddings: 1_024 },
};

const lfm2 = {
  ...{ ...common, model_type: 'lfm2', norm_eps: 1e-5, conv_L_cache: 3, conv_bias: false },
  ...{ block_ff_dim: 144, block_multiple_of: 16, layer_types: ['conv', 'full_attention', 'conv'] },
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

/** Configurations of mixtures by sigmoid scores are read as transformers reads them, or refused. Budget: 1 s. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'vitest';
import { goldenFolder } from '../support/golden.ts';
import { shapeWith } from '../support/shape_with.ts';

const glm = JSON.parse(readFileSync(`${goldenFolder('glm4_moe')}/config.json`, 'utf8')) as Record<string, unknown>;

const minimax = {
  model_type: 'minimax_m2',
  vocab_size: 320,
  hidden_size: 64,
  intermediate_size: 32,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 32,
  rotary_dim: 16,
  rms_norm_eps: 1e-6,
  max_position_embeddings: 1_024,
  num_local_experts: 8,
  num_experts_per_tok: 2,
  rope_theta: 5_000_000,
};

test('glm4_moe: a dense layer, then mixtures with a shared expert', () => {
  const { layers, ropes } = shapeWith(glm);
  assert.deepEqual(
    layers.map(({ inner, experts }) => [inner, experts?.count]),
    [
      [96, undefined],
      [32, 8],
      [32, 8],
    ],
  );
  assert.deepEqual(layers[1]?.experts, {
    count: 8,
    perToken: 3,
    isNormalised: true,
    shared: { inner: 32 },
    sigmoid: { hasBias: true, groups: 1, groupsPerToken: 1, scale: 1.5 },
  });
  assert.deepEqual([layers[0]?.qkNorm, layers[0]?.hasQkvBias, layers[0]?.hasOutputBias], ['head', true, false]);
  assert.deepEqual(ropes, { plain: { theta: 1_000_000, dim: 16 } });
  assert.equal(shapeWith({ ...glm, use_qk_norm: false }).layers[0]?.qkNorm, 'none');
});

test('groups, several shared experts, layers by name', () => {
  const { layers } = shapeWith({
    ...glm,
    n_group: 4,
    topk_group: 2,
    n_shared_experts: 2,
    norm_topk_prob: false,
    mlp_layer_types: ['sparse', 'dense', 'sparse'],
  });
  assert.deepEqual(
    layers.map(({ experts }) => experts !== null),
    [true, false, true],
  );
  assert.deepEqual(layers[0]!.experts, {
    count: 8,
    perToken: 3,
    isNormalised: false,
    shared: { inner: 64 },
    sigmoid: { hasBias: true, groups: 4, groupsPerToken: 2, scale: 1.5 },
  });
});

test('minimax_m2: one norm over all heads, part of a head rotated', () => {
  const { layers, ropes } = shapeWith(minimax);
  assert.deepEqual(layers[0]!.experts, {
    count: 8,
    perToken: 2,
    isNormalised: true,
    sigmoid: { hasBias: true, groups: 1, groupsPerToken: 1, scale: 1 },
  });
  assert.deepEqual([layers[0]!.qkNorm, ropes['plain']], ['all', { theta: 5_000_000, dim: 16 }]);
});

test.each([
  [{ ...glm, scoring_func: 'softmax' }, /scoring_func "softmax"/],
  [{ ...glm, topk_method: 'greedy' }, /topk_method "greedy"/],
  [{ ...glm, n_group: 3 }, /8 n_routed_experts in 3 n_group/],
  [{ ...glm, n_group: 2, topk_group: 3 }, /topk_group 3 of 2 n_group/],
  [{ ...glm, n_group: 4, topk_group: 1 }, /3 of 2 experts for each token/],
  [{ ...glm, mlp_layer_types: ['dense'] }, /1 mlp_layer_types for 3 layers/],
  [{ ...glm, mlp_layer_types: ['dense', 'sparse', 'other'] }, /an MLP of type other/],
  [{ ...glm, first_k_dense_replace: undefined }, /neither first_k_dense_replace nor mlp_layer_types/],
  [{ ...minimax, qk_norm_type: 'per_head' }, /qk_norm_type "per_head"/],
  [{ ...minimax, rotary_dim: 6 }, /rotary_dim 6 is not supported/],
  [{ ...minimax, attn_type_list: [1, 0] }, /attn_type_list with linear attention/],
])('%# is refused', (config, pattern) => {
  assert.throws(() => shapeWith(config), pattern);
});

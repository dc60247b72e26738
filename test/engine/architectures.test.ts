/** Model configurations are read as transformers reads them, or refused. Budget: 1 s. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import type { ModelShape } from '../../shared/model/model_shape.ts';
import { servedLength } from '../../shared/model/served_length.ts';

const plain = {
  model_type: 'qwen2',
  vocab_size: 320,
  hidden_size: 64,
  intermediate_size: 160,
  num_hidden_layers: 3,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 1_024,
  rms_norm_eps: 1e-5,
  rope_theta: 10_000,
  hidden_act: 'silu',
  tie_word_embeddings: true,
};

const gemma = { model_type: 'gemma2', head_dim: 16, query_pre_attn_scalar: 24, hidden_activation: 'gelu_pytorch_tanh' };

function shapeWith(changes: Readonly<Record<string, unknown>>): ModelShape {
  const folder = mkdtempSync(join(tmpdir(), 'config-'));
  try {
    writeFileSync(join(folder, 'config.json'), JSON.stringify({ ...plain, ...changes }));
    return shapeOf(readModelFolder(folder));
  } finally {
    rmSync(folder, { recursive: true });
  }
}

const types = (...kinds: string[]): { layer_types: string[] } => ({
  layer_types: kinds.map((kind) => `${kind}_attention`),
});

test.each([
  ['no window in use', { sliding_window: 40, max_window_layers: 1 }, [0, 0, 0]],
  ['from a layer on', { use_sliding_window: true, sliding_window: 40, max_window_layers: 1 }, [0, 40, 40]],
  ['the default window', { use_sliding_window: true, max_window_layers: 2 }, [0, 0, 4_096]],
  ['the default layers', { use_sliding_window: true, sliding_window: 40 }, [0, 0, 0]],
  ['a window that is null', { use_sliding_window: true, sliding_window: null, max_window_layers: 0 }, [0, 0, 0]],
  [
    'by type',
    { use_sliding_window: true, sliding_window: 40, max_window_layers: 0, ...types('sliding', 'full', 'sliding') },
    [40, 0, 40],
  ],
] as const)('qwen2, %s', (_name, changes, windows) => {
  const { layers } = shapeWith(changes);
  assert.deepEqual(
    layers.map(({ window }) => window),
    windows,
  );
  expect(layers[0]).toMatchObject({ hasQkvBias: true, hasOutputBias: false, hasMlpBias: false });
});

test('rotary scaling, under its older names and its newer ones', () => {
  const linear = { kind: 'linear', factor: 4 };
  for (const changes of [
    { rope_scaling: { type: 'linear', factor: 4 } },
    { rope_scaling: { rope_type: 'linear', factor: 4 } },
    { rope_theta: undefined, rope_parameters: { rope_type: 'linear', factor: 4, rope_theta: 500_000 } },
  ])
    assert.deepEqual(shapeWith(changes).ropes['plain']?.scaling, linear);
  for (const changes of [{ rope_scaling: null }, { rope_scaling: { rope_type: 'default' } }, {}])
    assert.deepEqual(shapeWith(changes).ropes, { plain: { theta: 10_000, dim: 16 } });
  const yarn = shapeWith({ rope_scaling: { type: 'yarn', factor: 4 } }).ropes['plain']?.scaling;
  assert(yarn?.kind === 'yarn' && yarn.originalPositions === 1_024);
  assert.equal(yarn.attentionFactor, 0.1 * Math.log(4) + 1);
});

test.each([
  ['at the top', { rope_theta: 70_000 }, 70_000],
  ['in rope_scaling', { rope_theta: undefined, rope_scaling: { rope_type: 'default', rope_theta: 500_000 } }, 500_000],
  [
    'in rope_parameters',
    { rope_theta: undefined, rope_parameters: { rope_type: 'default', rope_theta: 6e5 } },
    600_000,
  ],
  ['inside before the top', { rope_theta: 1, rope_scaling: { type: 'linear', factor: 2, rope_theta: 5e5 } }, 500_000],
  [
    'rope_scaling before rope_parameters',
    { rope_theta: 3, rope_scaling: { type: 'linear', factor: 2 }, rope_parameters: { rope_theta: 7 } },
    3,
  ],
  ['an empty rope_scaling is none', { rope_theta: 3, rope_scaling: {}, rope_parameters: { rope_theta: 7 } }, 7],
  ['nowhere', { rope_theta: undefined }, 10_000],
  [
    'with llama3',
    {
      model_type: 'llama',
      rope_theta: undefined,
      rope_scaling: {
        rope_type: 'llama3',
        rope_theta: 500_000,
        factor: 8,
        low_freq_factor: 1,
        high_freq_factor: 4,
        original_max_position_embeddings: 512,
      },
    },
    500_000,
  ],
  ['of kinds of layers', { rope_theta: 3, rope_parameters: { full_attention: { rope_theta: 9 } } }, 9],
])('the rotary base %s', (_name, changes, theta) => {
  assert.equal(shapeWith(changes).ropes['plain']?.theta, theta);
});

test.each([
  ['nothing said', {}, 1e6, 1e4],
  ['a scaling alone', { rope_scaling: { rope_type: 'linear', factor: 8 } }, 1e6, 1e4],
  [
    'kinds without a base',
    { rope_parameters: { sliding_attention: { rope_type: 'default' }, full_attention: null } },
    1e6,
    1e4,
  ],
  ['at the top', { rope_theta: 3e6, rope_local_base_freq: 2e4 }, 3e6, 2e4],
])('the rotary bases of Gemma 3, %s', (_name, changes, plain, local) => {
  const { ropes } = shapeWith({
    ...gemma,
    model_type: 'gemma3_text',
    sliding_window: 40,
    rope_theta: undefined,
    ...changes,
  });
  assert.deepEqual([ropes['plain']?.theta, ropes['local']?.theta], [plain, local]);
});

test('kinds of layers that say the same in another order are the same', () => {
  const full = { rope_type: 'linear', factor: 2 };
  const sliding = { factor: 2, rope_type: 'linear', beta_fast: null };
  assert.equal(
    shapeWith({ rope_parameters: { full_attention: full, sliding_attention: sliding } }).ropes['plain']?.scaling?.kind,
    'linear',
  );
});

test('the share of a head that is rotated, wherever it stands; inside before the top', () => {
  const dimOf = (changes: Readonly<Record<string, unknown>>): number | undefined =>
    shapeWith({ head_dim: 32, ...changes }).ropes['plain']?.dim;
  assert.equal(dimOf({ partial_rotary_factor: 0.5 }), 16);
  assert.equal(dimOf({ rope_parameters: { partial_rotary_factor: 0.25 } }), 8);
  assert.equal(dimOf({ partial_rotary_factor: 0.5, rope_parameters: { partial_rotary_factor: 0.25 } }), 8);
});

const ORIGINAL = { original_max_position_embeddings: 512 };
test.each([
  ['yarn with what was trained for', { rope_scaling: { type: 'yarn', factor: 4, ...ORIGINAL } }, 512, 2_048],
  [
    'yarn in a configuration that is scaled already',
    { rope_scaling: { type: 'yarn', factor: 4, ...ORIGINAL } },
    2_048,
    2_048,
  ],
  ['yarn that does not say what it was', { rope_scaling: { type: 'yarn', factor: 4 } }, 512, 2_048],
  ['linear', { rope_scaling: { type: 'linear', factor: 2.5 } }, 1_000, 2_500],
  ['dynamic, when nobody asks', { rope_scaling: { type: 'dynamic', factor: 4 } }, 512, 512],
  [
    'llama3',
    { rope_scaling: { rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4, ...ORIGINAL } },
    4_096,
    4_096,
  ],
  [
    'longrope',
    { rope_scaling: { type: 'su', short_factor: Array(8).fill(1), long_factor: Array(8).fill(2), ...ORIGINAL } },
    4_096,
    4_096,
  ],
  [
    'Gemma 3',
    { ...gemma, model_type: 'gemma3_text', sliding_window: 40, rope_scaling: { rope_type: 'linear', factor: 8 } },
    1_024,
    1_024,
  ],
  [
    'Gemma 3 with yarn',
    {
      ...gemma,
      model_type: 'gemma3_text',
      sliding_window: 40,
      rope_scaling: { rope_type: 'yarn', factor: 4, ...ORIGINAL },
    },
    512,
    2_048,
  ],
  [
    'yarn with what was trained for, at the top',
    { ...ORIGINAL, rope_scaling: { type: 'yarn', factor: 4 } },
    4_096,
    2_048,
  ],
  [
    'yarn, at the top before inside',
    { ...ORIGINAL, rope_scaling: { type: 'yarn', factor: 4, original_max_position_embeddings: 1_024 } },
    4_096,
    2_048,
  ],
  ['yarn whose factor is the ratio', { rope_scaling: { type: 'yarn', factor: null, ...ORIGINAL } }, 2_048, 2_048],
  [
    'llama3, at the top',
    { ...ORIGINAL, rope_scaling: { rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4 } },
    4_096,
    4_096,
  ],
])('the context that is served: %s', (_name, changes, positions, served) => {
  assert.equal(servedLength(shapeWith({ ...changes, max_position_embeddings: positions }), 0), served);
});

test.each([
  [{ ...types('full') }, /1 layer_types for 3 layers is not supported/],
  [{ ...types('full', 'chunked', 'full') }, /a layer of type chunked_attention is not supported/],
  [{ ...types('full', 'sliding', 'full') }, /sliding_attention without use_sliding_window/],
  [{ hidden_act: 'relu' }, /hidden_act "relu" is not supported for model_type qwen2/],
  [
    { rope_scaling: { type: 'chunked', factor: 4 } },
    /rope_scaling of type "chunked" \(there are linear, proportional, dynamic, llama3, yarn and longrope\)/,
  ],
  [{ rope_scaling: { type: 'longrope', short_factor: [1] } }, /longrope with 1 short and 0 long factors for 8/],
  [{ partial_rotary_factor: 0.6 }, /partial_rotary_factor 0.6 is not supported/],
  [{ ...gemma, ...types('full', 'sliding', 'full') }, /sliding_attention without a sliding_window/],
  [
    { model_type: 'mixtral', num_local_experts: 2, num_experts_per_tok: 3 },
    /3 of 2 experts for each token is not supported/,
  ],
  [{ model_type: 'smollm3', no_rope_layers: [1] }, /1 no_rope_layers for 3 layers/],
  [{ rope_scaling: { type: 'linear', factor: 4, finetuned: true } }, /rope_scaling\.finetuned with rope_type "linear"/],
  [{ rope_parameters: { rope_type: 'default', factor: 4 } }, /rope_parameters\.factor with rope_type "default"/],
  [{ rope_scaling: { type: 'yarn', factor: -1 } }, /rope_scaling\.factor -1 is not supported/],
  [
    { rope_parameters: { full_attention: { rope_theta: 9 }, sliding_attention: { rope_theta: 3 } } },
    /rope_parameters\.sliding_attention that differs from rope_parameters\.full_attention/,
  ],
  [
    {
      ...gemma,
      model_type: 'gemma3_text',
      sliding_window: 40,
      rope_parameters: { sliding_attention: { rope_type: 'default', beta: 1 } },
    },
    /rope_parameters\.beta with rope_type "default"/,
  ],
  [
    {
      ...gemma,
      model_type: 'gemma3_text',
      sliding_window: 40,
      rope_parameters: { sliding_attention: { rope_type: 'default' }, rope_theta: 9 },
    },
    /rope_parameters\.rope_theta \(there are full_attention and sliding_attention\)/,
  ],
  [
    {
      ...gemma,
      model_type: 'gemma3_text',
      sliding_window: 40,
      rope_parameters: { rope_type: 'default', rope_theta: 9 },
    },
    /rope_parameters\.rope_type \(there are/,
  ],
  [{ rope_scaling: { rope_type: 'yarn' } }, /rope_scaling yarn without factor is not supported/],
  [{ rope_scaling: { rope_type: 'linear', factor: -1 } }, /config\.json: .*factor/s],
  [
    { rope_scaling: { rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4 } },
    /rope_scaling llama3 without original_max_position_embeddings/,
  ],
  [
    {
      rope_scaling: {
        rope_type: 'llama3',
        factor: 8,
        low_freq_factor: 4,
        high_freq_factor: 4,
        original_max_position_embeddings: 64,
      },
    },
    /llama3 with low_freq_factor 4 and high_freq_factor 4/,
  ],
  [{ quantization_config: {} }, /config\.json: quantization_config: .*quant_method/s],
  [
    { quantization_config: { quant_method: 'bitsandbytes' } },
    /"bitsandbytes" is not supported: there are gptq and awq/,
  ],
  [{ quantization_config: { quant_method: 'gptq', bits: 8 } }, /gptq with 8 bits is not supported/],
  [{ quantization_config: { quant_method: 'awq', bits: 4, version: 'gemv' } }, /awq in gemv is not supported/],
  [{ quantization_config: { quant_method: 'fp8', fmt: 'e5m2' } }, /fp8 in e5m2 is not supported/],
  [{ quantization_config: { quant_method: 'compressed-tensors', format: 'pack' } }, /compressed-tensors in pack/],
  [{ num_key_value_heads: 3 }, /4 attention heads over 3 KV heads is not supported/],
  [{ model_type: 'mamba' }, /model_type "mamba" is not supported; this version serves llama, mistral, .*qwen2/],
  [{ hidden_size: 'wide' }, /config\.json: .*hidden_size/s],
] as const)('%j is refused', (changes, pattern) => {
  assert.throws(() => shapeWith(changes), pattern);
});

test('a gate of another kind, biases and heads are read', () => {
  const { layers } = shapeWith({
    model_type: 'llama',
    hidden_act: 'gelu_pytorch_tanh',
    attention_bias: true,
    head_dim: 32,
  });
  expect(layers[2]).toMatchObject({ activation: 'gelu_tanh', hasQkvBias: true, hasOutputBias: true, headDim: 32 });
});

test('windows and rotary bases by layer, where the configuration does not list them', () => {
  const layersOf = (changes: Readonly<Record<string, unknown>>): (readonly [number, string])[] =>
    shapeWith({ num_hidden_layers: 6, sliding_window: 40, ...changes }).layers.map(({ window, rope }) => [
      window,
      rope,
    ]);
  const [seen, all] = [
    [40, 'plain'],
    [0, 'plain'],
  ] as const;
  assert.deepEqual(layersOf({ model_type: 'mistral' }), [seen, seen, seen, seen, seen, seen]);
  assert.deepEqual(layersOf({ model_type: 'mistral', sliding_window: null }), [all, all, all, all, all, all]);
  assert.deepEqual(layersOf({ model_type: 'phi3' }), [seen, seen, seen, seen, seen, seen]);
  assert.deepEqual(layersOf(gemma), [seen, all, seen, all, seen, all]);
  const local = [40, 'local'];
  assert.deepEqual(layersOf({ ...gemma, model_type: 'gemma3_text' }), [local, local, local, local, local, all]);
  const smollm = { model_type: 'smollm3', no_rope_layers: [1, 0, 1, 1, 1, 0] };
  assert.deepEqual(
    layersOf(smollm).map(([window, rope]) => `${rope} ${window}`),
    ['plain 0', 'none 0', 'plain 0', 'plain 0', 'plain 0', 'none 0'],
  );
});

test('a context beyond what a model was trained for is served where its scaling is made for it', () => {
  const dynamic = shapeWith({ rope_scaling: { type: 'dynamic', factor: 4 } });
  assert.equal(servedLength(dynamic, 0), 1_024);
  assert.equal(servedLength(dynamic, 4_096), 4_096);
  assert.throws(() => servedLength(dynamic, 4_097), /exceeds the model's scaled max_position_embeddings 4096/);
  assert.throws(() => servedLength(shapeWith({}), 1_025), /exceeds the model's max_position_embeddings 1024/);
});

test('rotary parameters by kinds of layers, as newer configurations have them', () => {
  const { ropes } = shapeWith({
    ...gemma,
    model_type: 'gemma3_text',
    sliding_window: 40,
    rope_theta: undefined,
    rope_parameters: {
      full_attention: { rope_type: 'linear', factor: 8, rope_theta: 1_000_000 },
      sliding_attention: { rope_type: 'default', rope_theta: 20_000 },
    },
  });
  assert.deepEqual(ropes, {
    plain: { theta: 1_000_000, dim: 16, scaling: { kind: 'linear', factor: 8 } },
    local: { theta: 20_000, dim: 16 },
  });
});

test('of a model that sees too, the text part is read; what it leaves out is what its authors take', () => {
  const text = { model_type: 'gemma3_text', hidden_size: 2_560, intermediate_size: 10_240, num_hidden_layers: 34 };
  const { layers, vocabSize, maxPositions, hidden } = shapeWith({
    ...Object.fromEntries(Object.keys(plain).map((key) => [key, undefined])),
    model_type: 'gemma3',
    vision_config: { hidden_size: 7 },
    eos_token_id: [1, 106],
    text_config: { ...text, sliding_window: 1_024, rope_scaling: { rope_type: 'linear', factor: 8 } },
  });
  assert.deepEqual([vocabSize, maxPositions, hidden, layers.length], [262_208, 131_072, 2_560, 34]);
  expect(layers[5]).toMatchObject({ heads: 8, kvHeads: 4, headDim: 256, window: 0, rope: 'plain', qkNorm: 'head' });
  expect(layers[0]).toMatchObject({ window: 1_024, rope: 'local' });
});

test('what transformers leaves out of a configuration, because it is its default', () => {
  const absent = { tie_word_embeddings: undefined, rope_theta: undefined };
  expect(shapeWith({ ...absent, model_type: 'smollm3' })).toMatchObject({
    isTied: true,
    ropes: { plain: { theta: 2_000_000 } },
  });
  assert.equal(shapeWith({ model_type: 'mistral' }).layers[0]?.window, 4_096);
  assert.equal(shapeWith({ hidden_act: undefined }).layers[0]?.activation, 'silu');
  const capped = shapeWith({ ...gemma, sliding_window: 40, hidden_act: undefined, hidden_activation: undefined });
  assert.equal(capped.layers[0]?.activation, 'gelu_tanh');
  assert.deepEqual([capped.layers[0].scoreCap, capped.logitCap], [50, 30]);
  const plainly = { attn_logit_softcapping: null, final_logit_softcapping: null, sliding_window: 40 };
  assert.deepEqual(shapeWith({ ...gemma, ...plainly }).logitCap, 0);
});

const yarn = { rope_type: 'yarn', factor: 4, original_max_position_embeddings: 256 };

test.each([
  ['as published', { rope_theta: 5e5, rope_scaling: yarn }],
  ['by kinds of layers', { rope_parameters: { full_attention: { ...yarn, rope_theta: 5e5 }, sliding_attention: {} } }],
  ['without a base', { rope_scaling: yarn }],
])('OLMo 3 has windows in three layers of four, and scaled angles only in the others, %s', (_name, changes) => {
  const { layers, ropes } = shapeWith({
    model_type: 'olmo3',
    num_hidden_layers: 8,
    sliding_window: 40,
    rope_theta: undefined,
    ...changes,
  });
  assert.deepEqual(
    layers.map(({ window, rope }) => [window, rope]),
    [0, 1, 2, 3, 4, 5, 6, 7].map((i) => (i % 4 === 3 ? [0, 'plain'] : [40, 'local'])),
  );
  assert.deepEqual(ropes['local'], { theta: 5e5, dim: 16 });
  expect(ropes['plain']).toMatchObject({ theta: 5e5, dim: 16, scaling: { kind: 'yarn', factor: 4 } });
});

test('Ministral 3 scales queries by position, also within a multimodal configuration', () => {
  const rope = { ...yarn, mscale: 1, mscale_all_dim: 1, llama_4_scaling_beta: 0.1, rope_theta: 1e6 };
  const text = { ...plain, model_type: 'ministral3', head_dim: 32, rope_theta: undefined, rope_parameters: rope };
  for (const changes of [text, { model_type: 'mistral3', vision_config: {}, text_config: text }]) {
    const { layers, ropes, maxPositions } = shapeWith({ rope_theta: undefined, ...changes });
    expect(ropes['plain']).toMatchObject({
      theta: 1e6,
      dim: 32,
      queryScale: { beta: 0.1, originalPositions: 256 },
      scaling: { attentionFactor: 1 },
    });
    assert.deepEqual([layers[0]?.scoreScale, layers[0]?.window, maxPositions], [1 / Math.sqrt(32), 0, 1_024]);
  }
  expect(() => shapeWith({ rope_theta: undefined, rope_parameters: rope })).toThrow(
    /llama_4_scaling_beta is not supported for model_type qwen2/,
  );
});

const hybrid = {
  model_type: 'qwen3_5_text',
  head_dim: 32,
  num_hidden_layers: 8,
  rope_theta: undefined,
  linear_conv_kernel_dim: 4,
  linear_num_key_heads: 2,
  linear_num_value_heads: 6,
  linear_key_head_dim: 16,
  linear_value_head_dim: 24,
  tie_word_embeddings: false,
  rope_parameters: {
    rope_type: 'default',
    rope_theta: 1e7,
    partial_rotary_factor: 0.25,
    mrope_interleaved: true,
    mrope_section: [2, 1, 1],
  },
};
const sharedMixture = {
  moe_intermediate_size: 32,
  num_experts: 8,
  num_experts_per_tok: 3,
  shared_expert_intermediate_size: 48,
};

test('Qwen3.5 has gated delta nets and, in every so many layers, attention with output gates', () => {
  const delta = { keyHeads: 2, valueHeads: 6, keyDim: 16, valueDim: 24, taps: 4 };
  const published = {
    model_type: 'qwen3_5',
    text_config: { ...plain, ...hybrid, full_attention_interval: 4, attn_output_gate: true, mtp_num_hidden_layers: 1 },
    vision_config: { model_type: 'qwen3_5_vision', hidden_size: 16 },
  };
  for (const changes of [
    published,
    hybrid,
    { ...hybrid, ...types(...Array.from({ length: 8 }, (_, i) => (i % 4 === 3 ? 'full' : 'linear'))) },
  ]) {
    const { layers, ropes, hasNormOffset } = shapeWith(changes);
    assert.deepEqual(
      layers.map((layer) => layer.delta),
      layers.map((_, i) => (i % 4 === 3 ? undefined : delta)),
    );
    assert.deepEqual(ropes['plain'], { theta: 1e7, dim: 8 });
    assert(hasNormOffset);
    expect(layers[3]).toMatchObject({ qkNorm: 'head', hasOutputGate: true, hasQkvBias: false });
  }
  assert.equal(shapeWith({ ...hybrid, rope_parameters: { rope_theta: 1e7 } }).ropes['plain']?.dim, 8);
});

test('the mixtures of Qwen3.5 and Qwen3-Next have a shared expert with a gate, except in the layers that are dense', () => {
  const shared = { inner: 48, isGated: true };
  const moe = shapeWith({ ...hybrid, ...sharedMixture, model_type: 'qwen3_5_moe_text', intermediate_size: undefined });
  for (const { inner, experts } of moe.layers) {
    assert.equal(inner, 32);
    assert.deepEqual(experts, { count: 8, perToken: 3, isNormalised: true, shared });
  }
  const next = { ...hybrid, ...sharedMixture, model_type: 'qwen3_next', norm_topk_prob: false, mlp_only_layers: [1] };
  const { layers } = shapeWith(next);
  assert.deepEqual(
    layers.map(({ inner, experts }) => [inner, experts?.isNormalised]),
    layers.map((_, i) => (i === 1 ? [160, undefined] : [32, false])),
  );
});

test.each([
  [{ attn_output_gate: false }, /attn_output_gate/],
  [{ linear_num_value_heads: 5 }, /5 linear value heads over 2 key heads/],
  [{ linear_conv_kernel_dim: 5 }, /linear_conv_kernel_dim 5/],
  [types('linear', 'full'), /2 layer_types for 8 layers/],
  [types(...Array.from({ length: 8 }, () => 'sliding')), /a layer of type sliding_attention/],
  [{ intermediate_size: undefined }, /intermediate_size/],
] as const)('a hybrid with %j is refused', (changes, message) => {
  assert.throws(() => shapeWith({ ...hybrid, ...changes }), message);
});

test('gpt-oss as published: windows in every other layer, sinks, biases, a clamped gate, angles not cut to whole dimensions', () => {
  const published = {
    model_type: 'gpt_oss',
    num_hidden_layers: 4,
    hidden_size: 2_880,
    head_dim: 64,
    num_attention_heads: 64,
    num_key_value_heads: 8,
    intermediate_size: 2_880,
    num_local_experts: 32,
    num_experts_per_tok: 4,
    experts_per_token: 4,
    attention_bias: true,
    sliding_window: 128,
    swiglu_limit: 7,
    rope_theta: 150_000,

    initial_context_length: 4_096,
    max_position_embeddings: 131_072,
    quantization_config: { quant_method: 'mxfp4' },
    rope_scaling: {
      rope_type: 'yarn',
      factor: 32,
      beta_fast: 32,
      beta_slow: 1,
      truncate: false,
      original_max_position_embeddings: 4_096,
    },
    ...types('sliding', 'full', 'sliding', 'full'),
  };
  const { layers, ropes, maxPositions } = shapeWith(published);
  assert.deepEqual(
    layers.map(({ window }) => window),
    [128, 0, 128, 0],
  );
  expect(layers[0]).toMatchObject({
    hasSinks: true,
    hasQkvBias: true,
    hasOutputBias: true,
    clamp: { alpha: 1.702, limit: 7 },
    inner: 2_880,
    experts: { count: 32, perToken: 4, isNormalised: true, hasBias: true },
  });
  expect(ropes['plain']?.scaling).toMatchObject({ kind: 'yarn', factor: 32, isTruncated: false });
  assert.equal(maxPositions, 131_072);
  expect(() => shapeWith({ ...published, num_experts_per_tok: 33 })).toThrow(/33 of 32 experts for each token/);
});

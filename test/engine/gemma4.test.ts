/** Configurations of Gemma 4 are read as transformers reads them, or refused. Budget: 1 s. */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { programOf, shapeOf } from '../../shared/engine/architectures/registry.ts';
import { readModelFolder, type ModelFolder } from '../../shared/model/model_folder.ts';
import type { ModelShape } from '../../shared/model/model_shape.ts';
import { goldenFolder } from '../support/golden.ts';

type Values = Readonly<Record<string, unknown>>;

const configOf = (name: string): Values =>
  JSON.parse(readFileSync(join(goldenFolder(name), 'config.json'), 'utf8')) as Values;

function folderWith(values: Values): ModelFolder {
  const folder = mkdtempSync(join(tmpdir(), 'config-'));
  try {
    writeFileSync(join(folder, 'config.json'), JSON.stringify(values));
    return readModelFolder(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

const shapeWith = (changes: Values): ModelShape => shapeOf(folderWith({ ...configOf('gemma4'), ...changes }));

test('full-attention layers have heads of their own size, one product for k and v, and angles over the whole head', () => {
  const { layers, ropes, hasNormOffset } = shapeWith({});
  assert.deepEqual(
    layers.map(({ headDim, kvHeads, window, kv }) => [headDim, kvHeads, window, kv?.isOneProduct]),
    [0, 1, 2, 3, 4, 5].map((i) => (i % 3 === 2 ? [32, 1, 0, true] : [16, 2, 36, false])),
  );
  assert.deepEqual(ropes['plain'], { theta: 1e6, dim: 8, span: 32 });
  assert.deepEqual(ropes['local'], { theta: 1e4, dim: 16 });
  expect(layers[0]).toMatchObject({ scoreScale: 1, qkNorm: 'head', norms: 'both', hasScalar: true });
  assert.equal(hasNormOffset, false);
});

test('such a layer stores one plane, from which attention computes its keys', () => {
  const folder = folderWith(configOf('gemma4'));
  const { kv, operations, rope } = programOf(folder.config, shapeOf(folder), 64);
  assert.deepEqual(
    kv.map(({ planes }) => planes),
    [0, 1, 2, 3, 4, 5].map((i) => (i % 3 === 2 ? [32] : [32, 32])),
  );
  const attention = operations.filter((op) => op.kind === 'attention');
  assert.deepEqual(
    attention.map(({ keyNorm, keyRope }) => [keyNorm, keyRope]),
    [0, 1, 2, 3, 4, 5].map((i) =>
      i % 3 === 2 ? [`model.layers.${i}.self_attn.k_norm`, 'plain'] : [undefined, undefined],
    ),
  );
  expect(rope['plain']).toMatchObject({ dim: 8, pairDistance: 16 });
});

test('the last layers of the smaller models read the KV of the last layer of their kind before them, and store none', () => {
  const folder = folderWith(configOf('gemma4-e'));
  const shape = shapeOf(folder);
  assert.deepEqual(
    shape.layers.map(({ kv, inner }) => [kv?.fromLayer, inner]),
    [...Array.from({ length: 3 }, () => [undefined, 96]), [1, 192], [1, 192], [2, 192]],
  );
  assert.deepEqual(shape.layerInputs, { width: 8, vocabSize: 320 });
  const { kv, operations } = programOf(folder.config, shape, 64);
  assert.deepEqual(
    kv.map(({ planes }) => planes),
    [[32, 32], [32, 32], [64, 64], [], [], []],
  );
  const stored = operations.flatMap((op) => (op.kind === 'rope_store' ? [op.kvHeads] : []));
  assert.deepEqual(stored, [2, 2, 2, 0, 0, 0]);
});

test('a mixture lies next to every MLP, with widths of its own', () => {
  const { layers } = shapeOf(folderWith(configOf('gemma4-moe')));
  for (const { inner, experts, parallelMixture } of layers) {
    assert.deepEqual([inner, experts], [96, null]);
    assert.deepEqual(parallelMixture, { inner: 32, experts: { count: 8, perToken: 3, isNormalised: true } });
  }
});

test('the older keys for head sizes, and a multimodal configuration, give the same shape', () => {
  const want = shapeWith({});
  const older = { per_layer_config: undefined, global_head_dim: 32, num_global_key_value_heads: 1 };
  assert.deepEqual(shapeWith(older), want);
  assert.deepEqual(shapeOf(folderWith(configOf('gemma4-published'))), want);
  // The KV heads of full-attention layers count only where k and v have one product.
  const two = shapeWith({ ...older, attention_k_eq_v: false });
  assert.deepEqual([two.layers[2]?.kvHeads, two.layers[2]?.kv?.isOneProduct], [2, false]);
});

test('what a configuration leaves out is as transformers has it', () => {
  const absent = {
    layer_types: undefined,
    per_layer_config: undefined,
    rope_parameters: null,
    sliding_window: undefined,
  };
  const { layers, ropes } = shapeWith({ ...absent, num_hidden_layers: 7 });
  assert.deepEqual(
    layers.map(({ window, headDim }) => [window, headDim]),
    [0, 1, 2, 3, 4, 5, 6].map((i) => (i < 5 ? [512, 16] : [0, 512])),
  );
  assert.deepEqual(ropes, { plain: { theta: 1e6, dim: 128, span: 512 }, local: { theta: 1e4, dim: 16 } });
});

const sliding = { layer_types: Array.from({ length: 6 }, () => 'sliding_attention') };

test.each([
  [{ use_bidirectional_attention: 'all' }, /use_bidirectional_attention "all"/],
  [{ enable_moe_block: true }, /enable_moe_block without num_experts/],
  [sliding, /a last layer of type sliding_attention/],
  [{ num_kv_shared_layers: 6 }, /num_kv_shared_layers 6/],
  [{ num_kv_shared_layers: 4 }, /num_kv_shared_layers 4/],
  [{ per_layer_config: { 2: { head_dim: 64 }, 5: { head_dim: 32 } } }, /full_attention heads of 64, 32 values/],
] as const)('%j is refused', (changes, pattern) => {
  assert.throws(() => shapeWith(changes), pattern);
});

/** Families and scalings without golden vectors, against a forward pass in f64 that knows nothing of the engine. Budget: 10 s. */
import assert from 'node:assert/strict';
import { readFileSync, rmSync } from 'node:fs';
import { expect, test } from 'vitest';
import { Checkpoint } from '../../shared/model/checkpoint.ts';
import { Random } from '../../shared/base/random.ts';
import { randomCheckpoint } from '../support/checkpoint_folder.ts';
import { forward, type ForwardConfig } from '../support/forward.ts';
import { goldenCases, goldenFolder, logitsAt, maxAbs } from '../support/golden.ts';
import { loadReference } from '../support/reference_loop.ts';

/** Error allowed, relative to the largest logit; the same as for golden vectors. */
const BOUND = 1e-3;

const plain = {
  hidden_size: 64,
  intermediate_size: 96,
  num_hidden_layers: 3,
  num_attention_heads: 4,
  num_key_value_heads: 2,

  vocab_size: 200,
  max_position_embeddings: 128,
  rms_norm_eps: 1e-5,
  rope_theta: 10_000,
  tie_word_embeddings: false,
};

const families = {
  olmo2: { ...plain, model_type: 'olmo2' },
  granite: {
    ...plain,
    model_type: 'granite',
    tie_word_embeddings: true,
    embedding_multiplier: 12,
    residual_multiplier: 0.22,
    attention_multiplier: 0.05,
    logits_scaling: 8,
  },
  smollm3: { ...plain, model_type: 'smollm3', tie_word_embeddings: true, no_rope_layers: [1, 0, 1] },
  minimax_m2: {
    ...plain,
    model_type: 'minimax_m2',
    head_dim: 16,
    rotary_dim: 8,
    num_local_experts: 8,
    num_experts_per_tok: 3,
    scoring_func: 'sigmoid',
    use_routing_bias: true,
  },
  'dynamic scaling': { ...plain, model_type: 'llama', rope_scaling: { type: 'dynamic', factor: 4 } },
} as const;

test.each(Object.entries(families))('%s', async (_name, config) => {
  const { folder, tensors } = randomCheckpoint(config, 3);
  const random = new Random(5);
  const maxModelLen = 'rope_scaling' in config ? 400 : 0;
  const tokens = Array.from({ length: maxModelLen > 0 ? 170 : 90 }, () => random.below(200));
  const { executable, device } = await loadReference(folder, 'f32', 2_048, { weightFormat: 'f32', maxModelLen });
  try {
    const blockTable = Array.from({ length: Math.ceil(tokens.length / 32) }, (_, i) => i);
    const wanted = forward(config, tensors, tokens, maxModelLen);
    for (const row of [0, 1, 40, tokens.length - 1]) {
      const samples = [{ row, numCandidates: 1, askedTokens: [], isFullRowWanted: true }];
      const [result] = await executable.run([{ tokens, start: 0, blockTable, samples }]);
      const error = maxAbs(Float32Array.from(wanted[row]!, (logit, i) => (result?.fullRow?.[i] ?? NaN) - logit));
      assert(error <= BOUND * Math.max(...wanted[row]!.map(Math.abs)), `row ${row}: ${error}`);
    }
  } finally {
    await executable.close();
    device.destroy();
    rmSync(folder, { recursive: true });
  }
});

test('within the trained context dynamic scaling changes nothing', () => {
  const config = families['dynamic scaling'];
  const { folder, tensors } = randomCheckpoint(config, 3);
  rmSync(folder, { recursive: true });
  const tokens = [1, 5, 9, 100];
  expect(forward(config, tensors, tokens, 128)).toEqual(
    forward({ ...config, rope_scaling: { type: 'default', factor: 1 } }, tensors, tokens, 128),
  );
});

test('the pass itself has the logits of the reference', async () => {
  const folder = goldenFolder('llama-untied');
  const config = JSON.parse(readFileSync(`${folder}/config.json`, 'utf8')) as ForwardConfig;
  const checkpoint = await Checkpoint.open(folder);
  const tensors = new Map<string, Float32Array>();
  for (const [tensor, shape] of checkpoint.shapes) {
    const values: number[] = [];
    for await (const { data, format } of checkpoint.slices({ tensor, outputs: shape[0]! })) {
      assert.equal(format, 'f32');
      values.push(...new Float32Array(Uint8Array.from(data).buffer));
    }
    tensors.set(tensor, Float32Array.from(values));
  }
  await checkpoint.close();
  const golden = goldenCases('llama-untied').find(({ prompt }) => prompt.length === 65)!;
  const want = logitsAt('llama-untied', golden, 64, config.vocab_size);
  const got = forward(config, tensors, golden.prompt, 0)[64]!;
  assert(maxAbs(want.map((logit, i) => logit - got[i]!)) <= 1e-5 * maxAbs(want));
});

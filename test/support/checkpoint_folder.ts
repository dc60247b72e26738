/** Model folders that tests make: a configuration, and tensors in one safetensors file or several. */
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Random } from '../../shared/base/random.ts';
import type { ForwardConfig } from './forward.ts';

/** A file's bytes: header and data. */
export function safetensors(
  tensors: ReadonlyMap<string, { readonly shape: readonly number[]; readonly data: Uint8Array }>,
): Buffer {
  let end = 0;
  const header = Object.fromEntries(
    [...tensors].map(([name, { shape, data }]) => {
      const start = end;
      end += data.length;
      return [name, { dtype: 'F32', shape, data_offsets: [start, end] }];
    }),
  );
  return withHeader(
    JSON.stringify(header),
    [...tensors.values()].map(({ data }) => data),
  );
}

/** A file with this header, whatever it says. */
export function withHeader(header: string, data: readonly Uint8Array[]): Buffer {
  const text = Buffer.from(header);
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([size, text, ...data]);
}

/** Shapes of a family's tensors. */
function tensorsOf(config: ForwardConfig, inner: number): Map<string, number[]> {
  const { hidden_size: hidden, num_attention_heads: heads, num_key_value_heads: kvHeads, vocab_size: vocab } = config;
  const kv = (hidden / heads) * kvHeads;
  const shapes = new Map([
    ['model.embed_tokens.weight', [vocab, hidden]],
    ['model.norm.weight', [hidden]],
  ]);
  if (!config.tie_word_embeddings) shapes.set('lm_head.weight', [vocab, hidden]);
  const isAfter = config.model_type === 'olmo2';
  const isMixture = config.model_type === 'minimax_m2';
  for (let i = 0; i < config.num_hidden_layers; i++) {
    const layer = `model.layers.${i}`;
    const norms = isAfter
      ? ['post_attention_layernorm', 'post_feedforward_layernorm']
      : ['input_layernorm', 'post_attention_layernorm'];
    for (const name of norms) shapes.set(`${layer}.${name}.weight`, [hidden]);
    if (isAfter || isMixture) {
      shapes.set(`${layer}.self_attn.q_norm.weight`, [hidden]);
      shapes.set(`${layer}.self_attn.k_norm.weight`, [kv]);
    }
    for (const [name, outputs] of [
      ['q', hidden],
      ['k', kv],
      ['v', kv],
      ['o', hidden],
    ] as const)
      shapes.set(`${layer}.self_attn.${name}_proj.weight`, [outputs, hidden]);
    if (isMixture) {
      const own = `${layer}.block_sparse_moe`;
      const { num_local_experts: count = 0 } = config;
      shapes.set(`${own}.gate.weight`, [count, hidden]).set(`${own}.e_score_correction_bias`, [count]);
      for (let expert = 0; expert < count; expert++) {
        for (const name of ['w1', 'w3']) shapes.set(`${own}.experts.${expert}.${name}.weight`, [inner, hidden]);
        shapes.set(`${own}.experts.${expert}.w2.weight`, [hidden, inner]);
      }
      continue;
    }
    for (const name of ['gate', 'up']) shapes.set(`${layer}.mlp.${name}_proj.weight`, [inner, hidden]);
    shapes.set(`${layer}.mlp.down_proj.weight`, [hidden, inner]);
  }
  return shapes;
}

/** Random weights, f32: norms about 1, products of a moderate size. */
export function randomCheckpoint(
  config: ForwardConfig & { readonly intermediate_size: number },
  seed: number,
): { readonly folder: string; readonly tensors: ReadonlyMap<string, Float32Array> } {
  return folderOfTensors(config, tensorsOf(config, config.intermediate_size), seed);
}

/** Makes a folder with random weights of these shapes, like {@link randomCheckpoint}. */
export function folderOfTensors(
  config: object,
  shapes: ReadonlyMap<string, number[]>,
  seed: number,
): { readonly folder: string; readonly tensors: ReadonlyMap<string, Float32Array> } {
  const random = new Random(seed);
  const noise = (): number => random.u32() / 2 ** 31 - 1;
  const tensors = new Map<string, Float32Array>();
  const files = new Map<string, { shape: number[]; data: Uint8Array }>();
  for (const [name, shape] of shapes) {
    const [rows = 1, columns] = shape;
    const values = Float32Array.from({ length: rows * (columns ?? 1) }, () =>
      columns === undefined ? 1 + noise() / 4 : noise() * Math.sqrt(3 / columns),
    );
    tensors.set(name, values);
    files.set(name, { shape, data: new Uint8Array(values.buffer) });
  }
  const folder = mkdtempSync(join(tmpdir(), 'checkpoint-'));
  writeFileSync(join(folder, 'config.json'), JSON.stringify({ hidden_act: 'silu', ...config }));
  writeFileSync(join(folder, 'model.safetensors'), safetensors(files));
  return { folder, tensors };
}

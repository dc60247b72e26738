/** A model folder of a shape with random weights, written once into the bench's cache: what a cluster is measured with. */
import { closeSync, existsSync, mkdirSync, openSync, renameSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { Random } from '../../shared/base/random.ts';
import { cacheFolder } from './llama_peer.ts';
import type { UniformModel } from './uniform_model.ts';

/** Goes up when what is written changes. */
const REVISION = 1;

/** @returns the folder. Weights are bf16, tied, without a tokenizer. */
export function randomModelFolder(name: string, model: UniformModel): string {
  const folder = join(cacheFolder(), `${name}-${model.maxPositions}-${REVISION}`);
  if (existsSync(folder)) return folder;
  const part = `${folder}.part`;
  rmSync(part, { recursive: true, force: true });
  mkdirSync(part, { recursive: true });
  const { hidden, layers, heads, kvHeads, headDim, inner, vocabSize, maxPositions, epsilon, ropeTheta } = model;
  const config = {
    ...{ architectures: ['LlamaForCausalLM'], model_type: 'llama', hidden_act: 'silu', torch_dtype: 'bfloat16' },
    ...{ hidden_size: hidden, num_hidden_layers: layers, num_attention_heads: heads, num_key_value_heads: kvHeads },
    ...{ head_dim: headDim, intermediate_size: inner, vocab_size: vocabSize, max_position_embeddings: maxPositions },
    ...{ rms_norm_eps: epsilon, rope_theta: ropeTheta, tie_word_embeddings: true, bos_token_id: 1, eos_token_id: 2 },
  };
  writeFileSync(join(part, 'config.json'), JSON.stringify(config));
  const tensors: [name: string, rows: number, columns: number][] = [
    ['model.embed_tokens.weight', vocabSize, hidden],
    ['model.norm.weight', hidden, 1],
  ];
  for (let layer = 0; layer < layers; layer++) {
    const at = `model.layers.${layer}`;
    tensors.push(
      [`${at}.input_layernorm.weight`, hidden, 1],
      [`${at}.post_attention_layernorm.weight`, hidden, 1],
      [`${at}.self_attn.q_proj.weight`, heads * headDim, hidden],
      [`${at}.self_attn.k_proj.weight`, kvHeads * headDim, hidden],
      [`${at}.self_attn.v_proj.weight`, kvHeads * headDim, hidden],
      [`${at}.self_attn.o_proj.weight`, hidden, heads * headDim],
      [`${at}.mlp.gate_proj.weight`, inner, hidden],
      [`${at}.mlp.up_proj.weight`, inner, hidden],
      [`${at}.mlp.down_proj.weight`, hidden, inner],
    );
  }
  let end = 0;
  const header = Object.fromEntries(
    tensors.map(([tensor, rows, columns]) => {
      const start = end;
      end += rows * columns * 2;
      return [tensor, { dtype: 'BF16', shape: columns === 1 ? [rows] : [rows, columns], data_offsets: [start, end] }];
    }),
  );
  const text = JSON.stringify(header).padEnd(Math.ceil((JSON.stringify(header).length + 8) / 8) * 8 - 8);
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(Buffer.byteLength(text)));
  const file = openSync(join(part, 'model.safetensors'), 'w');
  writeSync(file, size);
  writeSync(file, text);
  const random = new Random(11);
  const pool = Float32Array.from({ length: 1 << 16 }, () => random.u32() / 2 ** 31 - 1);
  for (const [, rows, columns] of tensors) {
    const amplitude = columns === 1 ? 0 : Math.sqrt(3 / columns);
    const values = new Uint16Array(columns);
    const bits = new Uint32Array(1);
    const float = new Float32Array(bits.buffer);
    for (let row = 0; row < rows; row++) {
      for (let i = 0; i < columns; i++) {
        float[0] = columns === 1 ? 1 : pool[(row * 7_919 + i * 31) & 0xffff]! * amplitude;
        values[i] = bits[0]! >>> 16;
      }
      writeSync(file, values);
    }
  }
  closeSync(file);
  renameSync(part, folder);
  return folder;
}

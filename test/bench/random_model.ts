/** A model folder of a shape with random weights, written once into the bench's cache: what a cluster is measured with. */
import { closeSync, existsSync, mkdirSync, openSync, renameSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { toNormalHalf } from '../../kernels/weights/normal_half.ts';
import { Random } from '../../shared/base/random.ts';
import { cacheFolder } from './llama_peer.ts';
import type { UniformModel } from './uniform_model.ts';

/** Goes up when what is written changes. */
const REVISION = 2;
/** Inputs that share a scale. */
const GROUP = 128;

/** Format of the layers' matrices; AWQ and GPTQ have four bits and zero points. */
export type RandomFormat = 'bf16' | 'awq' | 'gptq';

interface Tensor {
  readonly name: string;
  readonly dtype: 'BF16' | 'F16' | 'I32';
  readonly shape: readonly number[];
  /** Returns the values of one row; all rows have the same length. */
  readonly row: (random: Random) => Uint16Array | Uint32Array;
}

/** @returns the folder. Embeddings are tied, and there is no tokenizer. */
export function randomModelFolder(name: string, model: UniformModel, format: RandomFormat = 'bf16'): string {
  const kind = format === 'bf16' ? '' : `-${format}`;
  const folder = join(cacheFolder(), `${name}${kind}-${model.maxPositions}-${REVISION}`);
  if (existsSync(folder)) return folder;
  const part = `${folder}.part`;
  rmSync(part, { recursive: true, force: true });
  mkdirSync(part, { recursive: true });
  writeFileSync(join(part, 'config.json'), JSON.stringify(configOf(model, format)));
  writeTensors(join(part, 'model.safetensors'), tensorsOf(model, format));
  renameSync(part, folder);
  return folder;
}

function configOf(model: UniformModel, format: RandomFormat): unknown {
  const { hidden, layers, heads, kvHeads, headDim, inner, vocabSize, maxPositions, epsilon, ropeTheta } = model;
  const common = { bits: 4, group_size: GROUP };
  const quantised = {
    awq: { ...common, quant_method: 'awq', version: 'gemm', zero_point: true },
    gptq: { ...common, quant_method: 'gptq', desc_act: false, sym: false },
  };
  return {
    ...{ architectures: ['LlamaForCausalLM'], model_type: 'llama', hidden_act: 'silu' },
    ...{ hidden_size: hidden, num_hidden_layers: layers, num_attention_heads: heads, num_key_value_heads: kvHeads },
    ...{ head_dim: headDim, intermediate_size: inner, vocab_size: vocabSize, max_position_embeddings: maxPositions },
    ...{ rms_norm_eps: epsilon, rope_theta: ropeTheta, tie_word_embeddings: true, bos_token_id: 1, eos_token_id: 2 },
    torch_dtype: format === 'bf16' ? 'bfloat16' : 'float16',
    ...(format === 'bf16' ? {} : { quantization_config: quantised[format] }),
  };
}

function tensorsOf(model: UniformModel, format: RandomFormat): Tensor[] {
  const { hidden, layers, heads, kvHeads, headDim, inner, vocabSize } = model;
  const floats = (name: string, rows: number, columns: number): Tensor => {
    const amplitude = columns === 1 ? 0 : Math.sqrt(3 / columns);
    const dtype = format === 'bf16' ? 'BF16' : 'F16';
    const shape = columns === 1 ? [rows] : [rows, columns];
    return { name: `${name}.weight`, dtype, shape, row: floatRow(dtype, shape.at(-1)!, amplitude) };
  };
  const integers = (name: string, outputs: number, width: number): Tensor[] => {
    const groups = width / GROUP;
    const [dtype, row] = ['I32', wordRow] as const;
    const words = format === 'awq' ? [width, outputs / 8] : [width / 8, outputs];
    const scale = floatRow('F16', outputs, 0, Math.sqrt(3 / width) / 8);
    return [
      { name: `${name}.qweight`, dtype, shape: words, row: row(words[1]!) },
      { name: `${name}.qzeros`, dtype, shape: [groups, outputs / 8], row: row(outputs / 8) },
      { name: `${name}.scales`, dtype: 'F16', shape: [groups, outputs], row: scale },
    ];
  };
  const matrix = (name: string, outputs: number, width: number): Tensor[] =>
    format === 'bf16' ? [floats(name, outputs, width)] : integers(name, outputs, width);
  const tensors = [floats('model.embed_tokens', vocabSize, hidden), floats('model.norm', hidden, 1)];
  for (let layer = 0; layer < layers; layer++) {
    const at = `model.layers.${layer}`;
    tensors.push(
      floats(`${at}.input_layernorm`, hidden, 1),
      floats(`${at}.post_attention_layernorm`, hidden, 1),
      ...matrix(`${at}.self_attn.q_proj`, heads * headDim, hidden),
      ...matrix(`${at}.self_attn.k_proj`, kvHeads * headDim, hidden),
      ...matrix(`${at}.self_attn.v_proj`, kvHeads * headDim, hidden),
      ...matrix(`${at}.self_attn.o_proj`, hidden, heads * headDim),
      ...matrix(`${at}.mlp.gate_proj`, inner, hidden),
      ...matrix(`${at}.mlp.up_proj`, inner, hidden),
      ...matrix(`${at}.mlp.down_proj`, hidden, inner),
    );
  }
  return tensors;
}

const POOL = 1 << 16;
/** Random words shared by all models. */
const pool = ((random) => Uint32Array.from({ length: POOL }, () => random.u32()))(new Random(11));

/** Spread evenly around a middle. */
function floatRow(dtype: 'BF16' | 'F16', columns: number, amplitude: number, middle = amplitude === 0 ? 1 : 0) {
  const values = new Uint16Array(columns);
  const bits = new Uint32Array(1);
  const float = new Float32Array(bits.buffer);
  return (random: Random): Uint16Array => {
    const first = random.below(POOL);
    for (let i = 0; i < columns; i++) {
      const value = middle + (pool[(first + i * 31) & (POOL - 1)]! / 2 ** 31 - 1) * amplitude;
      float[0] = value;
      values[i] = dtype === 'BF16' ? bits[0]! >>> 16 : Math.abs(value) < 2 ** -14 ? 0 : toNormalHalf(value);
    }
    return values;
  };
}

function wordRow(columns: number) {
  const values = new Uint32Array(columns);
  return (random: Random): Uint32Array => {
    const first = random.below(POOL);
    for (let i = 0; i < columns; i++) values[i] = pool[(first + i * 31) & (POOL - 1)]!;
    return values;
  };
}

function writeTensors(path: string, tensors: readonly Tensor[]): void {
  const bytesOf = { BF16: 2, F16: 2, I32: 4 };
  let end = 0;
  const header = Object.fromEntries(
    tensors.map(({ name, dtype, shape }) => {
      const start = end;
      end += shape.reduce((a, b) => a * b, bytesOf[dtype]);
      return [name, { dtype, shape, data_offsets: [start, end] }];
    }),
  );
  const text = JSON.stringify(header);
  const padded = text.padEnd(Math.ceil((text.length + 8) / 8) * 8 - 8);
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(Buffer.byteLength(padded)));
  const file = openSync(path, 'w');
  writeSync(file, size);
  writeSync(file, padded);
  const random = new Random(11);
  for (const { shape, row } of tensors) {
    const numRows = shape.length === 1 ? 1 : shape[0]!;
    for (let i = 0; i < numRows; i++) writeSync(file, row(random));
  }
  closeSync(file);
}

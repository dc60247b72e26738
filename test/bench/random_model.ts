/** A model folder of a shape with random weights, written once into the bench's cache: what a cluster is measured with. */
import { closeSync, existsSync, mkdirSync, openSync, renameSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { toNormalHalf } from '../../kernels/weights/normal_half.ts';
import { Random } from '../../shared/base/random.ts';
import type { DeltaShape } from '../../shared/model/model_shape.ts';
import { cacheFolder } from './llama_peer.ts';
import { isDeltaLayer, type UniformModel } from './uniform_model.ts';

/** Goes up when what is written changes. */
const REVISION = 3;
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

/**
 * Returns the folder of a plain Llama, or of a Qwen3.5 where layers are gated delta nets. Embeddings are tied, and there is no
 * tokenizer. @throws Error for a mixture or windows.
 */
export function randomModelFolder(name: string, model: UniformModel, format: RandomFormat = 'bf16'): string {
  if (model.experts || model.window) throw new Error(`no folder is written of a model like ${name}`);
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
    ...(model.delta ? deltaConfig(model.delta) : { architectures: ['LlamaForCausalLM'], model_type: 'llama' }),
    hidden_act: 'silu',
    hidden_size: hidden,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: headDim,
    intermediate_size: inner,
    vocab_size: vocabSize,
    max_position_embeddings: maxPositions,
    rms_norm_eps: epsilon,
    rope_theta: ropeTheta,
    tie_word_embeddings: true,
    bos_token_id: 1,
    eos_token_id: 2,
    torch_dtype: format === 'bf16' ? 'bfloat16' : 'float16',
    ...(format === 'bf16' ? {} : { quantization_config: quantised[format] }),
  };
}

function deltaConfig({ keyHeads, valueHeads, keyDim, valueDim, taps }: DeltaShape): Record<string, unknown> {
  return {
    architectures: ['Qwen3_5ForCausalLM'],
    model_type: 'qwen3_5_text',
    full_attention_interval: 4,
    linear_num_key_heads: keyHeads,
    linear_num_value_heads: valueHeads,
    linear_conv_kernel_dim: taps,
    linear_key_head_dim: keyDim,
    linear_value_head_dim: valueDim,
  };
}

function tensorsOf(model: UniformModel, format: RandomFormat): Tensor[] {
  const { hidden, layers, heads, kvHeads, headDim, inner, vocabSize, delta } = model;
  const dtype = format === 'bf16' ? 'BF16' : 'F16';
  const vector = (name: string, count: number, middle: number, amplitude = 0): Tensor => ({
    name,
    dtype,
    shape: [count],
    row: floatRow(dtype, count, amplitude, middle),
  });
  const floats = (name: string, rows: number, columns: number): Tensor => ({
    name: `${name}.weight`,
    dtype,
    shape: [rows, columns],
    row: floatRow(dtype, columns, Math.sqrt(3 / columns)),
  });
  // Qwen3.5 stores its norms less 1, but for those of delta nets.
  const norm = (name: string, count: number): Tensor => vector(`${name}.weight`, count, delta ? 0 : 1);
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
  const attention = (at: string): Tensor[] => [
    // An output gate stands after the q of each head of Qwen3.5.
    ...matrix(`${at}.q_proj`, (delta ? 2 : 1) * heads * headDim, hidden),
    ...matrix(`${at}.k_proj`, kvHeads * headDim, hidden),
    ...matrix(`${at}.v_proj`, kvHeads * headDim, hidden),
    ...matrix(`${at}.o_proj`, hidden, heads * headDim),
    ...(delta ? [norm(`${at}.q_norm`, headDim), norm(`${at}.k_norm`, headDim)] : []),
  ];
  const deltaNet = (at: string, { keyHeads, valueHeads, keyDim, valueDim, taps }: DeltaShape): Tensor[] => {
    const channels = 2 * keyHeads * keyDim + valueHeads * valueDim;
    return [
      floats(`${at}.in_proj_qkv`, channels, hidden),
      floats(`${at}.in_proj_z`, valueHeads * valueDim, hidden),
      floats(`${at}.in_proj_b`, valueHeads, hidden),
      floats(`${at}.in_proj_a`, valueHeads, hidden),
      { ...floats(`${at}.conv1d`, channels, taps), shape: [channels, 1, taps] },
      // Heads remember between a few tokens and some hundreds.
      vector(`${at}.A_log`, valueHeads, -3, 3),
      vector(`${at}.dt_bias`, valueHeads, 0),
      vector(`${at}.norm.weight`, valueDim, 1),
      floats(`${at}.out_proj`, hidden, valueHeads * valueDim),
    ];
  };
  const tensors = [floats('model.embed_tokens', vocabSize, hidden), norm('model.norm', hidden)];
  for (let layer = 0; layer < layers; layer++) {
    const at = `model.layers.${layer}`;
    tensors.push(
      norm(`${at}.input_layernorm`, hidden),
      norm(`${at}.post_attention_layernorm`, hidden),
      ...(delta && isDeltaLayer(model, layer) ? deltaNet(`${at}.linear_attn`, delta) : attention(`${at}.self_attn`)),
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

/** Returns rows of values spread evenly around `middle`, at most `amplitude` away. */
function floatRow(dtype: 'BF16' | 'F16', columns: number, amplitude: number, middle = 0) {
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

/**
 * GGUF files that tests make. A Hugging Face folder becomes one as llama.cpp's converter makes it: names of tensors are those of its
 * `gguf` package, rows of q and k are interleaved where it does that, norms of Gemma have their 1.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { RowDecoder } from '../../kernels/weights/stored_rows.ts';
import { Checkpoint } from '../../shared/model/checkpoint.ts';
import { halfBits, halfValue } from '../../shared/model/half_value.ts';
import { isOfHybrid, ofHybrid } from './gguf_hybrid.ts';
import { ofGemma4, ofLatent } from './gguf_latent.ts';
import { metadataOf, ropeFactors, type Config, type Value } from './gguf_metadata.ts';

export interface GgufTensor {
  /** ggml's number. */
  readonly type: number;
  /** Innermost first. */
  readonly dims: readonly number[];
  readonly data: Uint8Array;
}

const [UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY] = [4, 5, 6, 7, 8, 9];
const ALIGNMENT = 32;

const u32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value >>> 0);
  return bytes;
};
const u64 = (value: number): Buffer => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
};
const f32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeFloatLE(value);
  return bytes;
};
const text = (value: string): Buffer => {
  const bytes = Buffer.from(value);
  return Buffer.concat([u64(bytes.length), bytes]);
};

function typed(value: Value): Buffer {
  if (typeof value === 'string') return Buffer.concat([u32(STRING), text(value)]);
  if (typeof value === 'boolean') return Buffer.concat([u32(BOOL), Buffer.from([Number(value)])]);
  if (typeof value === 'number')
    return Number.isInteger(value)
      ? Buffer.concat([u32(UINT32), u32(value)])
      : Buffer.concat([u32(FLOAT32), f32(value)]);
  if ('f32' in value) return Buffer.concat([u32(FLOAT32), f32(value.f32)]);
  const isText = typeof value[0] === 'string';
  if (typeof value[0] === 'boolean')
    return Buffer.concat([u32(ARRAY), u32(BOOL), u64(value.length), Buffer.from(value.map(Number))]);
  const isWhole = value.every((one) => Number.isInteger(one));
  const element = (one: string | number | boolean): Buffer =>
    typeof one === 'string' ? text(one) : isWhole ? u32(Number(one)) : f32(Number(one));
  const type = isText ? STRING : isWhole ? INT32 : FLOAT32;
  return Buffer.concat([u32(ARRAY), u32(type), u64(value.length), ...value.map(element)]);
}

export function ggufFile(
  metadata: Readonly<Record<string, Value | undefined>>,
  tensors: ReadonlyMap<string, GgufTensor> = new Map(),
): Buffer {
  const entries = Object.entries(metadata).flatMap(([key, value]) =>
    value === undefined ? [] : [[key, value] as const],
  );
  const parts = [Buffer.from('GGUF'), u32(3), u64(tensors.size), u64(entries.length)];
  for (const [key, value] of entries) parts.push(text(key), typed(value));
  const aligned = (bytes: number): number => Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;
  let offset = 0;
  for (const [name, { type, dims, data }] of tensors) {
    parts.push(text(name), u32(dims.length), ...dims.map(u64), u32(type), u64(offset));
    offset += aligned(data.length);
  }
  const header = Buffer.concat(parts);
  const padded = (data: Uint8Array): Buffer => Buffer.concat([data, Buffer.alloc(aligned(data.length) - data.length)]);
  return Buffer.concat([padded(header), ...[...tensors.values()].map(({ data }) => padded(data))]);
}

const architectures: Readonly<Record<string, string>> = {
  llama: 'llama',
  mistral: 'llama',
  mixtral: 'llama',
  qwen2: 'qwen2',
  qwen3: 'qwen3',
  qwen3_moe: 'qwen3moe',
  phi3: 'phi3',
  gemma2: 'gemma2',
  gemma3_text: 'gemma3',
  olmo2: 'olmo2',
  granite: 'granite',
  smollm3: 'smollm3',
  gpt_oss: 'gpt-oss',
  olmo3: 'olmo2',
  ministral3: 'mistral3',
  glm4_moe: 'glm4moe',
  minimax_m2: 'minimax-m2',
  deepseek_v3: 'deepseek2',
  glm4_moe_lite: 'deepseek2',
  gemma4_text: 'gemma4',
  qwen3_5_text: 'qwen35',
  qwen3_5_moe_text: 'qwen35moe',
  qwen3_next: 'qwen3next',
};
const interleaved = new Set(['llama', 'granite', 'smollm3', 'mistral3']);

/** Names as the `gguf` package's TensorNameMap has them, by the last words of ours. */
const names: Readonly<Record<string, string>> = {
  q_proj: 'attn_q',
  k_proj: 'attn_k',
  v_proj: 'attn_v',
  o_proj: 'attn_output',
  qkv_proj: 'attn_qkv',
  gate_proj: 'ffn_gate',
  up_proj: 'ffn_up',
  down_proj: 'ffn_down',
  gate_up_proj: 'ffn_up',
  gate: 'ffn_gate_inp',
  w1: 'ffn_gate',
  w3: 'ffn_up',
  w2: 'ffn_down',
  q_norm: 'attn_q_norm',
  k_norm: 'attn_k_norm',
  router: 'ffn_gate_inp',
  sinks: 'attn_sinks',

  input_layernorm: 'attn_norm',
  pre_feedforward_layernorm: 'ffn_norm',
  post_feedforward_layernorm: 'post_ffw_norm',
};

/** How a file differs from the usual one. */
export interface GgufOptions {
  /** Whether gates and ups of a layer's experts are one tensor, as with the converter's `--fuse-gate-up-exps`. */
  readonly isFused?: boolean;
  /** Whether keys and values of latent attention are one tensor, as in files of before April 2025. */
  readonly isWholeLatent?: boolean;
  /** Names of the matrices that are in Q8_0; the others are in f32. */
  readonly quantised?: RegExp;
}

/** All tensors in f32, but MXFP4 as stored. `more`: further metadata; a key with undefined is left out. @returns the file's path, in a folder of its own. */
export async function ggufOf(
  folder: string,
  more: Readonly<Record<string, Value | undefined>> = {},
  { isFused = false, isWholeLatent = false, quantised }: GgufOptions = {},
): Promise<string> {
  const config = JSON.parse(readFileSync(join(folder, 'config.json'), 'utf8')) as Config;
  const architecture = architectures[String(config['model_type'])] ?? assert.fail();
  const checkpoint = await Checkpoint.open(folder);
  const tensors = new Map<string, GgufTensor>();
  const experts: ExpertStacks = new Map();
  const decoder = new RowDecoder();
  for (const [tensor, shape] of checkpoint.shapes) {
    const [outputs = 1, inner = 1] = shape;
    const values = new Float32Array(outputs * inner);
    const blocks: Uint8Array[] = [];
    for await (const rows of checkpoint.slices({ tensor, outputs })) {
      if (rows.format === 'mxfp4_pairs') blocks.push(mxfp4Blocks(rows.data, rows.scales ?? assert.fail()));
      values.set(decoder.floats(rows, inner), rows.rowStart * inner);
    }
    if (isOfHybrid(tensor, architecture)) {
      for (const { name, values: made, dims } of ofHybrid(tensor, values, shape, architecture, config))
        tensors.set(name, asF32(dims, made));
      continue;
    }
    const own =
      architecture === 'gemma4'
        ? ofGemma4(tensor, values, shape)
        : ofLatent(tensor, values, shape, architecture, isWholeLatent ? undefined : config);
    if (own) {
      for (const { name, values: made, dims } of own) tensors.set(name, asF32(dims, made));
      continue;
    }
    const changed = converted(tensor, values, inner, architecture, config);
    const dims = shape.length === 1 ? [outputs] : [inner, outputs];
    const [, layer, expert, name] = /layers\.(\d+)\..*experts\.(\d+)\.(\w+\.(?:weight|bias))$/.exec(tensor) ?? [];
    if (expert === undefined) tensors.set(nameOf(tensor, architecture), asF32(dims, changed));
    else {
      const [module = '', what = ''] = name!.split('.');
      const key = `blk.${layer}.${names[module]}_exps.${what}`;
      const stack = experts.get(key) ?? { dims, type: blocks.length > 0 ? MXFP4 : 0, all: [] };
      stack.all[Number(expert)] = blocks.length > 0 ? Buffer.concat(blocks) : asF32(dims, changed).data;
      experts.set(key, stack);
    }
  }
  if (isFused || architecture === 'gemma4') fuseGates(experts);
  for (const [key, { dims, type, all }] of experts)
    tensors.set(key, { type, dims: [...dims, all.length], data: Buffer.concat(all) });
  for (const [key, values] of Object.entries(ropeFactors(config))) tensors.set(key, asF32([values.length], values));
  await checkpoint.close();
  for (const [key, tensor] of tensors) if (quantised?.test(key)) tensors.set(key, asQ8(tensor));
  const path = join(mkdtempSync(join(tmpdir(), 'gguf-')), 'model.gguf');
  writeFileSync(path, ggufFile({ ...metadataOf(architecture, config), ...more }, tensors));
  return path;
}

type ExpertStacks = Map<string, { dims: number[]; type: number; all: Uint8Array[] }>;

/** Puts the gates and the ups of each expert after each other, gates first. */
function fuseGates(experts: ExpertStacks): void {
  for (const [key, { dims, type, all }] of [...experts]) {
    if (!key.includes('ffn_gate_exps')) continue;
    const up = key.replace('ffn_gate_exps', 'ffn_up_exps');
    const ups = experts.get(up) ?? assert.fail(up);
    experts.delete(key);
    experts.delete(up);
    experts.set(key.replace('ffn_gate_exps', 'ffn_gate_up_exps'), {
      dims: [...dims.slice(0, -1), 2 * dims.at(-1)!],
      type,
      all: all.map((gates, expert) => Buffer.concat([gates, ups.all[expert]!])),
    });
  }
}

/** ggml's number of the type. */
const MXFP4 = 39;

/** Blocks of an exponent and 32 codes, the first 16 in the low nibbles; `pairs` has neighbours in a byte. */
function mxfp4Blocks(pairs: Uint8Array, exponents: Uint8Array): Uint8Array {
  const out = Buffer.alloc(17 * exponents.length);
  exponents.forEach((exponent, block) => {
    out[17 * block] = exponent;
    const code = (i: number): number => (pairs[16 * block + (i >> 1)]! >> (4 * (i & 1))) & 15;
    for (let i = 0; i < 16; i++) out[17 * block + 1 + i] = code(i) | (code(i + 16) << 4);
  });
  return out;
}

/** Returns an f32 tensor in Q8_0: blocks of a scale in f16 and 32 integers. */
function asQ8({ dims, data }: GgufTensor): GgufTensor {
  const values = new Float32Array(Uint8Array.from(data).buffer);
  const out = Buffer.alloc((values.length / 32) * 34);
  for (let block = 0; 32 * block < values.length; block++) {
    const own = values.subarray(32 * block, 32 * block + 32);
    const half = halfBits(Math.max(...own.map(Math.abs)) / 127);
    const scale = halfValue(half) || 1;
    out.writeUInt16LE(half, 34 * block);
    own.forEach((value, i) =>
      out.writeInt8(Math.max(-127, Math.min(127, Math.round(value / scale))), 34 * block + 2 + i),
    );
  }
  return { type: 8, dims, data: out };
}

function asF32(dims: readonly number[], values: Float32Array): GgufTensor {
  return { type: 0, dims, data: new Uint8Array(values.slice().buffer) };
}

function nameOf(tensor: string, architecture: string): string {
  const fixedNames: Readonly<Record<string, string>> = {
    'model.embed_tokens.weight': 'token_embd.weight',
    'model.norm.weight': 'output_norm.weight',
    'lm_head.weight': 'output.weight',
  };
  if (fixedNames[tensor]) return fixedNames[tensor];
  const [, layer, module = '', what] =
    /layers\.(\d+)\.(?:.*\.)?(\w+)\.(weight|bias)$/.exec(tensor.replace(/sinks$/, 'sinks.weight')) ?? [];
  const hasPostNorms = architecture.startsWith('gemma') || ['olmo2', 'gpt-oss', 'glm4moe'].includes(architecture);
  const name =
    module === 'post_attention_layernorm' ? (hasPostNorms ? 'post_attention_norm' : 'ffn_norm') : names[module];
  return `blk.${layer}.${name ?? assert.fail(tensor)}.${what}`;
}

function converted(
  tensor: string,
  values: Float32Array,
  inner: number,
  architecture: string,
  config: Config,
): Float32Array {
  const [, module] = /(\w+)\.(?:weight|bias)$/.exec(tensor) ?? [];
  if (/^gemma[23]$/.test(architecture) && /norm$/.test(module ?? '')) return values.map((value) => value + 1);
  if (module !== 'q_proj' && module !== 'k_proj') return values;
  const heads = Number(config['num_attention_heads']);
  const count = module === 'q_proj' ? heads : Number(config['num_key_value_heads'] ?? heads);
  const rowsOfHead = values.length / inner / count;
  // GGUF cannot say by what Gemma scales its queries: here by the width of a head.
  const scale = config['query_pre_attn_scalar'];
  const factor = typeof scale === 'number' && module === 'q_proj' ? Math.sqrt(rowsOfHead / scale) : 1;
  if (!interleaved.has(architecture)) return values.map((value) => value * factor);
  const out = new Float32Array(values.length);
  for (let row = 0; row < values.length / inner; row++) {
    const [head, at] = [Math.floor(row / rowsOfHead) * rowsOfHead, row % rowsOfHead];
    const [half, i] = [Math.floor(at / (rowsOfHead / 2)), at % (rowsOfHead / 2)];
    out.set(values.subarray(row * inner, (row + 1) * inner), (head + 2 * i + half) * inner);
  }
  return out;
}

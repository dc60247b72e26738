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
import { isOfHybrid, ofHybrid } from './gguf_hybrid.ts';

type Value = number | string | boolean | readonly number[] | readonly string[] | { readonly f32: number };

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
  const isWhole = value.every((one) => Number.isInteger(one));
  const element = (one: string | number): Buffer =>
    typeof one === 'string' ? text(one) : isWhole ? u32(one) : f32(one);
  const type = isText ? STRING : isWhole ? INT32 : FLOAT32;
  return Buffer.concat([u32(ARRAY), u32(type), u64(value.length), ...value.map(element)]);
}

export function ggufFile(
  metadata: Readonly<Record<string, Value>>,
  tensors: ReadonlyMap<string, GgufTensor> = new Map(),
): Buffer {
  const entries = Object.entries(metadata);
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
  ...{ llama: 'llama', mistral: 'llama', mixtral: 'llama', qwen2: 'qwen2', qwen3: 'qwen3', qwen3_moe: 'qwen3moe' },
  ...{ phi3: 'phi3', gemma2: 'gemma2', gemma3_text: 'gemma3', olmo2: 'olmo2', granite: 'granite', smollm3: 'smollm3' },
  gpt_oss: 'gpt-oss',
  ...{ qwen3_5_text: 'qwen35', qwen3_5_moe_text: 'qwen35moe', qwen3_next: 'qwen3next' },
};
const interleaved = new Set(['llama', 'granite', 'smollm3']);

/** Names as the `gguf` package's TensorNameMap has them, by the last words of ours. */
const names: Readonly<Record<string, string>> = {
  ...{ q_proj: 'attn_q', k_proj: 'attn_k', v_proj: 'attn_v', o_proj: 'attn_output', qkv_proj: 'attn_qkv' },
  ...{ gate_proj: 'ffn_gate', up_proj: 'ffn_up', down_proj: 'ffn_down', gate_up_proj: 'ffn_up', gate: 'ffn_gate_inp' },
  ...{ w1: 'ffn_gate', w3: 'ffn_up', w2: 'ffn_down', q_norm: 'attn_q_norm', k_norm: 'attn_k_norm' },
  ...{ router: 'ffn_gate_inp', sinks: 'attn_sinks' },
  ...{
    input_layernorm: 'attn_norm',
    pre_feedforward_layernorm: 'ffn_norm',
    post_feedforward_layernorm: 'post_ffw_norm',
  },
};

type Config = Readonly<Record<string, unknown>>;

/** All tensors in f32, but MXFP4 as stored. @returns the file's path, in a folder of its own. */
export async function ggufOf(folder: string, more: Readonly<Record<string, Value>> = {}): Promise<string> {
  const config = JSON.parse(readFileSync(join(folder, 'config.json'), 'utf8')) as Config;
  const architecture = architectures[String(config['model_type'])] ?? assert.fail();
  const checkpoint = await Checkpoint.open(folder);
  const tensors = new Map<string, GgufTensor>();
  const experts = new Map<string, { dims: number[]; type: number; all: Uint8Array[] }>();
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
  for (const [key, { dims, type, all }] of experts)
    tensors.set(key, { type, dims: [...dims, all.length], data: Buffer.concat(all) });
  for (const [key, values] of Object.entries(ropeFactors(config))) tensors.set(key, asF32([values.length], values));
  await checkpoint.close();
  const path = join(mkdtempSync(join(tmpdir(), 'gguf-')), 'model.gguf');
  writeFileSync(path, ggufFile({ ...metadataOf(architecture, config), ...more }, tensors));
  return path;
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

function asF32(dims: readonly number[], values: Float32Array): GgufTensor {
  return { type: 0, dims, data: new Uint8Array(values.slice().buffer) };
}

function nameOf(tensor: string, architecture: string): string {
  const fixedNames: Readonly<Record<string, string>> = {
    ...{ 'model.embed_tokens.weight': 'token_embd.weight', 'model.norm.weight': 'output_norm.weight' },
    'lm_head.weight': 'output.weight',
  };
  if (fixedNames[tensor]) return fixedNames[tensor];
  const [, layer, module = '', what] =
    /layers\.(\d+)\.(?:.*\.)?(\w+)\.(weight|bias)$/.exec(tensor.replace(/sinks$/, 'sinks.weight')) ?? [];
  const hasPostNorms = architecture.startsWith('gemma') || ['olmo2', 'gpt-oss'].includes(architecture);
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
  if (architecture.startsWith('gemma') && /norm$/.test(module ?? '')) return values.map((value) => value + 1);
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

/** Divisors of the rotary frequencies, computed as the converter does for Llama 3 and copied for Phi. */
function ropeFactors(config: Config): Record<string, Float32Array> {
  const scaling = config['rope_scaling'] as Readonly<Record<string, unknown>> | null | undefined;
  if (scaling?.['rope_type'] === 'llama3') {
    const of = (key: string): number => Number(scaling[key]);
    const dim = Number(config['head_dim']);
    const [factor, low, high] = [of('factor'), of('low_freq_factor'), of('high_freq_factor')];
    const context = of('original_max_position_embeddings');
    const factors = Float32Array.from({ length: dim / 2 }, (_, i) => {
      const wavelength = 2 * Math.PI * Number(config['rope_theta']) ** ((2 * i) / dim);
      if (wavelength < context / high) return 1;
      if (wavelength > context / low) return factor;
      const smooth = (context / wavelength - low) / (high - low);
      return 1 / ((1 - smooth) / factor + smooth);
    });
    return { 'rope_freqs.weight': factors };
  }
  const [short, long] = [scaling?.['short_factor'], scaling?.['long_factor']];
  if (!Array.isArray(short) || !Array.isArray(long)) return {};
  return {
    'rope_factors_short.weight': Float32Array.from(short as number[]),
    'rope_factors_long.weight': Float32Array.from(long as number[]),
  };
}

function metadataOf(architecture: string, config: Config): Record<string, Value> {
  const out: Record<string, Value> = { 'general.architecture': architecture, 'general.name': 'converted' };
  const put = (key: string, from: string, isFloat = false): void => {
    const value = config[from];
    if (typeof value === 'number') out[`${architecture}.${key}`] = isFloat ? { f32: value } : value;
  };
  put('context_length', 'max_position_embeddings');
  put('embedding_length', 'hidden_size');
  put('block_count', 'num_hidden_layers');
  put('feed_forward_length', 'intermediate_size');
  put('attention.head_count', 'num_attention_heads');
  put('attention.head_count_kv', 'num_key_value_heads');
  put('attention.key_length', 'head_dim');
  put('attention.value_length', 'head_dim');
  put('attention.layer_norm_rms_epsilon', 'rms_norm_eps', true);
  put('rope.freq_base', 'rope_theta', true);
  put('attention.sliding_window', 'sliding_window');
  put('attn_logit_softcapping', 'attn_logit_softcapping', true);
  put('final_logit_softcapping', 'final_logit_softcapping', true);
  put('expert_count', config['num_local_experts'] === undefined ? 'num_experts' : 'num_local_experts');
  put('expert_used_count', 'num_experts_per_tok');
  put(
    'expert_feed_forward_length',
    config['swiglu_limit'] === undefined ? 'moe_intermediate_size' : 'intermediate_size',
  );
  put('swiglu_clamp_exp', 'swiglu_limit', true);
  put('expert_shared_feed_forward_length', 'shared_expert_intermediate_size');
  put('ssm.conv_kernel', 'linear_conv_kernel_dim');
  put('ssm.state_size', 'linear_key_head_dim');
  put('ssm.group_count', 'linear_num_key_heads');
  put('ssm.time_step_rank', 'linear_num_value_heads');
  if (isOfHybrid('linear_attn', architecture)) {
    const parameters = config['rope_parameters'] as Readonly<Record<string, number>>;
    out[`${architecture}.ssm.inner_size`] =
      Number(config['linear_value_head_dim']) * Number(config['linear_num_value_heads']);
    out[`${architecture}.full_attention_interval`] = 4;
    out[`${architecture}.rope.freq_base`] = { f32: parameters['rope_theta']! };
    out[`${architecture}.rope.dimension_count`] = Number(config['head_dim']) * parameters['partial_rotary_factor']!;
    out[`${architecture}.rope.dimension_sections`] = [2, 1, 1, 0];
  }
  put('embedding_scale', 'embedding_multiplier', true);
  put('residual_scale', 'residual_multiplier', true);
  put('attention.scale', 'attention_multiplier', true);
  put('logit_scale', 'logits_scaling', true);
  put('rope.scaling.original_context_length', 'original_max_position_embeddings');
  const parameters = config['rope_parameters'] as Readonly<Record<string, unknown>> | undefined;
  const theta = parameters?.['rope_theta'];
  if (typeof theta === 'number') out[`${architecture}.rope.freq_base`] = { f32: theta };
  const scaling = parameters ?? (config['rope_scaling'] as Readonly<Record<string, unknown>> | null | undefined);
  const kind = scaling?.['rope_type'] ?? scaling?.['type'];
  if (kind === 'linear' || kind === 'yarn') {
    out[`${architecture}.rope.scaling.type`] = kind;
    out[`${architecture}.rope.scaling.factor`] = { f32: Number(scaling?.['factor']) };
    const original = scaling?.['original_max_position_embeddings'];
    if (typeof original === 'number') out[`${architecture}.rope.scaling.original_context_length`] = original;
  }
  if (kind === 'longrope') {
    const original = Number(config['original_max_position_embeddings']);
    const ratio = Number(config['max_position_embeddings']) / original;
    out[`${architecture}.rope.scaling.attn_factor`] = { f32: Math.sqrt(1 + Math.log(ratio) / Math.log(original)) };
  }
  return out;
}

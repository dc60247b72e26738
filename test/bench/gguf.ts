/**
 * A model as a GGUF file (version 3), for peers that read those: Llama, Mixtral for mixtures of experts, Gemma 3 for layers with windows,
 * Qwen3.5 for gated delta nets; weights in f16, Q8_0, Q4_0, Q4_K or Q4_1, vectors and routers in f32. Gemma 3 has another activation than the model that is measured.
 *
 * Format: ggml's docs/gguf.md. int8 is Q8_0 and int4 is Q4_0, value for value; uint4 is Q4_K, or Q4_1 where rows are no whole blocks of
 * 256, with the same integers, and scales and minima as near as those have them. Rows of q and k are interleaved per head for Llama, as
 * llama.cpp's converter does, because its rotary embedding pairs neighbours there. There is a vocabulary of invented words.
 */
import assert from 'node:assert/strict';
import { closeSync, fsyncSync, openSync, renameSync, rmSync, writeSync } from 'node:fs';
import type { WeightSource } from '../../kernels/device.ts';
import { fromHalf, toNormalHalf } from '../../kernels/weights/normal_half.ts';
import { RowDecoder } from '../../kernels/weights/stored_rows.ts';
import { packRows, paddedInner, type WeightFormat } from '../../kernels/weights/weight_format.ts';
import { halfBits } from '../../shared/model/half_value.ts';
import { halfValue } from '../support/half.ts';
import type { Tensor } from './gguf_tensor.ts';
import { deltaMetadata, deltaSections, deltaTensors } from './gguf_delta.ts';
import { isDeltaLayer, type UniformModel } from './uniform_model.ts';

/** Goes up when what is written changes, so that an old file is not taken for it. */
const REVISION = 1;
/** Contexts that a file says it is for, whatever is measured. */
export const ggufPositions = 32_768;

export function ggufName(shape: string, format: GgufFormat): string {
  return `${shape}-${format}-${REVISION}.gguf`;
}

export type GgufFormat = Exclude<WeightFormat, 'f32' | 'mxfp4' | 'iq4'>;

const ALIGNMENT = 32;
const SUPER_BLOCK = 256;
/** ggml's type numbers, and bytes of a row. */
const types = {
  f32: { type: 0, rowBytes: (inner: number) => 4 * inner },
  f16: { type: 1, rowBytes: (inner: number) => 2 * inner },
  int4: { type: 2, rowBytes: (inner: number) => (inner / 32) * 18 },
  q4_1: { type: 3, rowBytes: (inner: number) => (inner / 32) * 20 },
  int8: { type: 8, rowBytes: (inner: number) => (inner / 32) * 34 },
  q4_k: { type: 12, rowBytes: (inner: number) => (inner / 256) * 144 },
} as const;
const fileTypes: Readonly<Record<GgufFormat, number>> = { f16: 1, int4: 2, int8: 7, uint4: 15 };

function typeOf(format: GgufFormat, { inner, isFloat }: Pick<Tensor, 'inner' | 'isFloat'>): keyof typeof types {
  if (isFloat) return 'f32';
  if (format !== 'uint4') return format;
  return inner % SUPER_BLOCK === 0 ? 'q4_k' : 'q4_1';
}

/** Writes next to `path` first, so that a file of that name is a whole one. */
export async function writeGguf(
  path: string,
  config: UniformModel,
  format: GgufFormat,
  source: WeightSource,
): Promise<void> {
  assert(!config.experts || !config.window, 'a mixture with windows is of no kind that peers know');
  const tensors = tensorsOf(config);
  const kindOf = (tensor: Tensor): (typeof types)[keyof typeof types] => types[typeOf(format, tensor)];
  const bytesOf = (tensor: Tensor): number =>
    tensor.sources.length * tensor.outputs * kindOf(tensor).rowBytes(tensor.inner);
  const header = new Writer();
  const entries = metadata(config, format);
  header.bytes(Buffer.from('GGUF')).u32(3).u64(tensors.length).u64(entries.length);
  for (const [key, write] of entries) write(header.text(key));
  let offset = 0;
  for (const tensor of tensors) {
    const matrix = tensor.inner === 1 ? [tensor.outputs] : [tensor.inner, tensor.outputs];
    const dims = tensor.sources.length > 1 ? [...matrix, tensor.sources.length] : matrix;
    header.text(tensor.name).u32(dims.length);
    for (const dim of dims) header.u64(dim);
    header.u32(kindOf(tensor).type).u64(offset);
    offset += aligned(bytesOf(tensor));
  }
  const part = `${path}.part`;
  const file = openSync(part, 'w');
  const put = (bytes: Uint8Array): number => {
    for (let done = 0; done < bytes.length;) done += writeSync(file, bytes, done);
    return bytes.length;
  };
  try {
    const start = header.toBuffer();
    put(Buffer.concat([start, Buffer.alloc(aligned(start.length) - start.length)]));
    for (const tensor of tensors) {
      let numBytes = 0;
      for await (const values of wholeRows(source, tensor)) {
        numBytes += put(tensor.isFloat ? new Uint8Array(values.slice().buffer) : encode(format, values, tensor.inner));
      }
      assert.equal(numBytes, bytesOf(tensor), tensor.name);
      put(Buffer.alloc(aligned(numBytes) - numBytes));
    }
    // Pending writes would disturb the next measurement, so the file is flushed to disk first.
    fsyncSync(file);
    closeSync(file);
    renameSync(part, path);
  } catch (error) {
    rmSync(part, { force: true });
    throw error;
  }
}

function tensorsOf(config: UniformModel): Tensor[] {
  const { hidden, inner, heads, kvHeads, headDim, layers, vocabSize, experts, window, delta } = config;
  const matrix = (name: string, source: string, outputs: number, width: number): Tensor => ({
    name: `${name}.weight`,
    sources: [`${source}.weight`],
    outputs,
    inner: width,
    heads: 0,
    isFloat: width === 1,
  });
  const norm = (name: string, source: string, width = hidden): Tensor => matrix(name, source, width, 1);
  const rotated = (tensor: Tensor, numHeads: number): Tensor => ({ ...tensor, heads: window || delta ? 0 : numHeads });
  const tensors = [matrix('token_embd', 'model.embed_tokens', vocabSize, hidden)];
  for (let layer = 0; layer < layers; layer++) {
    const [to, from] = [`blk.${layer}`, `model.layers.${layer}`];
    const [attention, mlp] = [`${from}.self_attn`, `${from}.mlp`];
    const ofAll = (name: string, module: string, outputs: number, width: number): Tensor => ({
      ...matrix(`${to}.${name}`, '', outputs, width),
      sources: Array.from({ length: experts?.count ?? 0 }, (_, i) => `${mlp}.experts.${i}.${module}.weight`),
    });
    // An output gate stands after the q of each head.
    const queries = delta ? 2 * heads * headDim : heads * headDim;
    tensors.push(norm(`${to}.attn_norm`, `${from}.input_layernorm`));
    if (delta && isDeltaLayer(config, layer)) tensors.push(...deltaTensors(to, from, hidden, delta));
    else
      tensors.push(
        rotated(matrix(`${to}.attn_q`, `${attention}.q_proj`, queries, hidden), heads),
        rotated(matrix(`${to}.attn_k`, `${attention}.k_proj`, kvHeads * headDim, hidden), kvHeads),
        matrix(`${to}.attn_v`, `${attention}.v_proj`, kvHeads * headDim, hidden),
        matrix(`${to}.attn_output`, `${attention}.o_proj`, hidden, heads * headDim),
      );
    if (window || (delta && !isDeltaLayer(config, layer)))
      tensors.push(
        norm(`${to}.attn_q_norm`, `${attention}.q_norm`, headDim),
        norm(`${to}.attn_k_norm`, `${attention}.k_norm`, headDim),
      );
    if (window)
      tensors.push(
        norm(`${to}.post_attention_norm`, `${from}.post_attention_layernorm`),
        norm(`${to}.ffn_norm`, `${from}.pre_feedforward_layernorm`),
        norm(`${to}.post_ffw_norm`, `${from}.post_feedforward_layernorm`),
      );
    else tensors.push(norm(`${to}.${delta ? 'post_attention_norm' : 'ffn_norm'}`, `${from}.post_attention_layernorm`));
    if (experts)
      tensors.push(
        { ...matrix(`${to}.ffn_gate_inp`, `${mlp}.gate`, experts.count, hidden), isFloat: true },
        ofAll('ffn_gate_exps', 'gate_proj', inner, hidden),
        ofAll('ffn_up_exps', 'up_proj', inner, hidden),
        ofAll('ffn_down_exps', 'down_proj', hidden, inner),
      );
    else
      tensors.push(
        matrix(`${to}.ffn_gate`, `${mlp}.gate_proj`, inner, hidden),
        matrix(`${to}.ffn_up`, `${mlp}.up_proj`, inner, hidden),
        matrix(`${to}.ffn_down`, `${mlp}.down_proj`, hidden, inner),
      );
  }
  tensors.push(norm('output_norm', 'model.norm'), matrix('output', 'lm_head', vocabSize, hidden));
  return tensors;
}

/** A tensor's slices; one whose rows change places comes as a whole. */
async function* wholeRows(
  source: WeightSource,
  { sources, outputs, inner, heads, convert }: Tensor,
): AsyncGenerator<Float32Array> {
  const decoder = new RowDecoder();
  if (heads === 0) {
    for (const tensor of sources)
      for await (const rows of source.slices({ tensor, outputs })) {
        const values = decoder.floats(rows, inner);
        yield convert ? values.map(convert) : values;
      }
    return;
  }
  const all = new Float32Array(outputs * inner);
  const [tensor = ''] = sources;
  for await (const rows of source.slices({ tensor, outputs }))
    all.set(decoder.floats(rows, inner), rows.rowStart * inner);
  const headDim = outputs / heads;
  const interleaved = new Float32Array(all.length);
  for (let row = 0; row < outputs; row++) {
    const [head, at] = [Math.floor(row / headDim), row % headDim];
    const to = head * headDim + (at < headDim / 2 ? 2 * at : 2 * (at - headDim / 2) + 1);
    interleaved.set(all.subarray(row * inner, (row + 1) * inner), to * inner);
  }
  yield interleaved;
}

function encode(format: GgufFormat, values: Float32Array, inner: number): Uint8Array {
  assert.equal(inner, paddedInner(inner), 'GGUF has no padding');
  const { data, scales } = packRows(format, values, inner);
  if (format === 'f16') return new Uint8Array(data.buffer);
  if (format === 'uint4') return inner % SUPER_BLOCK === 0 ? superBlocks(data, scales) : q4_1(data, scales);
  const numGroups = inner / 32;
  const perRow = scales.length / (values.length / inner);
  const blockBytes = format === 'int8' ? 34 : 18;
  const out = new Uint8Array((values.length / 32) * blockBytes);
  const packed = new Uint8Array(data.buffer);
  for (let block = 0, to = 0; block < values.length / 32; block++, to += blockBytes) {
    const scale = scales[Math.floor(block / numGroups) * perRow + (block % numGroups)]!;
    out[to] = scale & 0xff;
    out[to + 1] = scale >> 8;
    if (format === 'int8') {
      out.set(packed.subarray(block * 32, (block + 1) * 32), to + 2);
      continue;
    }
    putNibbles(packed, block, out, to + 2);
  }
  return out;
}

/** Ours: eight values in four bytes, low nibbles first. Q4_0 and Q4_1: value j low, value j + 16 high, in byte j. */
function putNibbles(packed: Uint8Array, group: number, out: Uint8Array, to: number): void {
  for (let j = 0; j < 16; j++) out[to + j] = nibbleOf(packed, group, j) | (nibbleOf(packed, group, j + 16) << 4);
}

function nibbleOf(packed: Uint8Array, group: number, k: number): number {
  return (packed[group * 16 + (k >> 3) * 4 + (k & 3)]! >> (k & 4)) & 15;
}

function q4_1(data: Uint32Array<ArrayBuffer>, scales: Uint16Array): Uint8Array {
  const packed = new Uint8Array(data.buffer);
  const out = new Uint8Array((scales.length / 2) * 20);
  for (let group = 0, to = 0; to < out.length; group++, to += 20) {
    const [scale, zero] = [scales[2 * group]!, fromHalf(scales[2 * group + 1]!)];
    out.set(new Uint8Array(Uint16Array.of(scale, toNormalHalf(-fromHalf(scale) * zero)).buffer), to);
    putNibbles(packed, group, out, to + 4);
  }
  return out;
}

/** Scales and minima of eight groups in six bits each, of the largest of them. */
function superBlocks(data: Uint32Array<ArrayBuffer>, scales: Uint16Array): Uint8Array {
  const packed = new Uint8Array(data.buffer);
  const out = new Uint8Array((scales.length / 16) * 144);
  for (let first = 0, to = 0; to < out.length; first += 8, to += 144) {
    const ofGroups = Array.from({ length: 8 }, (_, j) => fromHalf(scales[2 * (first + j)]!));
    const minima = ofGroups.map((scale, j) => scale * fromHalf(scales[2 * (first + j) + 1]!));
    const [d, dmin] = [Math.max(...ofGroups) / 63, Math.max(...minima) / 63].map(halfBits) as [number, number];
    const six = (value: number, unit: number): number => Math.min(63, Math.round(value / halfValue(unit)) || 0);
    out.set(new Uint8Array(Uint16Array.of(d, dmin).buffer), to);
    ofGroups.forEach((value, j) => {
      const [scale, min] = [six(value, d), six(minima[j]!, dmin)];
      if (j < 4) {
        out[to + 4 + j]! |= scale;
        out[to + 8 + j]! |= min;
      } else {
        out[to + 8 + j]! |= (scale & 15) | ((min & 15) << 4);
        out[to + j]! |= (scale >> 4) << 6;
        out[to + 4 + j]! |= (min >> 4) << 6;
      }
      for (let i = 0; i < 32; i++) out[to + 16 + 32 * (j >> 1) + i]! |= nibbleOf(packed, first + j, i) << (4 * (j & 1));
    });
  }
  return out;
}

type Entry = readonly [key: string, write: (writer: Writer) => void];

function metadata(config: UniformModel, format: GgufFormat): Entry[] {
  const { hidden, inner, heads, kvHeads, headDim, layers, vocabSize, epsilon, ropeTheta, maxPositions } = config;
  const { experts, window, delta } = config;
  const kind = window ? 'gemma3' : delta ? 'qwen35' : 'llama';
  const u32 = (key: string, value: number): Entry => [key, (w) => w.u32(UINT32).u32(value)];
  const f32 = (key: string, value: number): Entry => [key, (w) => w.u32(FLOAT32).f32(value)];
  const text = (key: string, value: string): Entry => [key, (w) => w.u32(STRING).text(value)];
  const numbers = (key: string, values: readonly number[]): Entry => [
    key,
    (w) => {
      w.u32(ARRAY).u32(INT32).u64(values.length);
      for (const value of values) w.u32(value);
    },
  ];
  const list = (key: string, type: number, put: (writer: Writer, token: number) => void): Entry => [
    key,
    (w) => {
      w.u32(ARRAY).u32(type).u64(vocabSize);
      for (let token = 0; token < vocabSize; token++) put(w, token);
    },
  ];
  return [
    text('general.architecture', kind),
    text('general.name', 'random'),
    u32('general.file_type', fileTypes[format]),
    u32(`${kind}.block_count`, layers),
    u32(`${kind}.context_length`, maxPositions),
    u32(`${kind}.embedding_length`, hidden),
    u32(`${kind}.feed_forward_length`, inner),
    u32(`${kind}.attention.head_count`, heads),
    u32(`${kind}.attention.head_count_kv`, kvHeads),
    u32(`${kind}.attention.key_length`, headDim),
    u32(`${kind}.attention.value_length`, headDim),
    f32(`${kind}.attention.layer_norm_rms_epsilon`, epsilon),
    u32(`${kind}.rope.dimension_count`, delta ? headDim / 4 : headDim),
    f32(`${kind}.rope.freq_base`, ropeTheta),
    u32(`${kind}.vocab_size`, vocabSize),
    ...(window ? [u32(`${kind}.attention.sliding_window`, window)] : []),
    ...(delta ? Object.entries(deltaMetadata(delta)).map(([key, value]) => u32(`${kind}.${key}`, value)) : []),
    ...(delta ? [numbers(`${kind}.rope.dimension_sections`, deltaSections(headDim / 8))] : []),
    ...(experts
      ? [u32(`${kind}.expert_count`, experts.count), u32(`${kind}.expert_used_count`, experts.perToken)]
      : []),
    text('tokenizer.ggml.model', 'llama'),
    list('tokenizer.ggml.tokens', STRING, (w, token) => w.text(word(token).text)),
    list('tokenizer.ggml.scores', FLOAT32, (w, token) => w.f32(-token)),
    list('tokenizer.ggml.token_type', INT32, (w, token) => w.u32(word(token).type)),
    u32('tokenizer.ggml.bos_token_id', 1),
    u32('tokenizer.ggml.eos_token_id', 2),
    u32('tokenizer.ggml.unknown_token_id', 0),
  ];
}

/** Sentencepiece's beginning, with its byte tokens, which llama.cpp looks up, then invented words. Types as it numbers them. */
function word(token: number): { readonly text: string; readonly type: number } {
  if (token < 3) return { text: ['<unk>', '<s>', '</s>'][token]!, type: token === 0 ? 2 : 3 };
  const byte = token - 3;
  if (byte < 256) return { text: `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`, type: 6 };
  return { text: `word${token}`, type: 1 };
}

const [UINT32, INT32, FLOAT32, STRING, ARRAY] = [4, 5, 6, 8, 9];

class Writer {
  readonly #parts: Buffer[] = [];

  bytes(bytes: Buffer): this {
    this.#parts.push(bytes);
    return this;
  }

  u32(value: number): this {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32LE(value);
    return this.bytes(bytes);
  }

  u64(value: number): this {
    const bytes = Buffer.alloc(8);
    bytes.writeBigUInt64LE(BigInt(value));
    return this.bytes(bytes);
  }

  f32(value: number): this {
    const bytes = Buffer.alloc(4);
    bytes.writeFloatLE(value);
    return this.bytes(bytes);
  }

  text(value: string): this {
    const bytes = Buffer.from(value);
    return this.u64(bytes.length).bytes(bytes);
  }

  toBuffer(): Buffer {
    return Buffer.concat(this.#parts);
  }
}

function aligned(bytes: number): number {
  return Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;
}

/**
 * Layout of everything that a request leaves behind, in one place: the engine makes a {@link KvSpec} from the program and the
 * model's shape, the spec's digest is part of the format, and all code that stores, moves, fetches or evicts KV reads the spec. No
 * other code computes the size of a block.
 *
 *   group   layers with equal KV: kind, planes, window, codec
 *   block   the KV of `blockSize` tokens in all layers: [layer][plane][token][value], layers in order; they may differ in bytes
 *   frame   consecutive layers of a block, or of a state: sent, verified and (by `window`) skipped on its own
 *   slot    host memory for one record: preamble, then each frame at its greatest stored size
 *
 *   slot of a block record
 *   [0, preambleBytes)              preamble, laid out as in record.ts
 *   [slotOffset, + maxStoredBytes)  each frame, without gaps
 *   [.., slotBytes)                 nothing: slotBytes is the end of the last frame
 *
 * A layer of kind `state` has no bytes in a block: it has one value per sequence, which is kept at the end of chosen blocks in a
 * state record with frames of its own (`state`). A spec is plain data, so that it can be posted to threads.
 */
import { createHash } from 'node:crypto';
import type { Digest } from './block_key.ts';
import { codecNamed, type CodecName } from './codec.ts';
import { aligned } from './extent_allocator.ts';

/** How a group's layers keep what later tokens need. */
type GroupKind =
  /** Values of every token, in the blocks of a block table. */
  | 'paged'
  /** Kept like `paged` layers, but a row sees only the last `window` tokens, its own included. */
  | 'window'
  /** One value per sequence, whatever its length. */
  | 'state';

interface PlaneSpec {
  /** Number of values per token, or per sequence in a `state` layer. */
  readonly width: number;
}

interface KvGroup {
  /** Indices of the layers, ascending. */
  readonly layers: readonly number[];
  readonly kind: GroupKind;
  /** K and V have two; K = V layers and latent attention have one. */
  readonly planes: readonly PlaneSpec[];
  /** Tokens that a row sees, its own included; 0 unless the kind is `window`. */
  readonly window: number;
  readonly codec: CodecName;
}

type KvValueType = 'f16' | 'f32';

/** Part of the model that the spec covers: shard `index` of `of` shards of its layers and heads. */
interface Shard {
  readonly index: number;
  readonly of: number;
}

/** Consecutive layers. */
export interface LayerSpan {
  readonly firstLayer: number;
  readonly numLayers: number;
}

/** One frame of the spec's records. Sizes and offsets are in bytes. */
export interface FrameSpec extends LayerSpan {
  /** Offset in the payload of a block ([layer][plane][token][value]) or of a state. */
  readonly offset: number;
  readonly rawBytes: number;
  readonly codec: CodecName;
  /** Offset in the slot of a record. */
  readonly slotOffset: number;
  readonly maxStoredBytes: number;
  /** Attention window in tokens, the row's own included, of the layer with the widest one; 0: a layer attends to all tokens. */
  readonly window: number;
}

/** One plane of a layer in a block. */
interface PlaneLayout extends PlaneSpec {
  /** Offset of the plane in bytes from the first byte of its layer. */
  readonly offset: number;
  readonly bytes: number;
  /** Bytes from one token's values to the next token's. */
  readonly tokenBytes: number;
}

/** A layer's place in a block's payload. A `state` layer has no bytes and no planes there. */
interface LayerLayout {
  readonly offset: number;
  readonly bytes: number;
  readonly planes: readonly PlaneLayout[];
}

/** The frames of one kind of record, and what a slot for such a record takes. */
export interface RecordShape {
  readonly frames: readonly FrameSpec[];
  /** Raw bytes of all frames. */
  readonly payloadBytes: number;
  readonly preambleBytes: number;
  /** Size of the largest record: the preamble, and every frame at its greatest stored size. */
  readonly slotBytes: number;
}

/** Layout of one model's KV: the frames and sizes of its records, and each layer's place in a block. */
export interface KvSpec extends RecordShape {
  readonly groups: readonly KvGroup[];
  readonly numLayers: number;
  /** Tokens of a block. */
  readonly blockSize: number;
  readonly valueType: KvValueType;
  readonly shard: Shard;
  /** Equal for specs whose records are interchangeable; part of the format. */
  readonly digest: Digest;
  /** Place of each layer in a block, by layer index. */
  readonly layers: readonly LayerLayout[];
  /** Records of recurrent state; undefined where no group is of kind `state`. */
  readonly state: RecordShape | undefined;
}

/** KV or recurrent state that one layer keeps, as the engine describes it. */
export interface LayerKv {
  readonly kind: GroupKind;
  /** Values per token of each plane; of a `state` layer values per sequence. */
  readonly planes: readonly number[];
  /** Tokens that a row sees, its own included; 0: all. */
  readonly window: number;
  readonly codec?: CodecName;
}

/** Settings of kvSpec(), apart from the layers. */
export interface KvSpecOptions {
  readonly blockSize: number;
  readonly valueType: KvValueType;
  /** Default: the whole model. */
  readonly shard?: Shard;
  /** Least raw bytes of a frame when a record has several. Default {@link MIN_FRAME_BYTES}. */
  readonly minFrameBytes?: number | undefined;
}

/** Raised when the bytes of a record change their meaning. 5: a record names its tenant. */
export const LAYOUT_VERSION = 5;

/** Least raw bytes of a frame: a smaller one costs more time per message than its earlier arrival gains. */
const MIN_FRAME_BYTES = 64 << 10;
/** Most frames of a record: a fetch request has one bit for each, and the preamble must fit in 512 bytes. */
const MAX_FRAMES = 8;
/** Payloads of records begin at multiples of this. */
const PAYLOAD_ALIGNMENT = 256;
/** Bytes of a preamble in front of its frame headers: the record's identity; see record.ts. */
export const IDENTITY_BYTES = 104;
/** Bytes of one frame header; see frame_header.ts. */
export const FRAME_HEADER_BYTES = 32;

/** Returns the size in bytes of a preamble with `numFrames` frame headers. */
export function preambleBytesFor(numFrames: number): number {
  return aligned(IDENTITY_BYTES + FRAME_HEADER_BYTES * numFrames, PAYLOAD_ALIGNMENT);
}

/**
 * Makes the spec of a model whose layers keep the KV that `layers` describes, in order.
 * @throws Error for a block size or a width that is no positive integer.
 */
export function kvSpec(
  layers: readonly LayerKv[],
  { blockSize, valueType, shard = { index: 0, of: 1 }, minFrameBytes = MIN_FRAME_BYTES }: KvSpecOptions,
): KvSpec {
  requirePositive('block_size', blockSize);
  for (const { planes } of layers) for (const width of planes) requirePositive('the width of a plane', width);
  const valueBytes = valueType === 'f16' ? 2 : 4;
  const layouts = layOut(layers, blockSize, valueBytes);
  const windows = layers.map(({ kind, window }) => (kind === 'window' ? window : 0));
  const sizes = layouts.map(({ bytes }) => bytes);
  const codecs = layers.map(({ codec = 'identity' }) => codec);
  const shape = recordShape(sizes, { windows, codecs, minFrameBytes });
  const stateSizes = layers.map(({ kind, planes }) => (kind === 'state' ? sum(planes) * STATE_VALUE_BYTES : 0));
  const hasState = stateSizes.some((bytes) => bytes > 0);
  const groups = groupsOf(layers);
  const state = hasState ? recordShape(stateSizes, { windows: [], codecs, minFrameBytes }) : undefined;
  return {
    ...shape,
    groups,
    numLayers: layers.length,
    blockSize,
    valueType,
    shard,
    layers: layouts,
    state,
    digest: digestOf({ groups, blockSize, valueType, shard, frames: [shape.frames, state?.frames ?? []].map(spansOf) }),
  };
}

/** Bytes of a value of recurrent state, which is computed and stored in f32. */
const STATE_VALUE_BYTES = 4;

function requirePositive(what: string, value: number): void {
  if (!Number.isInteger(value) || value < 1) throw new Error(`${what} must be a positive integer, not ${value}`);
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function layOut(layers: readonly LayerKv[], blockSize: number, valueBytes: number): LayerLayout[] {
  const layouts: LayerLayout[] = [];
  let offset = 0;
  for (const { kind, planes: widths } of layers) {
    let next = 0;
    const planes = (kind === 'state' ? [] : widths).map((width): PlaneLayout => {
      const tokenBytes = width * valueBytes;
      const bytes = blockSize * tokenBytes;
      next += bytes;
      return { width, offset: next - bytes, bytes, tokenBytes };
    });
    layouts.push({ offset, bytes: next, planes });
    offset += next;
  }
  return layouts;
}

interface FramingOptions {
  /** Attention window of each layer in tokens, by layer index; 0 when the layer sees all tokens, or has no window. */
  readonly windows: readonly number[];
  readonly codecs: readonly CodecName[];
  readonly minFrameBytes: number;
}

function recordShape(layerBytes: readonly number[], { windows, codecs, minFrameBytes }: FramingOptions): RecordShape {
  const payloadBytes = sum(layerBytes);
  const spans = frameSpans(layerBytes, Math.max(1, Math.floor(payloadBytes / minFrameBytes)));
  const preambleBytes = preambleBytesFor(spans.length);
  let [offset, slotOffset] = [0, preambleBytes];
  const frames = spans.map(({ firstLayer, numLayers }): FrameSpec => {
    const end = firstLayer + numLayers;
    const rawBytes = sum(layerBytes.slice(firstLayer, end));
    // All layers of a frame use the codec of the first one that has bytes.
    const coded = codecs.slice(firstLayer, end).find((_, i) => (layerBytes[firstLayer + i] ?? 0) > 0) ?? 'identity';
    const maxStoredBytes = codecNamed(coded).maxStoredBytes(rawBytes);
    const seen = windows.slice(firstLayer, end).filter((_, i) => (layerBytes[firstLayer + i] ?? 0) > 0);
    const frame = { offset, rawBytes, codec: coded, slotOffset, maxStoredBytes, window: widestOf(seen) };
    offset += rawBytes;
    slotOffset += maxStoredBytes;
    return { firstLayer, numLayers, ...frame };
  });
  return { frames, payloadBytes, preambleBytes, slotBytes: slotOffset };
}

/**
 * Divides the layers into frames of consecutive layers with about equal bytes, at most `wanted` and MAX_FRAMES. Each frame takes
 * layers until the next one would exceed its share. Layers of equal bytes give equal numbers of layers, with the rest in the last
 * frame.
 */
function frameSpans(layerBytes: readonly number[], wanted: number): LayerSpan[] {
  const numStored = layerBytes.filter((bytes) => bytes > 0).length;
  const most = Math.min(MAX_FRAMES, numStored, wanted);
  if (most <= 1) return [{ firstLayer: 0, numLayers: layerBytes.length }];
  const mean = sum(layerBytes) / numStored;
  let limit = Math.max(Math.ceil(numStored / most) * mean, ...layerBytes);
  let spans = packed(layerBytes, limit);
  while (spans.length > most) {
    limit += mean / 4;
    spans = packed(layerBytes, limit);
  }
  return spans;
}

function packed(layerBytes: readonly number[], limit: number): LayerSpan[] {
  const spans: LayerSpan[] = [];
  let [firstLayer, bytes] = [0, 0];
  for (const [layer, own] of layerBytes.entries()) {
    if (bytes > 0 && own > 0 && bytes + own > limit) {
      spans.push({ firstLayer, numLayers: layer - firstLayer });
      [firstLayer, bytes] = [layer, 0];
    }
    bytes += own;
  }
  return [...spans, { firstLayer, numLayers: layerBytes.length - firstLayer }];
}

/** The widest of several windows, of which 0 (all tokens) is the widest of all; 0 for none. */
export function widestOf(windows: readonly number[]): number {
  return windows.includes(0) ? 0 : Math.max(0, ...windows);
}

function groupsOf(layers: readonly LayerKv[]): KvGroup[] {
  const groups = new Map<string, KvGroup & { readonly layers: number[] }>();
  for (const [layer, { kind, planes, window, codec = 'identity' }] of layers.entries()) {
    const own = { kind, planes: planes.map((width) => ({ width })), window: kind === 'window' ? window : 0, codec };
    const name = JSON.stringify(own);
    const group = groups.get(name) ?? { layers: [], ...own };
    group.layers.push(layer);
    groups.set(name, group);
  }
  return [...groups.values()];
}

function spansOf(frames: readonly FrameSpec[]): LayerSpan[] {
  return frames.map(({ firstLayer, numLayers }) => ({ firstLayer, numLayers }));
}

/** Returns 128 bits of SHA-256 (hex) over all that determines the bytes of a record. */
function digestOf(what: object): Digest {
  return createHash('sha256').update(JSON.stringify(what)).digest('hex').slice(0, 32) as Digest;
}

/**
 * Returns the size in bytes of a record whose frames have the stored sizes `storedBytes`, in order; with the greatest sizes this is
 * `slotBytes`.
 */
export function recordBytes(shape: RecordShape, storedBytes: readonly number[]): number {
  return shape.preambleBytes + sum(storedBytes);
}

/**
 * Returns n such that blocks [0, n) lie outside the attention window of the row at position `row` and of every later row. Window 0
 * means that a row attends to all tokens.
 */
export function blocksOutsideWindow(window: number, row: number, blockSize: number): number {
  return window === 0 ? 0 : Math.max(0, Math.floor((row - window + 1) / blockSize));
}

/** Returns the first block whose frame `frame` the row at position `row`, or a later row, still needs. */
export function firstNeeded({ blockSize }: Pick<KvSpec, 'blockSize'>, frame: FrameSpec, row: number): number {
  return blocksOutsideWindow(frame.window, row, blockSize);
}

/** Whether the row at position `row`, or a later row, needs frame `frame` of block `block`. */
export function needed(spec: Pick<KvSpec, 'blockSize'>, frame: FrameSpec, block: number, row: number): boolean {
  return block >= firstNeeded(spec, frame, row);
}

/**
 * Order of eviction: lower classes first, and within a class the least recently used. Class 0 lies outside every attention window of
 * the sequence that left it; class 1 is everything else.
 */
export type EvictionClass = 0 | 1;

/** Returns the class of frame `frame` of block `block` once the sequence has computed rows up to `row`. */
export function evictionClass(
  spec: Pick<KvSpec, 'blockSize'>,
  frame: FrameSpec,
  block: number,
  row: number,
): EvictionClass {
  return needed(spec, frame, block, row) ? 1 : 0;
}

/**
 * Layout of a block's KV: the part of the engine's KvSpec (shared/kv/kv_spec.ts) that a device needs, filled in at load as a plain
 * value. No device computes the size of a block again.
 *
 *   block  [layer][plane][block_size tokens][width values], layers in order; a layer may have no plane (it keeps no KV), one (K = V),
 *          or two
 */
import type { KvDtype } from './program.ts';

/** Consecutive layers: a part of a block. */
export interface LayerRange {
  readonly firstLayer: number;
  readonly numLayers: number;
}

/** One plane of a layer in a block: K, V, or one for both. */
export interface KvPlane {
  /** Byte offset of the plane within its layer. */
  readonly offset: number;
  /** Bytes from one token to the next. */
  readonly tokenBytes: number;
}

interface KvLayerLayout {
  /** Byte offset of the layer within a block; `bytes` is the layer's size. */
  readonly offset: number;
  readonly bytes: number;
  readonly planes: readonly KvPlane[];
}

/** Layers whose bytes a step exports together. The frames of a layout cover a block in order. */
export interface KvFrame extends LayerRange {
  readonly offset: number;
  readonly rawBytes: number;
}

/** A record whose layers lie one after another: a block, or the state of a sequence. */
export interface LayeredRecord {
  /** Bytes of the record in all layers. */
  readonly blockBytes: number;
  readonly layers: readonly { readonly offset: number; readonly bytes: number }[];
}

/** Position and size of every layer, plane and frame of a block. */
export interface KvLayout extends LayeredRecord {
  /** Tokens of a block. */
  readonly blockSize: number;
  readonly dtype: KvDtype;
  /** Bytes of a block in all layers. */
  readonly blockBytes: number;
  readonly layers: readonly KvLayerLayout[];
  readonly frames: readonly KvFrame[];
}

/** Bytes [at, at + bytes) of a record. */
export interface ByteRange {
  readonly at: number;
  readonly bytes: number;
}

/** The bytes of consecutive layers in a record. */
export function bytesOfLayers({ layers, blockBytes }: LayeredRecord, { firstLayer, numLayers }: LayerRange): ByteRange {
  const at = layers[firstLayer]?.offset ?? blockBytes;
  return { at, bytes: (layers[firstLayer + numLayers]?.offset ?? blockBytes) - at };
}

/** Returns the layout for a device or memory shard that stores only the layers of `range`; without frames. */
export function layoutOfLayers(layout: KvLayout, range: LayerRange): KvLayout {
  const { at, bytes } = bytesOfLayers(layout, range);
  const layers = layout.layers
    .slice(range.firstLayer, range.firstLayer + range.numLayers)
    .map((layer) => ({ ...layer, offset: layer.offset - at }));
  return { ...layout, layers, blockBytes: bytes, frames: [] };
}

/** Bytes of a value. */
export function kvValueBytes(dtype: KvDtype): number {
  return dtype === 'f16' ? 2 : 4;
}

/** Returns the layout for a program of one layer, such as a probe. `widths` are the values of a token in each plane. */
export function layoutOfOneLayer(widths: readonly number[], blockSize: number, dtype: KvDtype): KvLayout {
  let bytes = 0;
  const planes = widths.map((width): KvPlane => {
    const plane = { offset: bytes, tokenBytes: width * kvValueBytes(dtype) };
    bytes += blockSize * plane.tokenBytes;
    return plane;
  });
  return { blockSize, dtype, blockBytes: bytes, layers: [{ offset: 0, bytes, planes }], frames: [] };
}

/**
 * Returns the last layer of the range that stores KV, or the last layer when none does: once it is computed, all bytes of the range
 * are complete.
 */
export function lastStoringLayer({ layers }: KvLayout, { firstLayer, numLayers }: LayerRange): number {
  for (let layer = firstLayer + numLayers - 1; layer >= firstLayer; layer--)
    if ((layers[layer]?.bytes ?? 0) > 0) return layer;
  return firstLayer + numLayers - 1;
}

/** Layout for a program that stores no KV. */
export const noKv: KvLayout = { blockSize: 32, dtype: 'f16', blockBytes: 0, layers: [], frames: [] };

/** Bytes that attention reads of a token in that layer. */
export function kvTokenBytes({ layers }: KvLayout, layer: number): number {
  return (layers[layer]?.planes ?? []).reduce((sum, { tokenBytes }) => sum + tokenBytes, 0);
}

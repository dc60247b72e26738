/** Planes of K and V that an operation reads and writes. */
import { DeviceError } from './device.ts';
import { kvValueBytes, type KvLayout, type KvPlane } from './kv_layout.ts';

/** An operation over the KV of a layer: K and V have the same heads. */
export interface KvHeads {
  readonly layer: number;
  readonly kvHeads: number;
  readonly headDim: number;
}

/**
 * A layer's K and V planes; where it has one, that is both.
 * @throws DeviceError for a layer that keeps no K and V, and for planes that are narrower than the heads: kernels would write into the next token.
 */
export function planesOf(
  { layers, dtype }: KvLayout,
  { layer, kvHeads, headDim }: KvHeads,
): { readonly k: KvPlane; readonly v: KvPlane } {
  const planes = layers[layer]?.planes ?? [];
  const [k, v = k] = planes;
  if (!k || !v || planes.length > 2)
    throw new DeviceError(`layer ${layer} keeps ${planes.length} planes: attention needs K and V, or one for both`);
  const width = kvHeads * headDim;
  const narrow = planes.find(({ tokenBytes }) => tokenBytes < width * kvValueBytes(dtype));
  if (narrow)
    throw new DeviceError(
      `layer ${layer} keeps ${narrow.tokenBytes / kvValueBytes(dtype)} values of a token in a plane, and its ${kvHeads} KV heads of ${headDim} are ${width}: ` +
        'the kernels have no K and V of different heads',
    );
  return { k, v };
}

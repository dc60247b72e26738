/** Planes of K and V that an operation reads and writes. */
import { DeviceError } from './device.ts';
import { kvValueBytes, type KvLayout, type KvPlane } from './kv_layout.ts';

/** KV heads of an operation on one layer; K and V have the same heads. */
export interface KvHeads {
  readonly layer: number;
  readonly kvHeads: number;
  readonly headDim: number;
}

/**
 * Returns the K and V planes of a layer; both are the same plane in a layer that has only one.
 * @throws DeviceError for a layer without K and V, and for planes narrower than the heads: kernels would write into the next token.
 */
export function planesOf(
  { layers, dtype }: KvLayout,
  { layer, kvHeads, headDim }: KvHeads,
): { readonly k: KvPlane; readonly v: KvPlane } {
  const planes = layers[layer]?.planes ?? [];
  const [k, v = k] = planes;
  if (!k || !v || planes.length > 2)
    throw new DeviceError(
      `layer ${layer} stores ${planes.length} KV planes: attention needs K and V, or one plane for both`,
    );
  const width = kvHeads * headDim;
  const narrow = planes.find(({ tokenBytes }) => tokenBytes < width * kvValueBytes(dtype));
  if (narrow)
    throw new DeviceError(
      `layer ${layer} stores ${narrow.tokenBytes / kvValueBytes(dtype)} values of a token in a KV plane, but its ${kvHeads} KV heads of ${headDim} need ${width}: ` +
        'the kernels do not support K and V heads of different sizes',
    );
  return { k, v };
}

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

/**
 * Returns the plane of a layer with latent attention, whose tokens have rank + rotary values.
 * @throws DeviceError for a layer with another number of planes, or a narrower one: kernels would write into the next token.
 */
export function latentPlane(
  { layers, dtype }: KvLayout,
  { layer, rank, rotary }: { readonly layer: number; readonly rank: number; readonly rotary: number },
): KvPlane {
  const [plane, ...more] = layers[layer]?.planes ?? [];
  if (!plane || more.length > 0)
    throw new DeviceError(`latent attention needs one KV plane, layer ${layer} stores ${plane ? 1 + more.length : 0}`);
  const values = plane.tokenBytes / kvValueBytes(dtype);
  if (values < rank + rotary)
    throw new DeviceError(`layer ${layer} stores ${values} values of a token, latent attention needs ${rank + rotary}`);
  return plane;
}

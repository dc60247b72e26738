/**
 * Layout of recurrent state: what the recurrent layers keep of a sequence, whatever its length. The part of the engine's KvSpec
 * (shared/kv/kv_spec.ts) that a device needs, filled in at load as a plain value.
 *
 *   slot  [layer][plane][values] f32, layers in order; a layer without recurrence has no planes
 *
 * A device has `numStateSlots` slots. A step reads the slot from which a segment begins, and writes the slots in which its state is
 * saved (`Segment.state`).
 */
import { bytesOfLayers, type KvFrame, type LayeredRecord, type LayerRange } from './kv_layout.ts';

/** One plane of a layer in a slot, such as the window of a convolution, or a recurrent matrix. */
interface StatePlane {
  /** Byte offset of the plane within its layer. */
  readonly offset: number;
  readonly bytes: number;
}

interface StateLayerLayout {
  /** Byte offset of the layer within a slot; `bytes` is the layer's size. */
  readonly offset: number;
  readonly bytes: number;
  readonly planes: readonly StatePlane[];
}

/** Position and size of every layer, plane and frame of a slot. */
export interface StateLayout {
  readonly slotBytes: number;
  readonly layers: readonly StateLayerLayout[];
  /** Layers whose bytes move together; they cover a slot in order. */
  readonly frames: readonly KvFrame[];
}

/** Bytes of a value of a state: f32. */
export const STATE_VALUE_BYTES = 4;

/** Returns a slot as a record of layers. */
export function slotRecord({ slotBytes, layers }: StateLayout): LayeredRecord {
  return { blockBytes: slotBytes, layers };
}

/** Returns the layout for a device or memory shard that stores only the layers of `range`; without frames. */
export function stateOfLayers(layout: StateLayout, range: LayerRange): StateLayout {
  const { at, bytes } = bytesOfLayers(slotRecord(layout), range);
  const layers = layout.layers
    .slice(range.firstLayer, range.firstLayer + range.numLayers)
    .map((layer) => ({ ...layer, offset: layer.offset - at }));
  return { slotBytes: bytes, layers, frames: [] };
}

/** Returns the layout of layers with these planes, by layer, each plane with its number of values; without frames. */
export function layoutOfStates(planesOfLayers: readonly (readonly number[])[]): StateLayout {
  let slotBytes = 0;
  const layers = planesOfLayers.map((widths): StateLayerLayout => {
    let bytes = 0;
    const planes = widths.map((width): StatePlane => {
      const plane = { offset: bytes, bytes: width * STATE_VALUE_BYTES };
      bytes += plane.bytes;
      return plane;
    });
    slotBytes += bytes;
    return { offset: slotBytes - bytes, bytes, planes };
  });
  return { slotBytes, layers, frames: [] };
}

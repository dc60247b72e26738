/** Specs and layouts of models that tests make up. */
import type { KvLayout } from '../../kernels/kv_layout.ts';
import type { KvDtype, KvLayer } from '../../kernels/program.ts';
import { kvLayoutOf, kvSpecOf } from '../../shared/engine/program_kv.ts';
import { kvSpec, type KvSpec } from '../../shared/kv/kv_spec.ts';

/** A spec whose layers all have one plane and as many bytes. `payloadBytes`: of a block, a multiple of 2 · numLayers · blockSize. */
export function evenSpec(
  { numLayers, blockSize, payloadBytes }: { numLayers: number; blockSize: number; payloadBytes: number },
  { minFrameBytes, windows = [] }: { minFrameBytes?: number; windows?: readonly number[] } = {},
): KvSpec {
  const width = payloadBytes / (2 * numLayers * blockSize);
  const layers = Array.from({ length: numLayers }, (_, layer) => {
    const window = windows[layer] ?? 0;
    return { kind: window > 0 ? ('window' as const) : ('paged' as const), planes: [width], window };
  });
  return kvSpec(layers, { blockSize, valueType: 'f16', minFrameBytes });
}

/** Returns the KV layout for loading a program with this KV into a device, as one frame. */
export function kvLayoutFor(kv: readonly KvLayer[], valueType: KvDtype, blockSize = 32): KvLayout {
  const layout = kvLayoutOf(kvSpecOf({ kv }, [], { blockSize, valueType }));
  return { ...layout, frames: [] };
}

/** Derives the KvSpec of a program's layers, and from the spec the layouts of KV and of recurrent state for a device. */
import type { KvLayout } from '../../kernels/kv_layout.ts';
import type { Program } from '../../kernels/program.ts';
import { layoutOfStates, type StateLayout } from '../../kernels/state_layout.ts';
import { kvSpec, type KvSpec, type KvSpecOptions, type LayerKv } from '../kv/kv_spec.ts';

/** `windows`: by layer, tokens that a row sees, its own included; 0: all. */
export function kvSpecOf(
  { kv, state = [] }: Pick<Program, 'kv' | 'state'>,
  windows: readonly number[],
  options: KvSpecOptions,
): KvSpec {
  const layers = kv.map(({ planes }, layer): LayerKv => {
    const recurrent = state[layer]?.planes ?? [];
    if (recurrent.length > 0) return { kind: 'state', planes: recurrent, window: 0 };
    const window = windows[layer] ?? 0;
    return { kind: window > 0 ? 'window' : 'paged', planes, window };
  });
  return kvSpec(layers, options);
}

/** Returns the KV layout for a device, derived from the spec. */
export function kvLayoutOf({ blockSize, valueType, payloadBytes, layers, frames }: KvSpec): KvLayout {
  return { blockSize, dtype: valueType, blockBytes: payloadBytes, layers, frames };
}

/** Returns the layout of recurrent state for a device, derived from the spec; undefined for a model without recurrent layers. */
export function stateLayoutOf({ numLayers, groups, state }: KvSpec): StateLayout | undefined {
  if (!state) return undefined;
  const planes = new Map<number, readonly number[]>();
  for (const group of groups)
    if (group.kind === 'state')
      for (const layer of group.layers)
        planes.set(
          layer,
          group.planes.map(({ width }) => width),
        );
  const layout = layoutOfStates(Array.from({ length: numLayers }, (_, layer) => planes.get(layer) ?? []));
  return { ...layout, frames: state.frames };
}

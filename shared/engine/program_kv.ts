/** Derives the KvSpec of a program's layers, and from the spec the KV layout of a device. */
import type { KvLayout } from '../../kernels/kv_layout.ts';
import type { Program } from '../../kernels/program.ts';
import { kvSpec, type KvSpec, type KvSpecOptions, type LayerKv } from '../kv/kv_spec.ts';

/** `windows`: by layer, tokens that a row sees, its own included; 0: all. */
export function kvSpecOf({ kv }: Pick<Program, 'kv'>, windows: readonly number[], options: KvSpecOptions): KvSpec {
  const layers = kv.map(({ planes }, layer): LayerKv => {
    const window = windows[layer] ?? 0;
    return { kind: window > 0 ? 'window' : 'paged', planes, window };
  });
  return kvSpec(layers, options);
}

/** Returns the KV layout for a device, derived from the spec. */
export function kvLayoutOf({ blockSize, valueType, payloadBytes, layers, frames }: KvSpec): KvLayout {
  return { blockSize, dtype: valueType, blockBytes: payloadBytes, layers, frames };
}

/** The region of a memory through which weights pass on their way into panels. */
import type { WeightSpec } from '../program.ts';
import { LANES } from './panels.ts';

/** Bytes of working memory at the start of a staging region, for packing floats: ROOM of quantised_values.as.ts. */
export const ROOM_BYTES = 1_408;

/** Returns the bytes of a staging region: room for eight rows of f32 and ROOM_BYTES, at least 1 MiB. */
export function stagingBytesOf(specs: readonly WeightSpec[]): number {
  const widest = specs.reduce((most, { inner }) => Math.max(most, inner), 0);
  return Math.ceil(Math.max(1 << 20, LANES * widest * 4 + ROOM_BYTES) / 64) * 64;
}

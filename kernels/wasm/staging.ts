/** The region of a memory through which weights pass on their way into panels. */
import type { WeightSpec } from '../program.ts';
import { LANES } from './panels.ts';

/** For a group of eight rows, see quantised_values.as.ts. */
export const ROOM_BYTES = 1_408;

/** Bytes of the region through which weights pass: eight rows, or a MiB. */
export function stagingBytesOf(specs: readonly WeightSpec[]): number {
  const widest = specs.reduce((most, { inner }) => Math.max(most, inner), 0);
  return Math.ceil(Math.max(1 << 20, LANES * widest * 4 + ROOM_BYTES) / 64) * 64;
}

/** Weights of a model that was never trained, made on the fly: the same values for every engine that is measured. */
import assert from 'node:assert/strict';
import type { WeightSource } from '../../kernels/device.ts';
import type { Program } from '../../kernels/program.ts';
import { floatRows } from '../../kernels/weights/stored_rows.ts';
import { Random } from '../../shared/base/random.ts';

const POOL_SIZE = 1 << 20;
const SLICE_VALUES = 1 << 18;

/** Spread evenly, of a size that keeps each output's dot product moderate; vectors are ones. Tensors are those of `program`. */
export function randomWeights({ weights }: Program, seed: number): WeightSource {
  const random = new Random(seed);
  const pool = Float32Array.from({ length: POOL_SIZE }, () => random.u32() / 2 ** 31 - 1);
  const shapes = new Map<string, { inner: number; start: number }>();
  for (const { inner, parts } of Object.values(weights))
    for (const { tensor } of parts)
      if (!shapes.has(tensor)) shapes.set(tensor, { inner, start: random.below(POOL_SIZE) });
  return {
    async *slices({ tensor, outputs, firstRow = 0 }) {
      const shape = shapes.get(tensor);
      assert(shape, `the program has no tensor ${tensor}`);
      const { inner, start } = shape;
      const amplitude = Math.sqrt(3 / inner);
      const rowsAtOnce = Math.max(1, Math.floor(SLICE_VALUES / inner));
      const values = new Float32Array(rowsAtOnce * inner);
      for (let rowStart = 0; rowStart < outputs; rowStart += rowsAtOnce) {
        const slice = values.subarray(0, Math.min(rowsAtOnce, outputs - rowStart) * inner);
        const offset = start + (firstRow + rowStart) * inner;
        for (let i = 0; i < slice.length; i++) {
          slice[i] = inner === 1 ? 1 : pool[(offset + i) & (POOL_SIZE - 1)]! * amplitude;
        }
        yield await Promise.resolve(floatRows(slice, rowStart));
      }
    },
  };
}

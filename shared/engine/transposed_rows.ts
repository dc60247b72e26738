/**
 * Rows of weights that a program wants transposed: the key's part of `kv_b_proj` in latent attention, which files store by the outputs
 * of a key, and which queries are multiplied with from the other side.
 */
import type { WeightSource } from '../../kernels/device.ts';
import type { TensorRows } from '../../kernels/program.ts';
import { floatRows, numStored, RowDecoder, type StoredRows } from '../../kernels/weights/stored_rows.ts';
import type { ModelWeights } from '../model/weights.ts';

/** Rows that a part is read from, in the tensor's own order. */
export function rowsReadFor(part: TensorRows): TensorRows {
  const { tensor, outputs, firstRow = 0, transposedRows } = part;
  return { tensor, firstRow, outputs: transposedRows ?? outputs };
}

/**
 * Returns the weights as a device reads them: parts with `transposedRows` as f32, transposed in memory (one head's matrix at a time,
 * a few hundred KiB), all others as they are stored.
 */
export function weightSource(weights: Pick<ModelWeights, 'slices' | 'matrix'>): WeightSource {
  return {
    slices: (part) => (part.transposedRows === undefined ? weights.slices(part) : transposed(weights, part)),
    matrix: async (part) => (part.transposedRows === undefined ? weights.matrix?.(part) : undefined),
  };
}

async function* transposed(weights: Pick<ModelWeights, 'slices'>, part: TensorRows): AsyncGenerator<StoredRows> {
  const { outputs: columns, transposedRows: rows = 0 } = part;
  const decoder = new RowDecoder();
  const values = new Float32Array(columns * rows);
  for await (const slice of weights.slices(rowsReadFor(part))) {
    const from = decoder.floats(slice, columns);
    const count = numStored(slice, columns);
    for (let row = 0; row < count; row++)
      for (let column = 0; column < columns; column++)
        values[column * rows + slice.rowStart + row] = from[row * columns + column]!;
  }
  yield floatRows(values);
}

import type { Program } from '../../kernels/program.ts';
import { rowsReadFor } from './transposed_rows.ts';
import { ModelError } from '../model/model_folder.ts';

/** @throws ModelError when the files lack a tensor of the program or have it in another shape. */
export function checkTensors(
  program: Program,
  shapes: ReadonlyMap<string, readonly number[]>,
  path: string,
  whyMissing?: (tensor: string) => string | undefined,
): void {
  const wanted = new Map<string, { rows: number; readonly inner: number }>();
  for (const { inner, parts } of Object.values(program.weights)) {
    for (const part of parts) {
      const { tensor, outputs, firstRow = 0 } = rowsReadFor(part);
      const known = wanted.get(tensor);
      const columns = part.transposedRows === undefined ? inner : part.outputs;
      wanted.set(tensor, { rows: Math.max(known?.rows ?? 0, firstRow + outputs), inner: columns });
    }
  }
  for (const [tensor, { rows, inner }] of wanted) {
    const shape = shapes.get(tensor);
    if (!shape) {
      const why =
        whyMissing?.(tensor) ??
        `it has no tensor ${tensor}, which the model of config.json needs, in f32, f16, bf16 or the quantisation that config.json names`;
      throw new ModelError(`${path}: ${why}`);
    }
    const want = inner === 1 ? [rows] : [rows, inner];
    if (shape.join() !== want.join()) {
      throw new ModelError(`${path}: ${tensor} is [${shape.join(', ')}], config.json makes it [${want.join(', ')}]`);
    }
  }
}

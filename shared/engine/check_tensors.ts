import type { Program } from '../../kernels/program.ts';
import { ModelError } from '../model/model_folder.ts';
import type { TensorInfo } from '../model/safetensors.ts';

/** @throws ModelError when the files lack a tensor of the program or have it in another shape. */
export function checkTensors(program: Program, tensors: ReadonlyMap<string, TensorInfo>, path: string): void {
  const wanted = new Map<string, { rows: number; readonly inner: number }>();
  for (const { inner, parts } of Object.values(program.weights)) {
    for (const { tensor, outputs, firstRow = 0 } of parts) {
      const known = wanted.get(tensor);
      wanted.set(tensor, { rows: Math.max(known?.rows ?? 0, firstRow + outputs), inner });
    }
  }
  for (const [tensor, { rows, inner }] of wanted) {
    const info = tensors.get(tensor);
    if (!info) {
      throw new ModelError(`${path} has no tensor ${tensor} in f32, f16 or bf16, which config.json calls for`);
    }
    const want = inner === 1 ? [rows] : [rows, inner];
    if (info.shape.join() !== want.join()) {
      throw new ModelError(
        `${path}: ${tensor} is [${info.shape.join(', ')}], config.json makes it [${want.join(', ')}]`,
      );
    }
  }
}

import type { Program } from '../../kernels/program.ts';
import { ModelError } from '../model/model_folder.ts';
import type { TensorInfo } from '../model/safetensors.ts';

/** @throws ModelError when the file lacks a tensor of the program or has it in another shape. */
export function checkTensors(program: Program, tensors: ReadonlyMap<string, TensorInfo>, path: string): void {
  for (const { inner, parts } of Object.values(program.weights)) {
    for (const { tensor, outputs } of parts) {
      const info = tensors.get(tensor);
      if (!info) {
        throw new ModelError(`${path} has no tensor ${tensor} in f32, f16 or bf16, which config.json calls for`);
      }
      const want = inner === 1 ? [outputs] : [outputs, inner];
      if (info.shape.join() !== want.join()) {
        throw new ModelError(
          `${path}: ${tensor} is [${info.shape.join(', ')}], config.json makes it [${want.join(', ')}]`,
        );
      }
    }
  }
}

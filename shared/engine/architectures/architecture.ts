import type { Program } from '../../../kernels/program.ts';
import type { ModelConfig } from '../../model/model_folder.ts';
import type { ModelShape } from '../../model/model_shape.ts';

/** A family of models: how its configuration reads, and what it computes. One file here and its line in registry.ts. */
export interface Architecture {
  /** Values of `model_type` in config.json that select this architecture. */
  readonly modelTypes: readonly string[];
  /** @throws ModelError for what this architecture may have and this version does not. */
  shape(config: ModelConfig): ModelShape;
  /** `numPositions`: the longest context that will be served. */
  program(shape: ModelShape, numPositions: number): Program;
}

import type { Program } from '../../../kernels/program.ts';
import type { ModelConfig } from '../../model/model_folder.ts';
import type { ModelShape } from '../../model/model_shape.ts';

/** A family of models: how its configuration reads, and what it computes. One file here and its line in registry.ts. */
export interface Architecture {
  /** Values of `model_type` in config.json that select this architecture. */
  readonly modelTypes: readonly string[];
  /**
   * Returns the shape that a configuration describes. @throws ModelError for a feature of this architecture that this version does not
   * support.
   */
  shape(config: ModelConfig): ModelShape;
  /** `numPositions`: the longest context that will be served. */
  program(shape: ModelShape, numPositions: number): Program;
}

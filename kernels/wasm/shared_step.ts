/** State that the threads of a step share. */
import type { RowKind } from '../program.ts';
import type { BoundOperation } from './bound_operation.ts';
import type { ProductsCode } from './products.ts';
import type { StepPlan } from './step_order.ts';

/** Indices of the cells of `control`, which are written before a step. */
export const Control = {
  stepCount: 0,
  stop: 1,
  numRows: 2,
  numSamples: 3,
  numTiles: 4,
  attention: 5,
  /** The step walks operations [firstOp, endOp). */
  firstOp: 6,
  endOp: 7,
  /** Index of the memory shard that the step walks. */
  shard: 8,
  /** Rows of the step when hidden states are wanted, else 0. */
  numHidden: 9,
  /** Segments of the step; 0 for a program without recurrent layers. */
  numStateSegments: 10,
  /** Index of the order in which the step walks the operations, one of {@link Order}. */
  order: 11,
  count: 12,
} as const;

/** Orders of the operations of a step: each by itself, or as the plan has it for any number of rows, or for few (step_plan.ts). */
export const Order = { single: 0, many: 1, few: 2 } as const;

/** Cell of `control` that counts the rows of a buffer, by its kind. */
export const countCells: Readonly<Record<RowKind, number>> = {
  rows: Control.numRows,
  samples: Control.numSamples,
  hidden: Control.numHidden,
};

/**
 * Returns the cells of a memory shard that are 0 when a step begins: how many tasks of each operation are taken, and `numCounts`
 * cells of `StepContext.isLast`.
 */
export function newTaskCells(numOps: number, numCounts = 0): Int32Array {
  return new Int32Array(new SharedArrayBuffer(4 * (numOps + numCounts)));
}

/** State of one memory shard that the threads share. */
export interface StepShard {
  readonly memory: WebAssembly.Memory;
  readonly operations: readonly BoundOperation[];
  /** The operations of a step of few rows, by thread. Absent, like `plan`, where every operation runs by itself. */
  readonly ownOperations?: readonly (readonly BoundOperation[])[];
  readonly plan?: StepPlan;
  /** Cells that are 0 when a step begins, see {@link newTaskCells}. */
  readonly tasks: Int32Array;
  /** Byte offset of the scratch regions: one per thread, `scratchBytes` apart. */
  readonly scratch: number;
  readonly scratchBytes: number;
}

/** Data that all threads of a step share. `barrier` has the cells of one `Barrier` (barrier.ts). */
export interface SharedStep {
  readonly module: WebAssembly.Module;
  /** Implementation of products. */
  readonly products: ProductsCode;
  readonly control: Int32Array;
  readonly barrier: Int32Array;
  readonly shards: readonly StepShard[];
  readonly numThreads: number;
  readonly numSpins: number;
}

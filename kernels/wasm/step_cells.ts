/** What the threads of a step share: cells that are written once at load, and those that are written before a step. */

export const OP_CELLS = 20;
export const MAX_OPS = 4_096;

export const OpCode = {
  embed: 0,
  rmsNorm: 1,
  linear: 2,
  ropeStore: 3,
  attention: 4,
  siluMul: 5,
  gather: 6,
  candidates: 7,
  /** For measurements of peaks: a loop on every thread, or nothing but the barrier. */
  multiplyAdd: 8,
  multiplyAddInt: 9,
  multiplyAddInt4: 10,
  read: 11,
  nothing: 12,
} as const;

/** Cells of `control`. */
export const Control = {
  stepCount: 0,
  stop: 1,
  numRows: 2,
  numSamples: 3,
  numTiles: 4,
  attention: 5,
  count: 6,
} as const;

/** Cells of one attention tile: consecutive rows of one sequence. */
export const TILE_CELLS = 4;
/** Rows that share one unpacking of a block; 16 rows amortise it and keep the running sums in cache. */
export const TILE_ROWS = 16;

/** What the threads share. `barrier` is the cells of one {@link Barrier}. */
export interface SharedStep {
  readonly module: WebAssembly.Module;
  readonly memory: WebAssembly.Memory;
  readonly control: Int32Array;
  readonly barrier: Int32Array;
  readonly ops: Int32Array;
  readonly numOps: number;
  /** Per operation, how many of its tasks are taken in this step. */
  readonly tasks: Int32Array;
  readonly numThreads: number;
  readonly numSpins: number;
  /** One scratch region per thread, this far apart. */
  readonly scratch: number;
  readonly scratchBytes: number;
}

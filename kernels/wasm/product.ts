/** Shared parts of products: how one task runs, and the scratch a thread needs. */
import type { LoadOptions } from '../device.ts';
import type { Following } from './bound_operation.ts';
import { Q_GROUP_BYTES, ROW_BLOCK, SLICE, SLICE_GROUPS, INT8_GROUP } from './kernel_constants.ts';
import { isIntegerCode, LANES } from './panels.ts';
import type { StepContext } from './step_context.ts';
import { struct } from './struct.ts';
import { PANEL_UNIT, type ProductTasks } from './task_split.ts';

/** Struct of a product; `linear` and `expert_linear` share it. */
export const productParams = struct('LinearParams', {
  x: 'u32',
  xStride: 'u32',
  weight: 'u32',
  format: 'u32',
  bias: 'u32',
  out: 'u32',
  outStride: 'u32',
  inner: 'u32',
  isAccumulating: 'u32',
  scale: 'f32',
});

/** Offset in a thread's scratch of the slice of unpacked weights, after the sums [ROW_BLOCK][8] f32 and a write-only cache line. */
const AFTER_SUMS = ROW_BLOCK * LANES * 4 + 64;
/**
 * Offset in scratch of the quantised rows, after a slice of four-bit weights unpacked to bytes. Each of its groups has room for the
 * eight zeros of uint4.
 */
export const QUANTISED_AT = AFTER_SUMS + SLICE_GROUPS * (INT8_GROUP + 16);

/** Returns the bytes of scratch that a thread needs for a product. `code`: the code of the weight's format. */
export function productScratchBytes(
  code: number,
  inner: number,
  { maxRows, maxSamples }: Pick<LoadOptions, 'maxRows' | 'maxSamples'>,
): number {
  const rows = Math.min(ROW_BLOCK, Math.max(maxRows, maxSamples));
  return isIntegerCode(code)
    ? QUANTISED_AT + rows * Math.ceil(inner / 32) * Q_GROUP_BYTES
    : AFTER_SUMS + SLICE * LANES * 4;
}

const nothing: Following = { unit: PANEL_UNIT, apart: 0, run: () => undefined };

/** Runs a thread's tasks of one product. Consecutive tasks with the same block of rows quantise the block once. */
export class ProductRun {
  readonly #step: StepContext;
  readonly #isQuantised: boolean;
  readonly #following: Following;
  #quantisedRow = -1;

  constructor(step: StepContext, code: number, following = nothing) {
    this.#step = step;
    this.#following = following;
    this.#isQuantised = isIntegerCode(code);
  }

  /** Returns the tasks of these rows. */
  tasks(numRows: number, inner: number, numPanels: number): ProductTasks {
    const { unit, apart } = this.#following;
    return this.#step.productTasks(numRows, inner, apart || numPanels, unit);
  }

  /** Runs task `task` of `tasks`. Row numbers of the tasks count from `first`; `params` is the byte offset of the product's struct. */
  run(params: number, first: number, task: number, tasks: ProductTasks, numPanels: number): void {
    const { apart, run } = this.#following;
    const { numRows, rowsPerTask, panelsPerTask, numPanelTasks } = tasks;
    const block = Math.floor(task / numPanelTasks) * rowsPerTask;
    const [row, rows] = [first + block, Math.min(rowsPerTask, numRows - block)];
    const panel = (task % numPanelTasks) * panelsPerTask;
    const panelEnd = Math.min(apart || numPanels, panel + panelsPerTask);
    this.#multiply(params, row, rows, panel, panelEnd);
    if (apart > 0) this.#multiply(params, row, rows, panel + apart, panelEnd + apart);
    run(row, row + rows, panel * LANES, panelEnd * LANES);
  }

  #multiply(params: number, row: number, rows: number, panel: number, panelEnd: number): void {
    const { products, scratch } = this.#step;
    if (!this.#isQuantised) {
      products.multiplyFloats(params, row, rows, panel, panelEnd, scratch);
      return;
    }
    const quantised = scratch + QUANTISED_AT;
    if (row !== this.#quantisedRow) products.quantise(params, row, rows, quantised, scratch);
    this.#quantisedRow = row;
    products.multiply(params, quantised, row, rows, panel, panelEnd, scratch);
  }
}

/** The products of a step: tasks are blocks of rows times ranges of panels. */
import { INT8_GROUP, ROW_BLOCK, SLICE_GROUPS } from './kernel_constants.ts';
import type { StepContext } from './step_context.ts';

/** Codes of weight formats: f32, f16, int8, int4. */
const FIRST_INT_FORMAT = 2;
/** Where quantised rows lie in a thread's scratch: after sums [ROW_BLOCK][8], a cache line and a slice of int4 as int8. */
export const QUANTISED_AT = ROW_BLOCK * 32 + 64 + SLICE_GROUPS * INT8_GROUP;

export function product(context: StepContext, at: number): void {
  const { kernels, scratch, shared } = context;
  const cells = context.cells(at);
  const [x, xStride, w, format, bias, out] = [cells[1]!, cells[2]!, cells[3]!, cells[4]!, cells[5]!, cells[6]!];
  const [outStride, inner, isAccumulating, numPanels] = [cells[7]!, cells[8]!, cells[9]!, cells[11]!];
  const numRows = shared.control[cells[10]!]!;
  const tasks = context.productTasks(at, numRows, inner, numPanels);
  const { rowsPerTask, panelsPerTask, numPanelTasks, numTasks } = tasks;
  const isQuantised = format >= FIRST_INT_FORMAT;
  // f16 and int4 are the odd ones of their kind.
  const isOdd = format & 1;
  const quantised = scratch + QUANTISED_AT;
  let quantisedRow = -1;
  for (let task = context.nextTask(at); task < numTasks; task = context.nextTask(at)) {
    const row = Math.floor(task / numPanelTasks) * rowsPerTask;
    const rows = Math.min(rowsPerTask, numRows - row);
    const panel = (task % numPanelTasks) * panelsPerTask;
    const xRow = x + row * xStride;
    const rest = [bias, out + row * outStride, outStride, rows, inner, isAccumulating, panel];
    const panelEnd = Math.min(numPanels, panel + panelsPerTask);
    if (!isQuantised) {
      kernels.linear_float(xRow, xStride, w, isOdd, ...rest, panelEnd, scratch);
      continue;
    }
    if (row !== quantisedRow) kernels.quantise(xRow, xStride, rows, inner, isOdd, quantised, scratch);
    quantisedRow = row;
    kernels.linear_int(quantised, w, isOdd, ...rest, panelEnd, scratch);
  }
}

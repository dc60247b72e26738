/** Products: tasks are blocks of rows times ranges of panels. */
import assert from 'node:assert/strict';
import { Q_GROUP_BYTES, ROW_BLOCK, SLICE, SLICE_GROUPS, INT8_GROUP } from '../kernel_constants.ts';
import { isInteger, isIntegerCode, LANES, paddedWidth, weightBytes } from '../panels.ts';
import { struct } from '../struct.ts';
import { numRows, operation } from './operation.ts';

/** A thread's scratch: sums [ROW_BLOCK][8], a cache line, then a slice of weights that were unpacked. */
const AFTER_SUMS = ROW_BLOCK * LANES * 4 + 64;
/** Where quantised rows lie: after a slice of int4 as int8. */
const QUANTISED_AT = AFTER_SUMS + SLICE_GROUPS * INT8_GROUP;

export const linear = operation('linear', {
  params: struct('LinearParams', {
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
  }),
  place: (op, { buffer, weight }) => {
    const [x, out, w] = [buffer(op.x), buffer(op.out), weight(op.weight)];
    const { inner, outputs } = w.spec;
    assert(inner <= x.width && outputs <= out.width, `linear ${op.weight}: shapes differ`);
    return {
      x: x.at,
      xStride: x.stride,
      weight: w.at,
      format: w.format,
      bias: op.bias === undefined ? 0 : weight(op.bias).at,
      out: out.at,
      outStride: out.stride,
      inner,
      isAccumulating: op.accumulate ? 1 : 0,
      scale: op.scale ?? 1,
      numPanels: paddedWidth(outputs) / LANES,
      count: x.count,
    };
  },
  run: (step, { index, params, fields }) => {
    const { kernels, scratch } = step;
    const { inner, numPanels } = fields;
    const isQuantised = isIntegerCode(fields.format);
    const count = step.count(fields.count);
    const { rowsPerTask, panelsPerTask, numPanelTasks, numTasks } = step.productTasks(index, count, inner, numPanels);
    const quantised = scratch + QUANTISED_AT;
    let quantisedRow = -1;
    for (let task = step.nextTask(index); task < numTasks; task = step.nextTask(index)) {
      const row = Math.floor(task / numPanelTasks) * rowsPerTask;
      const rows = Math.min(rowsPerTask, count - row);
      const panel = (task % numPanelTasks) * panelsPerTask;
      const panelEnd = Math.min(numPanels, panel + panelsPerTask);
      if (!isQuantised) {
        kernels.linear_float(params, row, rows, panel, panelEnd, scratch);
        continue;
      }
      if (row !== quantisedRow) kernels.quantise(params, row, rows, quantised, scratch);
      quantisedRow = row;
      kernels.linear_int(params, quantised, row, rows, panel, panelEnd, scratch);
    }
  },
  work: (op, load, batch) => {
    const { weightFormat } = load.options;
    const weight = load.program.weights[op.weight]!;
    const rows = numRows(load, op.x, batch);
    return {
      label: `linear ${weight.inner} to ${weight.outputs}`,
      // Where rows are many, weights come from cache most times, and computing is what costs.
      bytes: rows <= ROW_BLOCK ? weightBytes(weight, weightFormat) : 0,
      flops: 2 * rows * weight.inner * weight.outputs,
      kind: isInteger(weightFormat) ? weightFormat : 'f32',
    };
  },
  scratchBytes: (op, { program, options: { maxRows, maxSamples, weightFormat } }) => {
    const inner = program.weights[op.weight]?.inner ?? 0;
    const rows = Math.min(ROW_BLOCK, Math.max(maxRows, maxSamples));
    return isInteger(weightFormat)
      ? QUANTISED_AT + rows * Math.ceil(inner / 32) * Q_GROUP_BYTES
      : AFTER_SUMS + SLICE * LANES * 4;
  },
});

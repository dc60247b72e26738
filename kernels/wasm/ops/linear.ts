/** Products: tasks are blocks of rows times ranges of panels. */
import assert from 'node:assert/strict';
import { storageFormat } from '../../program.ts';
import { ROW_BLOCK } from '../kernel_constants.ts';
import { formatCode, LANES, paddedWidth, productKind, weightBytes } from '../panels.ts';
import { numRows, operation } from './operation.ts';
import { productParams, ProductRun, productScratchBytes } from '../product.ts';

/** The `linear` operation: a product with a weight matrix. Threads claim tasks. */
export const linear = operation('linear', {
  params: productParams,
  bind: (op, { buffer, weight }) => {
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
  run: (step, { index, params, fields, following }) => {
    const { format, inner, numPanels, count } = fields;
    const product = new ProductRun(step, format, following);
    const tasks = product.tasks(step.count(count), inner, numPanels);
    for (let task = step.nextTask(index); task < tasks.numTasks; task = step.nextTask(index)) {
      product.run(params, 0, task, tasks, numPanels);
    }
  },
  cost: (op, loaded, batch) => {
    const { weightFormat } = loaded.options;
    const weight = loaded.program.weights[op.weight]!;
    const held = storageFormat(weight, weightFormat);
    const rows = numRows(loaded, op.x, batch);
    return {
      label: `linear ${weight.inner} to ${weight.outputs}`,
      // With many rows, weights mostly come from cache, and arithmetic is the cost.
      bytes: rows <= ROW_BLOCK ? weightBytes(weight, weightFormat) : 0,
      flops: 2 * rows * weight.inner * weight.outputs,
      kind: productKind(held),
    };
  },
  scratchBytes: (op, { program, options }) => {
    const weight = program.weights[op.weight];
    return weight ? productScratchBytes(formatCode(weight, options.weightFormat), weight.inner, options) : 0;
  },
});

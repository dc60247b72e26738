/** Products of single heads: each head's inputs lie in one range of a row, its outputs in another. */
import assert from 'node:assert/strict';
import { DeviceError } from '../../device.ts';
import { storageFormat } from '../../program.ts';
import { ROW_BLOCK } from '../kernel_constants.ts';
import { formatCode, LANES, paddedWidth, productKind, weightBytes } from '../panels.ts';
import { productParams, ProductRun, productScratchBytes } from '../product.ts';
import { Control } from '../shared_step.ts';
import type { StepContext } from '../step_context.ts';
import { productTasks, type ProductTasks } from '../task_split.ts';
import { numRows, operation } from './operation.ts';
import type { BoundOperation } from '../bound_operation.ts';

/** Bytes of a thread's own copy of the struct, in which `x`, `weight` and `out` point to the head of the current task. */
const OWN_PARAMS = Math.ceil(productParams.bytes / 64) * 64;
/** Heads for each thread from which a task takes all outputs of its head. */
const HEADS_PER_THREAD = 2;

interface Fields extends Readonly<Record<string, number>> {
  readonly x: number;
  readonly out: number;
  readonly outStride: number;
  readonly weight: number;
  readonly heads: number;
  readonly outputs: number;
  readonly headBytes: number;
  readonly xHeadBytes: number;
  readonly outHeadBytes: number;
  readonly ownParams: number;
}

/** The `head_linear` operation: the kernels of `linear` head by head. Threads claim tasks: rows and outputs of one head. */
export const headLinear = operation('head_linear', {
  params: productParams,
  bind: (op, { buffer, weight, options }) => {
    const [x, out, w] = [buffer(op.x), buffer(op.out), weight(op.weight)];
    const { inner, outputs: all } = w.spec;
    const outputs = all / op.heads;
    assert(w.spec.expertOutputs === outputs, `head_linear ${op.weight}: the outputs of a head are not kept together`);
    assert(
      op.heads * op.xHead <= x.width + op.xHead - inner && op.heads * op.outHead <= out.width + op.outHead - outputs,
      `head_linear ${op.weight}: shapes differ`,
    );
    if (op.outHead % 4 !== 0 || op.xHead % 4 !== 0)
      throw new DeviceError(`the wasm device needs heads of a multiple of 4 values, not ${op.xHead} and ${op.outHead}`);
    return {
      x: x.at,
      xStride: x.stride,
      weight: w.at,
      format: w.format,
      bias: 0,
      out: out.at,
      outStride: out.stride,
      inner,
      isAccumulating: 0,
      scale: 1,
      heads: op.heads,
      outputs,
      headBytes: weightBytes({ ...w.spec, outputs }, options.weightFormat),
      xHeadBytes: op.xHead * 4,
      outHeadBytes: op.outHead * 4,
      ownParams: productScratchBytes(w.format, inner, options),
    };
  },
  run: (step, op) => {
    const { index, fields } = op;
    const { heads, inner, outputs, format } = fields;
    const rows = step.count(Control.numRows);
    // Where there are heads enough for all threads, a task is not divided by outputs.
    const numThreads = Math.ceil((HEADS_PER_THREAD * step.shared.numThreads) / heads);
    const tasks = productTasks(rows, inner, paddedWidth(outputs) / LANES, numThreads);
    let [head, product] = [-1, new ProductRun(step, format)];
    for (let task = step.nextTask(index); task < heads * tasks.numTasks; task = step.nextTask(index)) {
      const own = Math.floor(task / tasks.numTasks);
      if (own !== head) product = new ProductRun(step, format);
      head = own;
      runTask(step, op, product, head, task % tasks.numTasks, tasks);
    }
  },
  cost: (op, loaded, batch) => {
    const { weightFormat } = loaded.options;
    const weight = loaded.program.weights[op.weight]!;
    const rows = numRows(loaded, op.x, batch);
    return {
      label: `heads ${weight.inner} to ${weight.outputs / op.heads}`,
      bytes: rows <= ROW_BLOCK ? weightBytes(weight, weightFormat) : 0,
      flops: 2 * rows * weight.inner * weight.outputs,
      kind: productKind(storageFormat(weight, weightFormat)),
    };
  },
  scratchBytes: (op, { program, options }) => {
    const weight = program.weights[op.weight];
    if (!weight) return 0;
    const outputs = weight.outputs / op.heads;
    const { maxRows } = options;
    // Outputs that do not fill whole panels are made here and copied: a panel's last lanes are those of the next head.
    const aside = outputs % LANES === 0 ? 0 : Math.min(ROW_BLOCK, maxRows) * paddedWidth(outputs) * 4;
    return productScratchBytes(formatCode(weight, options.weightFormat), weight.inner, options) + OWN_PARAMS + aside;
  },
});

/** Runs one task of one head, with a copy of the struct that points to the head. */
function runTask(
  { u32, scratch }: StepContext,
  { params, fields }: BoundOperation<Fields>,
  product: ProductRun,
  head: number,
  task: number,
  tasks: ProductTasks,
): void {
  const { ownParams, x, out, outStride, weight, outputs, headBytes, xHeadBytes, outHeadBytes } = fields;
  const own = scratch + ownParams;
  const { offsets } = productParams;
  u32.copyWithin(own / 4, params / 4, (params + productParams.bytes) / 4);
  u32[(own + offsets.x) / 4] = x + head * xHeadBytes;
  u32[(own + offsets.weight) / 4] = weight + head * headBytes;
  const to = out + head * outHeadBytes;
  const numPanels = paddedWidth(outputs) / LANES;
  if (outputs % LANES === 0) {
    u32[(own + offsets.out) / 4] = to;
    product.run(own, 0, task, tasks, numPanels);
    return;
  }
  const { numRows: rows, rowsPerTask, panelsPerTask, numPanelTasks } = tasks;
  const aside = own + OWN_PARAMS;
  const width = paddedWidth(outputs);
  const first = Math.floor(task / numPanelTasks) * rowsPerTask;
  // The struct's `out` is where row 0 would lie, so that row `first` lies at `aside`.
  u32[(own + offsets.out) / 4] = aside - first * width * 4;
  u32[(own + offsets.outStride) / 4] = width * 4;
  product.run(own, 0, task, tasks, numPanels);
  const from = (task % numPanelTasks) * panelsPerTask * LANES;
  const end = Math.min(outputs, from + panelsPerTask * LANES);
  for (let row = first; row < Math.min(rows, first + rowsPerTask); row++) {
    const made = aside / 4 + (row - first) * width;
    u32.copyWithin((to + row * outStride) / 4 + from, made + from, made + end);
  }
}

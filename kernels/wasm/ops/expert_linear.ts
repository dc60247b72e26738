/** Products of a mixture of experts: the rows of one expert are adjacent, and are multiplied by that expert's part of the weight. */
import assert from 'node:assert/strict';
import { DeviceError } from '../../device.ts';
import { storageFormat } from '../../program.ts';
import { formatCode, LANES, productKind, weightBytes } from '../panels.ts';
import { numRows, operation } from './operation.ts';
import { productParams, ProductRun, productScratchBytes } from '../product.ts';

/** Bytes of a thread's own copy of the struct, in which `weight` and `bias` point to the expert of the current task. */
const OWN_PARAMS = Math.ceil(productParams.bytes / 64) * 64;

/**
 * The `expert_linear` operation: multiplies the permuted tokens of each expert by that expert's part of the weight. Threads claim
 * tasks.
 */
export const expertLinear = operation('expert_linear', {
  params: productParams,
  bind: (op, { buffer, weight, regions, options }) => {
    const [x, out, w] = [buffer(op.x), buffer(op.out), weight(op.weight)];
    const { inner } = w.spec;
    const outputs = w.spec.outputs / op.experts;
    if (outputs % LANES !== 0)
      throw new DeviceError(
        `the wasm device needs the outputs of an expert to be a multiple of ${LANES}, this model has ${outputs}`,
      );
    assert(inner <= x.width && outputs <= out.width, `expert_linear ${op.weight}: shapes differ`);
    return {
      x: x.at,
      xStride: x.stride,
      weight: w.at,
      format: w.format,
      bias: op.bias === undefined ? 0 : weight(op.bias).at,
      out: out.at,
      outStride: out.stride,
      inner,
      isAccumulating: 0,
      scale: 1,
      numPanels: outputs / LANES,
      experts: op.experts,
      expertBytes: weightBytes({ ...w.spec, outputs }, options.weightFormat),
      starts: regions.routing,
      ownParams: productScratchBytes(w.format, inner, options),
    };
  },
  run: (step, { index, params, fields, following }) => {
    const { u32, scratch } = step;
    const { format, inner, numPanels, experts, weight, bias, expertBytes, starts, ownParams } = fields;
    const { offsets } = productParams;
    const own = scratch + ownParams;
    u32.copyWithin(own / 4, params / 4, (params + productParams.bytes) / 4);
    const product = new ProductRun(step, format, following);
    let mine = step.nextTask(index);
    let before = 0;
    for (let expert = 0; expert < experts; expert++) {
      const first = u32[starts / 4 + expert]!;
      const count = u32[starts / 4 + expert + 1]! - first;
      if (count === 0) continue;
      const tasks = product.tasks(count, inner, numPanels);
      if (mine < before + tasks.numTasks) {
        u32[(own + offsets.weight) / 4] = weight + expert * expertBytes;
        if (bias) u32[(own + offsets.bias) / 4] = bias + expert * numPanels * LANES * 4;
      }
      for (; mine < before + tasks.numTasks; mine = step.nextTask(index)) {
        product.run(own, first, mine - before, tasks, numPanels);
      }
      before += tasks.numTasks;
    }
  },
  cost: (op, loaded, batch) => {
    const { weightFormat } = loaded.options;
    const weight = loaded.program.weights[op.weight]!;
    const expertSlots = numRows(loaded, op.x, batch);
    const outputs = weight.outputs / op.experts;
    const held = storageFormat(weight, weightFormat);
    return {
      label: `experts ${weight.inner} to ${outputs}`,
      // Each expert slot reads at most one more expert, and no step reads more than all experts.
      bytes: (weightBytes(weight, weightFormat) * Math.min(expertSlots, op.experts)) / op.experts,
      flops: 2 * expertSlots * weight.inner * outputs,
      kind: productKind(held),
    };
  },
  scratchBytes: (op, { program, options }) => {
    const weight = program.weights[op.weight];
    if (!weight) return 0;
    return productScratchBytes(formatCode(weight, options.weightFormat), weight.inner, options) + OWN_PARAMS;
  },
});

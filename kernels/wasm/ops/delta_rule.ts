import { STATE_COLUMNS } from '../kernel_constants.ts';
import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { operation } from './operation.ts';
import { eachStateTask, stateOf } from '../state_segments.ts';

/**
 * The `delta_rule` operation: prepares q, k and the gates, threads splitting heads of rows; after a barrier, tasks are columns of the
 * states of heads of segments.
 */
export const deltaRule = operation('delta_rule', {
  params: struct('DeltaRuleParams', {
    qkv: 'u32',
    qkvStride: 'u32',
    gates: 'u32',
    gatesStride: 'u32',
    aLog: 'u32',
    dtBias: 'u32',
    out: 'u32',
    outStride: 'u32',
    keyHeads: 'u32',
    valueHeads: 'u32',
    keyDim: 'u32',
    valueDim: 'u32',
    isTiled: 'u32',
    epsilon: 'f32',
    state: 'u32',
    slotBytes: 'u32',
  }),
  bind: (op, operands) => {
    const { buffer, weight } = operands;
    const [qkv, gates, out] = [buffer(op.qkv), buffer(op.gates), buffer(op.out)];
    const { keyHeads, valueHeads, keyDim, valueDim, epsilon } = op;
    return {
      ...{ qkv: qkv.at, qkvStride: qkv.stride, gates: gates.at, gatesStride: gates.stride },
      ...{ out: out.at, outStride: out.stride, aLog: weight(op.aLog).at, dtBias: weight(op.dtBias).at },
      ...{ keyHeads, valueHeads, keyDim, valueDim, epsilon, isTiled: op.isTiled ? 1 : 0 },
      ...stateOf(operands, op.layer, 1, valueHeads * keyDim * valueDim),
    };
  },
  run: (step, { index, params, fields: { keyHeads, valueHeads, valueDim, segments } }) => {
    step.kernels.delta_inputs(params, ...step.share(step.count(Control.numRows) * keyHeads));
    step.barrier.arrive();
    const tiles = Math.ceil(valueDim / STATE_COLUMNS);
    eachStateTask(step, index, segments, valueHeads * tiles, (segment, task) => {
      step.kernels.delta_rule(params, segment, Math.floor(task / tiles), task % tiles, step.scratch);
    });
  },
  cost: (op, _loaded, batch) => {
    const values = op.valueHeads * op.keyDim * op.valueDim;
    const rows = batch.reduce((sum, { tokens }) => sum + tokens.length, 0);
    const numStates = batch.reduce((sum, { state }) => sum + 1 + (state?.saves.length ?? 0), 0);
    return { bytes: 4 * numStates * values, flops: 7 * rows * values, kind: 'f32' };
  },
  scratchBytes: ({ keyDim }) => 4 * STATE_COLUMNS * (keyDim + 1),
});

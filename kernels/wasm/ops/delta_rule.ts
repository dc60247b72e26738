import { Control } from '../shared_step.ts';
import { stateOf } from '../state_segments.ts';
import { ruleCost, ruleParams, ruleScratchBytes, runRule } from '../state_rule.ts';
import { operation } from './operation.ts';

/**
 * The `delta_rule` operation: prepares q, k and the gates, threads splitting heads of rows; after a barrier, tasks are columns of the
 * states of heads of segments.
 */
export const deltaRule = operation('delta_rule', {
  params: ruleParams,
  bind: (op, operands) => {
    const { buffer, weight } = operands;
    const [qkv, gates, out] = [buffer(op.qkv), buffer(op.gates), buffer(op.out)];
    const { keyHeads, valueHeads, keyDim, valueDim, epsilon } = op;
    return {
      qkv: qkv.at,
      qkvStride: qkv.stride,
      gates: gates.at,
      gatesStride: gates.stride,
      out: out.at,
      outStride: out.stride,
      aLog: weight(op.aLog).at,
      dtBias: weight(op.dtBias).at,
      keyHeads,
      valueHeads,
      keyDim,
      valueDim,
      epsilon,
      isTiled: op.isTiled ? 1 : 0,
      skips: 0,
      leastStep: 0,
      mostStep: 0,
      ...stateOf(operands, op.layer, 1, valueHeads * keyDim * valueDim),
    };
  },
  run: (step, { index, params, fields }) => {
    step.kernels.delta_inputs(params, ...step.share(step.count(Control.numRows) * fields.keyHeads));
    step.barrier.arrive();
    runRule(step, index, params, fields);
  },
  cost: (op, _loaded, batch) => ruleCost(op, 7, batch),
  scratchBytes: ({ keyDim }) => ruleScratchBytes(keyDim),
});

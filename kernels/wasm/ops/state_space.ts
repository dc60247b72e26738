import { Control } from '../shared_step.ts';
import { stateOf } from '../state_segments.ts';
import { ruleCost, ruleParams, ruleScratchBytes, runRule } from '../state_rule.ts';
import { operation } from './operation.ts';
import { MOST_STEP } from '../../recurrent_operations.ts';

/**
 * The `state_space` operation: prepares the steps, threads splitting rows; after a barrier, tasks are columns of the states of heads of
 * segments.
 */
export const stateSpace = operation('state_space', {
  params: ruleParams,
  bind: (op, operands) => {
    const { buffer, weight } = operands;
    const [cbx, steps, out] = [buffer(op.cbx), buffer(op.steps), buffer(op.out)];
    const { groups, heads, stateDim, headDim, leastStep = 0, mostStep = MOST_STEP } = op;
    return {
      qkv: cbx.at,
      qkvStride: cbx.stride,
      gates: steps.at,
      gatesStride: steps.stride,
      out: out.at,
      outStride: out.stride,
      aLog: weight(op.aLog).at,
      dtBias: weight(op.dtBias).at,
      keyHeads: groups,
      valueHeads: heads,
      keyDim: stateDim,
      valueDim: headDim,
      isTiled: 0,
      epsilon: 0,
      skips: weight(op.skips).at,
      leastStep,
      mostStep,
      ...stateOf(operands, op.layer, 1, heads * stateDim * headDim),
    };
  },
  run: (step, { index, params, fields }) => {
    step.kernels.space_steps(params, ...step.share(step.count(Control.numRows)));
    step.barrier.arrive();
    runRule(step, index, params, fields);
  },
  cost: ({ groups, heads, stateDim, headDim }, _loaded, batch) =>
    ruleCost({ keyHeads: groups, valueHeads: heads, keyDim: stateDim, valueDim: headDim }, 5, batch),
  scratchBytes: ({ stateDim }) => ruleScratchBytes(stateDim),
});

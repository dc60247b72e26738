/** Parts that the operations with a state matrix for each head share: their struct, the tasks of their states, and what they cost. */
import type { Segment } from '../device.ts';
import { STATE_COLUMNS } from './kernel_constants.ts';
import type { KernelCost } from './ops/operation.ts';
import { eachStateTask } from './state_segments.ts';
import type { StepContext } from './step_context.ts';
import { struct } from './struct.ts';

/** Heads as recurrence_params.as.ts names them: each value head has a state [keyDim][valueDim]. */
export interface RuleHeads {
  readonly keyHeads: number;
  readonly valueHeads: number;
  readonly keyDim: number;
  readonly valueDim: number;
}

/** Struct of the delta rule and of the state space. */
export const ruleParams = struct('DeltaRuleParams', {
  qkv: 'u32',
  qkvStride: 'u32',
  gates: 'u32',
  gatesStride: 'u32',
  aLog: 'u32',
  dtBias: 'u32',
  skips: 'u32',
  out: 'u32',
  outStride: 'u32',
  keyHeads: 'u32',
  valueHeads: 'u32',
  keyDim: 'u32',
  valueDim: 'u32',
  isTiled: 'u32',
  epsilon: 'f32',
  leastStep: 'f32',
  mostStep: 'f32',
  state: 'u32',
  slotBytes: 'u32',
});

/** Computes the rows of segments in their order; tasks are columns of the states of heads of segments. */
export function runRule(
  step: StepContext,
  index: number,
  params: number,
  { valueHeads, valueDim, segments }: Pick<RuleHeads, 'valueHeads' | 'valueDim'> & { readonly segments: number },
): void {
  const tiles = Math.ceil(valueDim / STATE_COLUMNS);
  eachStateTask(step, index, segments, valueHeads * tiles, (segment, task) => {
    step.kernels.delta_rule(params, segment, Math.floor(task / tiles), task % tiles, step.scratch);
  });
}

/** Returns the bytes of the states that a batch reads and writes, and the operations of its rows, `perValue` for each value of a state. */
export function ruleCost(
  { valueHeads, keyDim, valueDim }: RuleHeads,
  perValue: number,
  batch: readonly Segment[],
): KernelCost {
  const values = valueHeads * keyDim * valueDim;
  const rows = batch.reduce((sum, { tokens }) => sum + tokens.length, 0);
  const numStates = batch.reduce((sum, { state }) => sum + 1 + (state?.saves.length ?? 0), 0);
  return { bytes: 4 * numStates * values, flops: perValue * rows * values, kind: 'f32' };
}

/** Returns the scratch that a call of the kernel needs, in bytes. */
export function ruleScratchBytes(keyDim: number): number {
  return 4 * STATE_COLUMNS * (keyDim + 1);
}

import { MOST_STEP } from '../../recurrent_operations.ts';
import type { KernelSpec } from '../kernel.ts';
import { pushStateRule } from '../state_rule.ts';
import { operation } from './operation.ts';

/** Prepares the steps of heads, in place; one thread per row and head. */
export const spaceStepsKernel = {
  name: 'space_steps',
  uses: ['softplus'],
  params: { stride: 'u32', heads: 'u32', least: 'f32', most: 'f32' },
  buffers: {
    a_log: { access: 'read', dtype: 'f32' },
    dt_bias: { access: 'read', dtype: 'f32' },
    steps: { access: 'read_write', dtype: 'f32' },
  },
  constants: { WORKGROUP_SIZE: 64 },
} as const satisfies KernelSpec;

/** Adds the dispatches of `state_space`. @throws DeviceError for larger states than a workgroup has room for. */
export const stateSpace = operation('state_space', (plan, op) => {
  const { groups, heads, stateDim, headDim, leastStep = 0, mostStep = MOST_STEP } = op;
  const [qkv, gates] = [plan.buffer(op.cbx), plan.buffer(op.steps)];
  plan.push({
    spec: spaceStepsKernel,
    params: { stride: gates.stride, heads, least: leastStep, most: mostStep },
    bindings: { a_log: plan.vector(op.aLog), dt_bias: plan.vector(op.dtBias), steps: gates.buffer },
    grid: ({ rows }) => [Math.ceil(heads / spaceStepsKernel.constants.WORKGROUP_SIZE), rows, 1],
    work: ({ rows }) => ({ bytes: rows * heads * 12, flops: 0 }),
  });
  pushStateRule(
    plan,
    { keyHeads: groups, valueHeads: heads, keyDim: stateDim, valueDim: headDim },
    { qkv, gates, skips: op.skips, out: op.out, layer: op.layer, isTiled: false },
  );
});

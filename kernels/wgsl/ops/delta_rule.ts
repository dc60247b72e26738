import { DeviceError } from '../../device.ts';
import { STATE_VALUE_BYTES } from '../../state_layout.ts';
import { statePlaneAt } from '../../state_slots.ts';
import type { KernelSpec } from '../kernel.ts';
import { operation } from './operation.ts';

/** Prepares q, k and the gates, in place; one workgroup per row and key head. */
export const deltaInputsKernel = {
  name: 'delta_inputs',
  params: {
    ...{ stride: 'u32', gates_stride: 'u32', key_heads: 'u32', value_heads: 'u32', key_dim: 'u32', is_tiled: 'u32' },
    epsilon: 'f32',
  },
  buffers: {
    a_log: { access: 'read', dtype: 'f32' },
    dt_bias: { access: 'read', dtype: 'f32' },
    qkv: { access: 'read_write', dtype: 'f32' },
    gates: { access: 'read_write', dtype: 'f32' },
  },
  constants: { WORKGROUP_SIZE: 32 },
} as const satisfies KernelSpec;

/** The rows of segments in their order; one workgroup per segment, value head and tile of columns. */
export const deltaRuleKernel = {
  name: 'delta_rule',
  uses: ['state_segment'],
  params: {
    ...{ stride: 'u32', gates_stride: 'u32', out_stride: 'u32', slot_values: 'u32', plane_at: 'u32' },
    ...{ key_heads: 'u32', value_heads: 'u32', key_dim: 'u32', value_dim: 'u32', is_tiled: 'u32' },
  },
  buffers: {
    step: { access: 'read', dtype: 'u32' },
    qkv: { access: 'read', dtype: 'f32' },
    gates: { access: 'read', dtype: 'f32' },
    out: { access: 'read_write', dtype: 'f32' },
    states: { access: 'read_write', dtype: 'f32' },
  },
  constants: { PARTS: 4, COLUMNS: 32, KEY_VECTORS: 8, STAGED: 8 },
} as const satisfies KernelSpec;

/** Values of q, and of k, that a workgroup stages: 8 KiB of the 16 that every adapter grants. */
const STAGED_VALUES = 1_024;

/** Adds the dispatches of `delta_rule`. @throws DeviceError for more values of a key than a workgroup stages. */
export const deltaRule = operation('delta_rule', (plan, op) => {
  const { keyHeads, valueHeads, keyDim, valueDim } = op;
  const { PARTS, COLUMNS } = deltaRuleKernel.constants;
  if (keyDim > STAGED_VALUES)
    throw new DeviceError(`the webgpu device has room for keys of ${STAGED_VALUES} values, not of ${keyDim}`);
  const { state } = plan.options;
  const { inLayer } = statePlaneAt(state, op.layer, 1, valueHeads * keyDim * valueDim);
  const [qkv, gates, out] = [plan.buffer(op.qkv), plan.buffer(op.gates), plan.buffer(op.out)];
  const heads = { key_heads: keyHeads, value_heads: valueHeads, key_dim: keyDim, is_tiled: op.isTiled ? 1 : 0 };
  const strides = { stride: qkv.stride, gates_stride: gates.stride };
  plan.push({
    spec: deltaInputsKernel,
    params: { ...strides, ...heads, epsilon: op.epsilon },
    bindings: {
      ...{ a_log: plan.vector(op.aLog), dt_bias: plan.vector(op.dtBias), qkv: qkv.buffer, gates: gates.buffer },
    },
    grid: ({ rows }) => [rows, keyHeads, 1],
    work: ({ rows }) => ({ bytes: rows * keyHeads * keyDim * 16, flops: 0 }),
  });
  const vectors = Math.ceil(keyDim / (4 * PARTS));
  const staged = Math.max(1, Math.min(8, Math.floor(STAGED_VALUES / (4 * PARTS * vectors))));
  const values = valueHeads * keyDim * valueDim;
  plan.push({
    spec: deltaRuleKernel,
    specialisation: { constants: { KEY_VECTORS: vectors, STAGED: staged } },
    params: {
      ...{ ...strides, ...heads, out_stride: out.stride, value_dim: valueDim },
      slot_values: state!.layers[op.layer]!.bytes / STATE_VALUE_BYTES,
      plane_at: inLayer / STATE_VALUE_BYTES,
    },
    bindings: {
      ...{ step: plan.resources.step, qkv: qkv.buffer, gates: gates.buffer, out: out.buffer },
      states: plan.states(op.layer),
    },
    grid: ({ segments }) => [segments, valueHeads, Math.ceil(valueDim / COLUMNS)],
    work: ({ rows, segments }) => ({ bytes: 8 * segments * values, flops: 7 * rows * values }),
  });
});

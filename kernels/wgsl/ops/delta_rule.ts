import type { KernelSpec } from '../kernel.ts';
import { pushStateRule } from '../state_rule.ts';
import { operation } from './operation.ts';

/** Prepares q, k and the gates, in place; one workgroup per row and key head. */
export const deltaInputsKernel = {
  name: 'delta_inputs',
  uses: ['softplus'],
  params: {
    stride: 'u32',
    gates_stride: 'u32',
    key_heads: 'u32',
    value_heads: 'u32',
    key_dim: 'u32',
    is_tiled: 'u32',
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

/** Adds the dispatches of `delta_rule`. @throws DeviceError for more values of a key than a workgroup stages. */
export const deltaRule = operation('delta_rule', (plan, op) => {
  const { keyHeads, keyDim, valueHeads } = op;
  const [qkv, gates] = [plan.buffer(op.qkv), plan.buffer(op.gates)];
  const heads = { key_heads: keyHeads, value_heads: valueHeads, key_dim: keyDim, is_tiled: op.isTiled ? 1 : 0 };
  plan.push({
    spec: deltaInputsKernel,
    params: { stride: qkv.stride, gates_stride: gates.stride, ...heads, epsilon: op.epsilon },
    bindings: { a_log: plan.vector(op.aLog), dt_bias: plan.vector(op.dtBias), qkv: qkv.buffer, gates: gates.buffer },
    grid: ({ rows }) => [rows, keyHeads, 1],
    work: ({ rows }) => ({ bytes: rows * keyHeads * keyDim * 16, flops: 0 }),
  });
  pushStateRule(plan, op, { out: op.out, qkv, gates, layer: op.layer, isTiled: op.isTiled });
});

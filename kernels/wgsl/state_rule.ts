/** The kernel of operations with a state matrix for each head: the delta rule and the state space. */
import { DeviceError } from '../device.ts';
import { STATE_VALUE_BYTES } from '../state_layout.ts';
import { statePlaneAt } from '../state_slots.ts';
import type { DispatchPlan } from './dispatch_plan.ts';
import type { KernelSpec } from './kernel.ts';

/** The rows of segments in their order; one workgroup per segment, value head and tile of columns. IS_DELTA 0: of a state space. */
export const deltaRuleKernel = {
  name: 'delta_rule',
  uses: ['state_segment'],
  params: {
    stride: 'u32',
    gates_stride: 'u32',
    out_stride: 'u32',
    slot_values: 'u32',
    plane_at: 'u32',
    key_heads: 'u32',
    value_heads: 'u32',
    key_dim: 'u32',
    value_dim: 'u32',
    is_tiled: 'u32',
  },
  buffers: {
    step: { access: 'read', dtype: 'u32' },
    qkv: { access: 'read', dtype: 'f32' },
    gates: { access: 'read', dtype: 'f32' },
    skips: { access: 'read', dtype: 'f32' },
    out: { access: 'read_write', dtype: 'f32' },
    states: { access: 'read_write', dtype: 'f32' },
  },
  constants: { PARTS: 4, COLUMNS: 32, KEY_VECTORS: 8, STAGED: 8, IS_DELTA: 1 },
} as const satisfies KernelSpec;

/** Values of q, and of k, that a workgroup stages: 8 KiB of the 16 that every adapter grants. */
const STAGED_VALUES = 1_024;

/** Heads as the kernel names them: each value head has a state [keyDim][valueDim]. */
interface RuleHeads {
  readonly keyHeads: number;
  readonly valueHeads: number;
  readonly keyDim: number;
  readonly valueDim: number;
}

/** Buffers and vectors of a rule; `skips` names a vector, and makes it a state space. */
interface RuleOperands {
  readonly qkv: ReturnType<DispatchPlan['buffer']>;
  readonly gates: ReturnType<DispatchPlan['buffer']>;
  readonly skips?: string;
  readonly out: string;
  readonly layer: number;
  readonly isTiled: boolean;
}

/** Adds the dispatch of a rule after that of its inputs. @throws DeviceError for more values of a key than a workgroup stages. */
export function pushStateRule(
  plan: DispatchPlan,
  { keyHeads, valueHeads, keyDim, valueDim }: RuleHeads,
  { qkv, gates, skips, out: outName, layer, isTiled }: RuleOperands,
): void {
  const { PARTS, COLUMNS } = deltaRuleKernel.constants;
  if (keyDim > STAGED_VALUES)
    throw new DeviceError(`the webgpu device has room for keys of ${STAGED_VALUES} values, not of ${keyDim}`);
  const { state } = plan.options;
  const { inLayer } = statePlaneAt(state, layer, 1, valueHeads * keyDim * valueDim);
  const out = plan.buffer(outName);
  const vectors = Math.ceil(keyDim / (4 * PARTS));
  const staged = Math.max(1, Math.min(8, Math.floor(STAGED_VALUES / (4 * PARTS * vectors))));
  const values = valueHeads * keyDim * valueDim;
  const isDelta = skips === undefined;
  plan.push({
    ...(isDelta ? {} : { label: 'state_space' }),
    spec: deltaRuleKernel,
    specialisation: { constants: { KEY_VECTORS: vectors, STAGED: staged, IS_DELTA: isDelta ? 1 : 0 } },
    params: {
      stride: qkv.stride,
      gates_stride: gates.stride,
      out_stride: out.stride,
      slot_values: state!.layers[layer]!.bytes / STATE_VALUE_BYTES,
      plane_at: inLayer / STATE_VALUE_BYTES,
      key_heads: keyHeads,
      value_heads: valueHeads,
      key_dim: keyDim,
      value_dim: valueDim,
      is_tiled: isTiled ? 1 : 0,
    },
    bindings: {
      step: plan.resources.step,
      qkv: qkv.buffer,
      gates: gates.buffer,
      out: out.buffer,
      skips: isDelta ? plan.resources.none : plan.vector(skips),
      states: plan.states(layer),
    },
    grid: ({ segments }) => [segments, valueHeads, Math.ceil(valueDim / COLUMNS)],
    work: ({ rows, segments }) => ({ bytes: 8 * segments * values, flops: (isDelta ? 7 : 5) * rows * values }),
  });
}

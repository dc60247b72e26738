/** Causal convolutions: a thread per channel computes short segments row by row; long ones have a thread for each row as well. */
import assert from 'node:assert/strict';
import { DeviceError } from '../../device.ts';
import { STATE_VALUE_BYTES } from '../../state_layout.ts';
import { statePlaneAt } from '../../state_slots.ts';
import type { KernelSpec } from '../kernel.ts';
import type { GridCounts } from '../step_state.ts';
import { operation } from './operation.ts';

const params = {
  channels: 'u32',
  x_stride: 'u32',
  out_stride: 'u32',
  slot_values: 'u32',
  has_bias: 'u32',
  is_activated: 'u32',
} as const;
const inputs = {
  step: { access: 'read', dtype: 'u32' },
  x: { access: 'read', dtype: 'f32' },
  weight: { access: 'read', dtype: 'f32' },
  bias: { access: 'read', dtype: 'f32' },
  out: { access: 'read_write', dtype: 'f32' },
} as const;

/** Outputs of segments and the windows that they save, one thread per channel of a segment; HAS_OUTPUTS 0: only the windows. */
export const causalConvKernel = {
  name: 'causal_conv',
  uses: ['conv_taps', 'state_segment'],
  params,
  buffers: { ...inputs, states: { access: 'read_write', dtype: 'f32' } },
  constants: { WORKGROUP_SIZE: 64, HAS_OUTPUTS: 1, TAPS: 4 },
} as const satisfies KernelSpec;

/** Outputs alone, one thread per row and channel. */
export const causalConvRowsKernel = {
  name: 'causal_conv_rows',
  uses: ['conv_taps', 'state_segment'],
  params,
  buffers: { ...inputs, states: { access: 'read', dtype: 'f32' } },
  constants: { WORKGROUP_SIZE: 64, TAPS: 4 },
} as const satisfies KernelSpec;

/** Rows per segment, on average, from which rows are computed side by side: a dispatch more costs less than they would in turn. */
const MANY_ROWS = 8;
const hasManyRows = ({ rows, segments }: GridCounts): boolean => rows >= MANY_ROWS * segments;

/** Adds the dispatches of `causal_conv`. @throws DeviceError for other than 2 to 4 taps. */
export const causalConv = operation('causal_conv', (plan, op) => {
  const { channels, taps } = op;
  if (taps < 2 || taps > 4) throw new DeviceError(`the webgpu device convolves over 2 to 4 rows, not ${taps}`);
  const { state } = plan.options;
  const { inLayer } = statePlaneAt(state, op.layer, 0, (taps - 1) * channels);
  const [weight] = plan.weight(op.weight).slices;
  assert(inLayer === 0 && weight?.outputs === channels, 'the window is first in its layer, and a weight in one part');
  const [x, out] = [plan.buffer(op.x), plan.buffer(op.out)];
  const { step, none } = plan.resources;
  const common = {
    params: {
      channels,
      x_stride: x.stride,
      out_stride: out.stride,
      slot_values: state!.layers[op.layer]!.bytes / STATE_VALUE_BYTES,
      has_bias: op.bias === undefined ? 0 : 1,
      is_activated: op.isActivated ? 1 : 0,
    },
    bindings: {
      step,
      x: x.buffer,
      weight: weight.data,
      out: out.buffer,
      states: plan.states(op.layer),
      bias: op.bias === undefined ? none : plan.vector(op.bias),
    },
  };
  const groups = Math.ceil(channels / causalConvKernel.constants.WORKGROUP_SIZE);
  const work = ({ rows }: GridCounts): { bytes: number; flops: number } => ({ bytes: rows * channels * 8, flops: 0 });
  const noWork = (): { bytes: number; flops: number } => ({ bytes: 0, flops: 0 });
  plan.push({
    spec: causalConvKernel,
    ...common,
    specialisation: { constants: { TAPS: taps } },
    grid: (counts) => [groups, hasManyRows(counts) ? 0 : counts.segments, 1],
    work: (counts) => (hasManyRows(counts) ? noWork() : work(counts)),
  });
  plan.push({
    spec: causalConvRowsKernel,
    ...common,
    specialisation: { constants: { TAPS: taps } },
    grid: (counts) => [groups, hasManyRows(counts) ? counts.rows : 0, 1],
    work: (counts) => (hasManyRows(counts) ? work(counts) : noWork()),
  });
  plan.push({
    label: 'causal_conv windows',
    spec: causalConvKernel,
    ...common,
    specialisation: { constants: { TAPS: taps, HAS_OUTPUTS: 0 } },
    grid: (counts) => [groups, hasManyRows(counts) ? counts.segments : 0, 1],
    work: noWork,
  });
});

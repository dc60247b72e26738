import { DeviceError } from '../../device.ts';
import { CONV_CHANNELS } from '../kernel_constants.ts';
import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';
import { eachStateTask, stateOf } from '../state_segments.ts';

/** The `causal_conv` operation. Tasks are channels of segments. @throws DeviceError for other than 2 to 4 taps. */
export const causalConv = operation('causal_conv', {
  params: struct('CausalConvParams', {
    x: 'u32',
    xStride: 'u32',
    weight: 'u32',
    bias: 'u32',
    out: 'u32',
    outStride: 'u32',
    channels: 'u32',
    taps: 'u32',
    isActivated: 'u32',
    state: 'u32',
    slotBytes: 'u32',
  }),
  bind: (op, operands) => {
    const { buffer, weight } = operands;
    const [x, out] = [buffer(op.x), buffer(op.out)];
    const { channels, taps } = op;
    if (taps < 2 || taps > 4) throw new DeviceError(`the wasm device convolves over 2 to 4 rows, not ${taps}`);
    return {
      x: x.at,
      xStride: x.stride,
      out: out.at,
      outStride: out.stride,
      channels,
      taps,
      weight: weight(op.weight).at,
      bias: op.bias === undefined ? 0 : weight(op.bias).at,
      isActivated: op.isActivated ? 1 : 0,
      ...stateOf(operands, op.layer, 0, (taps - 1) * channels),
    };
  },
  run: (step, { index, params, fields: { segments, channels } }) => {
    eachStateTask(step, index, segments, Math.ceil(channels / CONV_CHANNELS), (segment, task) => {
      const first = task * CONV_CHANNELS;
      step.kernels.causal_conv(params, segment, first, Math.min(channels, first + CONV_CHANNELS), step.scratch);
    });
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.out, op.out], batch),
  scratchBytes: () => 4 * CONV_CHANNELS,
});

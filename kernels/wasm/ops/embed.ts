import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** The `embed` operation: looks up a table row per token. Threads split rows. */
export const embed = operation('embed', {
  params: struct('EmbedParams', {
    tokens: 'u32',
    slots: 'u32',
    table: 'u32',
    outputs: 'u32',
    format: 'u32',
    width: 'u32',
    out: 'u32',
    outStride: 'u32',
    scale: 'f32',
    isAccumulating: 'u32',
  }),
  bind: (op, { regions, weight, buffer }) => {
    const [table, out] = [weight(op.table), buffer(op.out)];
    return {
      tokens: regions.tokens,
      slots: regions.slotTokens,
      table: table.at,
      outputs: table.spec.outputs,
      format: table.format,
      width: table.spec.inner,
      out: out.at,
      outStride: out.stride,
      scale: op.scale ?? 1,
      isAccumulating: op.accumulate ? 1 : 0,
    };
  },
  run: (step, { params }) => {
    step.kernels.embed(params, ...step.share(step.count(Control.numRows)));
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.out], batch),
});

import assert from 'node:assert/strict';
import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** The `combine` operation: adds each row's weighted expert results to the output. Threads split rows. */
export const combine = operation('combine', {
  params: struct('CombineParams', {
    x: 'u32',
    out: 'u32',
    rowBytes: 'u32',
    routes: 'u32',
    routesStride: 'u32',
    perToken: 'u32',
    isAccumulating: 'u32',
  }),
  bind: (op, { buffer }) => {
    const [x, out, routes] = [buffer(op.x), buffer(op.out), buffer(op.routes)];
    assert(x.stride === out.stride, `combine ${op.x}: widths differ`);
    return {
      x: x.at,
      out: out.at,
      rowBytes: x.stride,
      routes: routes.at,
      routesStride: routes.stride,
      perToken: x.perRow,
      isAccumulating: op.accumulate === false ? 0 : 1,
    };
  },
  run: (step, { params }) => {
    step.kernels.combine(params, ...step.share(step.count(Control.numRows)));
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.x, op.out, op.out], batch),
});

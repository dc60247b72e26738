/**
 * Shared parts of the gate operations: their struct, and their split among threads: within the tasks of the
 * product before, or else by rows, or by columns when rows are few.
 */
import type { Gate } from '../../program.ts';
import { LANES } from '../panels.ts';
import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { rowCost, type WasmOperation } from './operation.ts';

const params = struct('GateParams', {
  gates: 'u32',
  gateStride: 'u32',
  ups: 'u32',
  upStride: 'u32',
  out: 'u32',
  outStride: 'u32',
  inner: 'u32',
  alpha: 'f32',
  limit: 'f32',
});

type Fields = Parameters<typeof params.write>[2] & { readonly perRow: number };

/** Returns the implementation of a gate operation. `kind` is also the name of its kernel. */
export function gatedMul(kind: Gate['kind']): WasmOperation<Gate, Fields> {
  return {
    params,
    bind: (op, { buffer }) => {
      const [gateUp, out] = [buffer(op.gateUp), buffer(op.out)];
      const ups = op.ups === undefined ? gateUp : buffer(op.ups);
      const firstUp = op.ups === undefined ? op.inner : (op.firstUp ?? 0);
      return {
        gates: gateUp.at,
        gateStride: gateUp.stride,
        ups: ups.at + 4 * firstUp,
        upStride: ups.stride,
        out: out.at,
        outStride: out.stride,
        inner: op.inner,
        alpha: op.kind === 'clamped_swiglu' ? op.alpha : 0,
        limit: op.kind === 'clamped_swiglu' ? op.limit : 0,
        perRow: gateUp.perRow,
      };
    },
    run: (step, op) => {
      step.kernels[kind](
        op.params,
        ...step.shareTable(step.count(Control.numRows) * op.fields.perRow, op.fields.inner),
      );
    },
    follows: ({ gateUp, ups, inner }, { out, outputs }) =>
      gateUp === out && ups === undefined && outputs === 2 * inner && inner % LANES === 0
        ? { unit: LANES, apart: inner }
        : undefined,
    runColumns: (step, { params: at }, start, end, first, last) => {
      step.kernels[kind](at, start, end, first, last);
    },
    cost: (op, loaded, batch) => rowCost(loaded, [op.gateUp, op.out], batch),
  };
}

/** Shared parts of the gate operations: their struct, and the split among threads by rows, or by columns when rows are few. */
import type { Gate } from '../../program.ts';
import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { rowCost, type WasmOperation } from './operation.ts';

const params = struct('GateParams', { gateUp: 'u32', gateUpStride: 'u32', out: 'u32', outStride: 'u32', inner: 'u32' });

type Fields = Parameters<typeof params.write>[2] & { readonly perRow: number };

/** Returns the implementation of a gate operation. `kind` is also the name of its kernel. */
export function gatedMul(kind: Gate['kind']): WasmOperation<Gate, Fields> {
  return {
    params,
    bind: (op, { buffer }) => {
      const [gateUp, out] = [buffer(op.gateUp), buffer(op.out)];
      return {
        gateUp: gateUp.at,
        gateUpStride: gateUp.stride,
        out: out.at,
        outStride: out.stride,
        inner: op.inner,
        perRow: gateUp.perRow,
      };
    },
    run: (step, op) => {
      step.kernels[kind](
        op.params,
        ...step.shareTable(step.count(Control.numRows) * op.fields.perRow, op.fields.inner),
      );
    },
    cost: (op, loaded, batch) => rowCost(loaded, [op.gateUp, op.out], batch),
  };
}

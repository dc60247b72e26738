/**
 * Operations that one kernel does together.
 *
 *   rms_norm + linear   with one row the product normalises on the way in, and the norm's own dispatch is left out
 *   linear + silu_mul   (or gelu_mul) the product's outputs come in pairs (gate, up); the buffer between is never written
 */
import { inputsOf, isGate, type Gate, type Operation, type OperationOf, type Program } from '../program.ts';
import type { Fusion } from './ops/operation.ts';

/** An operation as it is dispatched. */
export interface FusedOperation {
  readonly op: Operation;
  readonly fusion: Fusion;
}

/** Finds what one kernel can do together. */
export function fuse(program: Program): FusedOperation[] {
  const { operations } = program;
  const fused: FusedOperation[] = [];
  for (let i = 0; i < operations.length; i++) {
    const [op, after] = [operations[i]!, operations[i + 1]];
    const before = fused.at(-1);
    if (op.kind === 'rms_norm') {
      fused.push({ op, fusion: { isNormOfNext: isNormOf(op, after, program) } });
    } else if (op.kind === 'linear') {
      const norm = before?.op.kind === 'rms_norm' && before.fusion.isNormOfNext ? before.op : undefined;
      const gated = isGate(after) && makesPairs(op, after, program) ? after : undefined;
      fused.push({ op, fusion: { ...(norm ? { norm } : {}), ...(gated ? { gated } : {}) } });
      if (gated) i++;
    } else {
      fused.push({ op, fusion: {} });
    }
  }
  return fused;
}

function isNormOf(op: OperationOf<'rms_norm'>, after: Operation | undefined, { operations }: Program): boolean {
  const numReaders = operations.filter((one) => inputsOf(one).includes(op.out)).length;
  const numWriters = operations.filter((one) => one.kind === 'rms_norm' && one.out === op.out).length;
  const isAlone = numReaders === numWriters && op.x !== op.out && !op.accumulate;
  return after?.kind === 'linear' && after.x === op.out && isAlone;
}

/** Whether nobody but `gate` reads what the product makes, and it makes as many gates as ups. */
function makesPairs(op: OperationOf<'linear'>, gate: Gate, { operations, weights }: Program): boolean {
  const parts = weights[op.weight]?.parts ?? [];
  const isPair = parts.length === 2 && parts[0]?.outputs === parts[1]?.outputs;
  const numReaders = operations.filter((one) => inputsOf(one).includes(op.out)).length;
  const numGates = operations.filter((one) => isGate(one) && one.gateUp === op.out).length;
  return (
    gate.gateUp === op.out &&
    isPair &&
    !op.accumulate &&
    2 * gate.inner === weights[op.weight]?.outputs &&
    numReaders === numGates
  );
}

/** Buffers that fusing leaves unwritten. */
export function fusedAway(operations: readonly FusedOperation[]): Set<string> {
  return new Set(operations.flatMap(({ op, fusion }) => (op.kind === 'linear' && fusion.gated ? [op.out] : [])));
}

/** Weights whose outputs lie in pairs. */
export function interleavedWeights(operations: readonly FusedOperation[]): Set<string> {
  return new Set(operations.flatMap(({ op, fusion }) => (op.kind === 'linear' && fusion.gated ? [op.weight] : [])));
}

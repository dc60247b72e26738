/**
 * Fuses neighbouring operations that one kernel can compute together.
 *
 *   rms_norm + linear         with one row the product applies the norm as it reads x, and the norm's own dispatch is left out
 *   linear + silu_mul         (or another gate) the product's outputs come in pairs (gate, up); the buffer between is never written
 *   expert_linear + silu_mul  (or another gate) likewise
 *   permute + expert_linear   the product reads the unpermuted rows through the routing
 *   qk_norm + rope_store      a head is normalised before it is rotated
 */
import { inputsOf, isGate, type Gate, type Operation, type OperationOf, type Program } from '../program.ts';
import type { Fusion } from './ops/operation.ts';

/** An operation as it is dispatched. */
export interface FusedOperation {
  readonly op: Operation;
  readonly fusion: Fusion;
}

/** Returns the program's operations in order, with those fused that one kernel can compute together. */
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
      const gate = gateOf(op, after, program);
      fused.push({ op, fusion: { ...(norm ? { norm } : {}), ...gate } });
      if (gate.gated) i++;
    } else if (op.kind === 'permute' && after?.kind === 'expert_linear' && isOnlyRead(op.out, after, program)) {
      const gate = gateOf(after, operations[i + 2], program);
      fused.push({ op: after, fusion: { permuted: op, ...gate } });
      i += gate.gated ? 2 : 1;
    } else if (op.kind === 'expert_linear') {
      const gate = gateOf(op, after, program);
      fused.push({ op, fusion: gate });
      if (gate.gated) i++;
    } else if (op.kind === 'qk_norm' && after?.kind === 'rope_store' && isNormOfHeads(op, after)) {
      fused.push({ op: after, fusion: { headNorm: op } });
      i++;
    } else {
      fused.push({ op, fusion: {} });
    }
  }
  return fused;
}

/** Whether the buffer's only readers are operations of the kind of `by`, one for each operation that writes the buffer. */
function isOnlyRead(buffer: string, by: Operation, { operations }: Program): boolean {
  const readers = operations.filter((one) => inputsOf(one).includes(buffer));
  const writers = operations.filter((one) => 'out' in one && one.out === buffer);
  // Layers reuse the buffer in turn: each operation that writes it has one that reads it.
  const isPaired = readers.length === writers.length && readers.every(({ kind }) => kind === by.kind);
  return isPaired && inputsOf(by).includes(buffer);
}

/** Returns the gate that follows the product as `gated`, if the product can apply it to its pairs of outputs. */
function gateOf(
  op: OperationOf<'linear' | 'expert_linear'>,
  after: Operation | undefined,
  program: Program,
): Pick<Fusion, 'gated'> {
  return isGate(after) && after.ups === undefined && makesPairs(op, after, program) ? { gated: after } : {};
}

/** Whether rope_store can apply the norm: it spans single heads, narrow enough for rope_store's workgroup. */
function isNormOfHeads(op: OperationOf<'qk_norm'>, after: OperationOf<'rope_store'>): boolean {
  return op.qkv === after.qkv && op.span === 'head' && op.headDim < 512;
}

function isNormOf(op: OperationOf<'rms_norm'>, after: Operation | undefined, { operations }: Program): boolean {
  if (after?.kind !== 'linear' || after.x !== op.out || op.x === op.out || op.accumulate) return false;
  // With one row the product reads x itself.
  if (after.out === op.x) return false;
  // Count the readers of the norm's output up to the next operation that writes the same buffer.
  const later = operations.slice(operations.indexOf(op) + 1);
  const nextWrite = later.findIndex((one) => 'out' in one && one.out === op.out);
  const readers = later
    .slice(0, nextWrite < 0 ? later.length : nextWrite + 1)
    .filter((one) => inputsOf(one).includes(op.out));
  return readers.length === 1;
}

/** Whether only gates read the product's output, and the product has as many gates as ups. */
function makesPairs(
  op: OperationOf<'linear' | 'expert_linear'>,
  gate: Gate,
  { operations, weights }: Program,
): boolean {
  const parts = weights[op.weight]?.parts ?? [];
  const numPairs = op.kind === 'linear' ? 1 : op.experts;
  const isPair = parts.length === 2 * numPairs && parts.every(({ outputs }) => outputs === gate.inner);
  const numReaders = operations.filter((one) => inputsOf(one).includes(op.out)).length;
  const numGates = operations.filter((one) => isGate(one) && one.gateUp === op.out).length;
  return (
    gate.gateUp === op.out &&
    isPair &&
    !(op.kind === 'linear' && op.accumulate) &&
    2 * gate.inner * numPairs === weights[op.weight]?.outputs &&
    numReaders === numGates
  );
}

/** Returns the names of the buffers that are never written because of fusion. */
export function fusedAway(operations: readonly FusedOperation[]): Set<string> {
  return new Set(
    operations.flatMap(({ op, fusion }) => [
      ...(isProduct(op) && fusion.gated ? [op.out] : []),
      ...(fusion.permuted ? [fusion.permuted.out] : []),
    ]),
  );
}

function isProduct(op: Operation): op is OperationOf<'linear' | 'expert_linear'> {
  return op.kind === 'linear' || op.kind === 'expert_linear';
}

/** Returns the names of the weights whose outputs are interleaved in pairs (gate, up). */
export function interleavedWeights(operations: readonly FusedOperation[]): Set<string> {
  return new Set(operations.flatMap(({ op, fusion }) => (isProduct(op) && fusion.gated ? [op.weight] : [])));
}

/**
 * Operations that one kernel does together.
 *
 *   rms_norm + linear   with one row the product normalises on the way in, and the norm's own dispatch is left out
 *   linear + silu_mul   the product's outputs come in pairs (gate, up); the buffer between is never written
 */
import type { Operation, Program } from '../device.ts';

/** Operations as they are dispatched. */
export type Step =
  | { readonly kind: 'single'; readonly op: Exclude<Operation, { kind: 'linear' | 'rms_norm' }> }
  | { readonly kind: 'norm'; readonly op: Extract<Operation, { kind: 'rms_norm' }>; readonly isFused: boolean }
  | {
      readonly kind: 'linear';
      readonly op: Extract<Operation, { kind: 'linear' }>;
      readonly norm: Extract<Operation, { kind: 'rms_norm' }> | undefined;
      readonly gated: Extract<Operation, { kind: 'silu_mul' }> | undefined;
    };

/** Finds what one kernel can do together. */
export function fuse({ operations, weights }: Program): Step[] {
  const steps: Step[] = [];
  const numReaders = (buffer: string): number => operations.filter((op) => reads(op).includes(buffer)).length;
  const numWriters = (buffer: string): number =>
    operations.filter((op) => op.kind === 'rms_norm' && op.out === buffer).length;
  for (let i = 0; i < operations.length; i++) {
    const op = operations[i]!;
    const [before, after] = [operations[i - 1], operations[i + 1]];
    if (op.kind === 'rms_norm') {
      const isFused =
        after?.kind === 'linear' && after.x === op.out && numReaders(op.out) === numWriters(op.out) && op.x !== op.out;
      steps.push({ kind: 'norm', op, isFused });
    } else if (op.kind === 'linear') {
      const norm = steps.at(-1);
      const parts = weights[op.weight]?.parts ?? [];
      const isPair = parts.length === 2 && parts[0]?.outputs === parts[1]?.outputs;
      const gated =
        after?.kind === 'silu_mul' &&
        after.gateUp === op.out &&
        isPair &&
        !op.accumulate &&
        2 * after.inner === weights[op.weight]?.outputs &&
        numReaders(op.out) === operations.filter((other) => other.kind === 'silu_mul' && other.gateUp === op.out).length
          ? after
          : undefined;
      steps.push({
        kind: 'linear',
        op,
        norm: before?.kind === 'rms_norm' && norm?.kind === 'norm' && norm.isFused ? norm.op : undefined,
        gated,
      });
      if (gated) i++;
    } else {
      steps.push({ kind: 'single', op });
    }
  }
  return steps;
}

function reads(op: Operation): string[] {
  switch (op.kind) {
    case 'embed':
      return [];
    case 'rms_norm':
    case 'gather_samples':
      return [op.x];
    case 'linear':
      return op.accumulate ? [op.x, op.out] : [op.x];
    case 'rope_store':
    case 'attention':
      return [op.qkv];
    case 'silu_mul':
      return [op.gateUp];
    case 'candidates':
      return [op.logits];
  }
}

/** Buffers that fusing leaves unwritten. */
export function fusedAway(steps: readonly Step[]): Set<string> {
  return new Set(steps.flatMap((step) => (step.kind === 'linear' && step.gated ? [step.op.out] : [])));
}

/** Weights whose outputs lie in pairs. */
export function interleavedWeights(steps: readonly Step[]): Set<string> {
  return new Set(steps.flatMap((step) => (step.kind === 'linear' && step.gated ? [step.op.weight] : [])));
}

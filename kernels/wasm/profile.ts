/** Times of a step's operations, equal ones together, with the work that they did. */
import type { KernelProfile, LoadOptions, Operation, Program, Segment } from '../device.ts';
import { ROW_BLOCK } from './kernel_constants.ts';
import { weightBytes } from './program_layout.ts';

/** `ms`: of every operation of the program, in order. */
export function profileOf(
  program: Program,
  options: LoadOptions,
  batch: readonly Segment[],
  ms: readonly number[],
): KernelProfile[] {
  const byLabel = new Map<string, KernelProfile>();
  program.operations.forEach((operation, i) => {
    const { label, bytes, flops, kind } = workOf(operation, program, options, batch);
    const before = byLabel.get(label);
    byLabel.set(label, {
      label,
      numLaunches: (before?.numLaunches ?? 0) + 1,
      ms: (before?.ms ?? 0) + (ms[i] ?? 0),
      bytes: (before?.bytes ?? 0) + bytes,
      flops: (before?.flops ?? 0) + flops,
      kind,
    });
  });
  return [...byLabel.values()];
}

function workOf(
  operation: Operation,
  { buffers, weights, attention }: Program,
  { weightFormat, kvDtype }: LoadOptions,
  batch: readonly Segment[],
): Required<Pick<KernelProfile, 'label' | 'bytes' | 'flops' | 'kind'>> {
  if (operation.kind === 'linear') {
    const weight = weights[operation.weight]!;
    const isSampled = buffers[operation.x]?.rows === 'samples';
    const numRows = batch.reduce((sum, { tokens, sample }) => sum + (isSampled ? (sample ? 1 : 0) : tokens.length), 0);
    return {
      label: `linear ${weight.inner} to ${weight.outputs}`,
      // Where rows are many, weights come from cache most times, and computing is what costs.
      bytes: numRows <= ROW_BLOCK ? weightBytes(weight, weightFormat) : 0,
      flops: 2 * numRows * weight.inner * weight.outputs,
      kind: weightFormat === 'int8' || weightFormat === 'int4' ? weightFormat : 'f32',
    };
  }
  if (operation.kind === 'attention' && attention) {
    const { heads, kvHeads, headDim } = attention;
    const tokenBytes = 2 * kvHeads * headDim * (kvDtype === 'f16' ? 2 : 4);
    const window = operation.window ?? Infinity;
    let [numSeen, numPairs] = [0, 0];
    for (const { tokens, start } of batch) {
      for (let i = 1; i <= tokens.length; i++) numPairs += Math.min(window, start + i);
      numSeen += Math.min(window + tokens.length - 1, start + tokens.length);
    }
    const isDecode = batch.every(({ tokens }) => tokens.length === 1);
    return {
      label: 'attention',
      bytes: isDecode ? numSeen * tokenBytes : 0,
      flops: 4 * numPairs * heads * headDim,
      kind: 'f32',
    };
  }
  return { label: operation.kind, bytes: 0, flops: 0, kind: 'f32' };
}

/** Heads side by side in the output of a product, each with a struct of its own, for operations that run within the product's tasks. */
import { LANES } from './panels.ts';
import type { Columns, ProductOutput } from './ops/operation.ts';

/** Returns a head as the unit of an operation on `buffer`; undefined where the product writes another, or panels have parts of two heads. */
export function headColumns(buffer: string, headDim: number, { out, outputs }: ProductOutput): Columns | undefined {
  return buffer === out && headDim % LANES === 0 && outputs % headDim === 0 ? { unit: headDim, apart: 0 } : undefined;
}

/**
 * Calls `run` with the struct of every head in columns [first, last). The structs, `bytes` each, lie after that of the operation at
 * `params`; columns after `numHeads` heads are no heads.
 */
export function eachHead(
  params: number,
  bytes: number,
  headDim: number,
  numHeads: number,
  first: number,
  last: number,
  run: (part: number) => void,
): void {
  const end = Math.min(numHeads, Math.ceil(last / headDim));
  for (let head = first / headDim; head < end; head++) run(params + (1 + head) * bytes);
}

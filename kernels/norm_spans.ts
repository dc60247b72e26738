/** Spans of a row that the operation `qk_norm` normalises. */
import type { OperationOf } from './program.ts';

/** Spans side by side from the start of a row: q's, then k's, then v's, which are as wide as k's and have no weight. */
export interface NormSpans {
  readonly qSpans: number;
  readonly qWidth: number;
  readonly kSpans: number;
  readonly kWidth: number;
  readonly vSpans: number;
}

/** Returns the spans that the operation normalises. */
export function normSpans({
  heads,
  kvHeads,
  headDim,
  span,
  keys = 'stored',
  hasValueNorm = false,
}: OperationOf<'qk_norm'>): NormSpans {
  const isHead = span === 'head';
  const keyHeads = keys === 'computed' ? 0 : kvHeads;
  return {
    qSpans: isHead ? heads : 1,
    qWidth: headDim * (isHead ? 1 : heads),
    kSpans: isHead ? keyHeads : 1,
    kWidth: headDim * (isHead ? 1 : kvHeads),
    vSpans: hasValueNorm ? kvHeads : 0,
  };
}

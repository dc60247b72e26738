/** Bytes [start, end) of a tensor in its file. */
export interface TensorRange {
  readonly name: string;
  readonly start: number;
  readonly end: number;
}

/** The names of two that have bytes in common; undefined: none have. */
export function overlapping(ranges: readonly TensorRange[]): readonly [string, string] | undefined {
  let before: TensorRange | undefined;
  for (const range of [...ranges].sort((a, b) => a.start - b.start || a.end - b.end)) {
    if (before && range.start < before.end) return [before.name, range.name];
    before = range;
  }
  return undefined;
}

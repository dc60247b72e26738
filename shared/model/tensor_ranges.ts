/** Bytes [start, end) of a tensor in its file. */
export interface TensorRange {
  readonly name: string;
  readonly start: number;
  readonly end: number;
}

/** Returns the names of two tensors that share bytes, or undefined when none do. */
export function overlapping(ranges: readonly TensorRange[]): readonly [string, string] | undefined {
  let before: TensorRange | undefined;
  for (const range of [...ranges].sort((a, b) => a.start - b.start || a.end - b.end)) {
    if (before && range.start < before.end) return [before.name, range.name];
    before = range;
  }
  return undefined;
}

import type { PrefixIndex } from '../../shared/placement/prefix_index/prefix_index.ts';

/** Per holder, the blocks it has without a hole from the first on. */
export function heldRuns(index: PrefixIndex, keys: Int32Array): Map<string, number> {
  const runs = new Map<string, number>();
  for (const { start, end, heldBy } of index.ranges(keys))
    for (const { holder } of heldBy) if ((runs.get(holder) ?? 0) === start) runs.set(holder, end);
  return runs;
}

/** Stages of the fetches of waiting and held sequences, for metrics. */
import type { Sequence } from './sequence.ts';

/**
 * Number of sequences by the stage of the fetch of their blocks: `waiting` for device blocks to fetch into, `loading` while blocks arrive,
 * `loaded` when the fetch has ended and the sequence waits for device blocks.
 */
export interface FetchStages {
  readonly waiting: number;
  readonly loading: number;
  readonly loaded: number;
}

/** Counts the sequences by stage; those that fetch nothing, or run, are in none. */
export function fetchStages(waiting: readonly Sequence[], held: readonly Sequence[]): FetchStages {
  const stages = { waiting: 0, loading: 0, loaded: 0 };
  for (const { request, isFetching } of waiting)
    if (isFetching) stages.waiting++;
    else if (request.isFetching) stages.loaded++;
  for (const { state } of held) if (state.kind === 'loading') stages.loading++;
  return stages;
}

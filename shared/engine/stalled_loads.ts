/**
 * Notices when every sequence that holds device blocks waits for blocks of other instances, and none arrive.
 *
 * Such a wait may never end by itself. Two instances can each hold blocks for a sequence whose missing blocks are computed by a prefill
 * at the other instance, while that prefill waits there for device blocks. The scheduler then gives the blocks to a sequence that can go
 * on; the one that loads is preempted, and keeps its fetch.
 */
import type { FetchedBlocks } from './fetched_blocks.ts';
import type { Sequence } from './sequence.ts';

/**
 * Milliseconds without an arrival after which a sequence that loads counts as stalled. A preemption throws away blocks that have
 * arrived, so this is longer than the pauses of a network, and than the usual time of a step in which a prefill computes blocks.
 */
export const STALLED_MS = 2_000;

/** Progress of one admission, and the time in ms at which it last changed. */
interface Seen {
  readonly progress: number;
  readonly sinceMs: number;
}

/** Measures how long sequences that hold device blocks have loaded without an arrival. */
export class StalledLoads {
  /** Keyed by the blocks that arrive for one admission, so that a further admission starts anew. */
  readonly #seen = new WeakMap<FetchedBlocks, Seen>();

  /**
   * Returns the milliseconds until all of `held` are stalled if nothing arrives meanwhile: 0 when they are. Undefined when one of them can
   * go on by itself, because it runs, or loads blocks from this process's own host memory.
   */
  msLeft(held: readonly Sequence[], nowMs: number): number | undefined {
    let leftMs = 0;
    for (const { state, cursor, isFetching } of held) {
      if (state.kind !== 'loading' || !isFetching) return undefined;
      const { fetched } = state;
      const progress = fetched.numArrived + cursor.submitted;
      let seen = this.#seen.get(fetched);
      if (seen?.progress !== progress) {
        seen = { progress, sinceMs: nowMs };
        this.#seen.set(fetched, seen);
      }
      leftMs = Math.max(leftMs, seen.sinceMs + STALLED_MS - nowMs);
    }
    return leftMs;
  }
}

/**
 * How long device blocks stay: from allocation to eviction, since their last use, and between two uses. Only one block of several is
 * followed, as in vLLM, so that the hits of long prompts cost nothing more.
 *
 *   allocated ──accessed──► accessed ──► … ──► evicted: lifetime, idle time, and the gaps between the last uses
 */
import type { Clock } from '../base/clock.ts';
import { BucketCounts } from '../base/bucket_counts.ts';
import { residencyBuckets, type ResidencyState } from '../protocol/engine_histograms.ts';

/** One block of this many is followed, where the pool is large enough for MIN_FOLLOWED. */
const SAMPLE = 16;
const MIN_FOLLOWED = 64;
/** Uses of a block that are kept for the gaps between them, the last ones. */
const MAX_USES = 4;

interface Followed {
  bornMs: number;
  lastMs: number;
  readonly uses: number[];
}

/** Follows a sample of a pool's blocks from allocation to eviction. */
export class BlockResidency {
  readonly #clock: Clock;
  readonly #every: number;
  /** Followed blocks by their index over `#every`; bounded by the pool (P1). */
  readonly #followed: (Followed | undefined)[] = [];
  readonly #lifetime = new BucketCounts(residencyBuckets);
  readonly #idle = new BucketCounts(residencyBuckets);
  readonly #gap = new BucketCounts(residencyBuckets);
  /** The state as it was last read; undefined after a change. */
  #state: ResidencyState | undefined;

  constructor(numBlocks: number, clock: Clock) {
    this.#clock = clock;
    this.#every = Math.max(1, Math.min(SAMPLE, Math.floor(numBlocks / MIN_FOLLOWED)));
  }

  allocated(block: number): void {
    if (block % this.#every !== 0) return;
    const nowMs = this.#clock.nowMs();
    this.#followed[block / this.#every] = { bornMs: nowMs, lastMs: nowMs, uses: [] };
  }

  /** Records that a sequence has hit the block. */
  accessed(block: number): void {
    const followed = block % this.#every === 0 ? this.#followed[block / this.#every] : undefined;
    if (!followed) return;
    followed.lastMs = this.#clock.nowMs();
    followed.uses.push(followed.lastMs);
    if (followed.uses.length > MAX_USES) followed.uses.shift();
  }

  evicted(block: number): void {
    const followed = block % this.#every === 0 ? this.#followed[block / this.#every] : undefined;
    if (!followed) return;
    this.#followed[block / this.#every] = undefined;
    const nowMs = this.#clock.nowMs();
    this.#lifetime.observe((nowMs - followed.bornMs) / 1_000);
    this.#idle.observe((nowMs - followed.lastMs) / 1_000);
    followed.uses.forEach((ms, i) => {
      const before = followed.uses[i - 1];
      if (before !== undefined) this.#gap.observe((ms - before) / 1_000);
    });
    this.#state = undefined;
  }

  /** The histograms of all evictions so far, in seconds; the same object until a followed block is evicted. */
  get state(): ResidencyState {
    const state = this.#state ?? {
      blockLifetime: this.#lifetime.state,
      blockIdle: this.#idle.state,
      blockReuseGap: this.#gap.state,
    };
    this.#state = state;
    return state;
  }
}

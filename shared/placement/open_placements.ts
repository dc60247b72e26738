/**
 * Calls that this router has placed at an instance and not heard the end of, with their work. A heartbeat names the last placement that
 * the instance had seen; later ones are not yet in its own queue length and work.
 */
import { stepMs, type InstanceWork } from '../protocol/instance_work.ts';

/**
 * Last placement number of a router. All its instances share the counter, so that an instance that returns has seen only earlier
 * numbers.
 */
export interface Placements {
  last: number;
}

/** Work that one call brings to an instance, or the sum of several calls. */
export interface PlacedWork {
  /** Rows of prompts that the instance computes for the call, their attended pairs, and the number of prompts. */
  readonly prompts: { readonly tokens: number; readonly pairs: number; readonly sequences: number };
  /** Sequences that generate later, tokens of KV that a step of theirs reads, and device blocks that the call needs to begin. */
  readonly coming: { readonly sequences: number; readonly contextTokens: number; readonly blocks: number };
}

/** Work of a call that brings none. */
export const NO_WORK: PlacedWork = {
  prompts: { tokens: 0, pairs: 0, sequences: 0 },
  coming: { sequences: 0, contextTokens: 0, blocks: 0 },
};

/** Open calls of this router at one instance, numbered in the order of placement. */
export class OpenPlacements {
  readonly #placements: Placements;
  /** Numbers of the open calls. */
  readonly #open = new Set<number>();
  /** Work of the open calls after the last one that the instance had seen, by number, ascending. */
  readonly #unreported = new Map<number, PlacedWork>();
  /** Last result of {@link addedTo}, and what it was made of. */
  #sum: { readonly reported: InstanceWork; readonly placed: PlacedWork; readonly work: InstanceWork } | undefined;
  /** Sum over `#unreported`. */
  #work = NO_WORK;
  /** The last placement that the instance had seen at its last heartbeat. */
  #seen = 0;

  constructor(placements: Placements) {
    this.#placements = placements;
  }

  get size(): number {
    return this.#open.size;
  }

  /** Open calls placed after the last one that the instance had seen, and so not yet in its own queue length. */
  get numUnreported(): number {
    return this.#unreported.size;
  }

  /** Work of the calls that {@link numUnreported} counts. Another object after each change. */
  get work(): PlacedWork {
    return this.#work;
  }

  /**
   * Returns the work that an instance reports together with that of the calls which it had not seen by then. The same object while
   * neither changes.
   */
  addedTo(reported: InstanceWork): InstanceWork {
    if (this.numUnreported === 0) return reported;
    const placed = this.#work;
    if (this.#sum?.reported !== reported || this.#sum.placed !== placed)
      this.#sum = { reported, placed, work: withPlaced(reported, placed) };
    return this.#sum.work;
  }

  /** Adds a call that is placed at the instance. Returns the placement number. */
  add(work: PlacedWork): number {
    const placement = ++this.#placements.last;
    this.#open.add(placement);
    this.#unreported.set(placement, work);
    this.#work = plus(this.#work, work, 1);
    return placement;
  }

  /** Records that the call with this placement number has ended. */
  end(placement: number): void {
    if (this.#open.delete(placement)) this.#report(placement);
  }

  /** Records the last placement that the instance had seen at a heartbeat. A late heartbeat with a smaller number does not set it back. */
  seen(last: number): void {
    this.#seen = Math.max(this.#seen, last);
    for (const placement of this.#unreported.keys()) {
      if (placement > this.#seen) return;
      this.#report(placement);
    }
  }

  #report(placement: number): void {
    const work = this.#unreported.get(placement);
    if (!work) return;
    this.#unreported.delete(placement);
    // From zero again where possible, so that no rounding of large sums of pairs stays.
    this.#work = this.#unreported.size === 0 ? NO_WORK : plus(this.#work, work, -1);
  }
}

/** Returns the sum of both, or with `sign` -1 the difference. */
function plus({ prompts, coming }: PlacedWork, other: PlacedWork, sign: 1 | -1): PlacedWork {
  return {
    prompts: {
      tokens: prompts.tokens + sign * other.prompts.tokens,
      pairs: prompts.pairs + sign * other.prompts.pairs,
      sequences: prompts.sequences + sign * other.prompts.sequences,
    },
    coming: {
      sequences: coming.sequences + sign * other.coming.sequences,
      contextTokens: coming.contextTokens + sign * other.coming.contextTokens,
      blocks: coming.blocks + sign * other.coming.blocks,
    },
  };
}

/**
 * Returns the work of an instance with the placements that its heartbeat does not count. They take free blocks while no sequence waits
 * for some, and wait for those that are not free.
 */
function withPlaced(work: InstanceWork, { prompts, coming }: PlacedWork): InstanceWork {
  const { step, chunkTokens, freeBlocks, waitingBlocks } = work;
  const taken = waitingBlocks > 0 ? 0 : Math.min(Math.max(0, freeBlocks), coming.blocks);
  const rows = { rows: prompts.tokens, pairs: prompts.pairs, contextTokens: 0, sequences: 0 };
  const numSteps = Math.ceil(prompts.tokens / Math.max(1, chunkTokens));
  return {
    ...work,
    prompts: {
      tokens: work.prompts.tokens + prompts.tokens,
      pairs: work.prompts.pairs + prompts.pairs,
      sequences: work.prompts.sequences + prompts.sequences,
    },
    coming: {
      sequences: work.coming.sequences + coming.sequences,
      contextTokens: work.coming.contextTokens + coming.contextTokens,
    },
    freeBlocks: freeBlocks - taken,
    waitingBlocks: waitingBlocks + coming.blocks - taken,
    promptsMs: work.promptsMs + stepMs({ ...step, constantMs: step.constantMs * numSteps }, rows),
  };
}

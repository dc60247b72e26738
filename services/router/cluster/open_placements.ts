/**
 * Calls that this router has placed at an instance and not heard the end of. A heartbeat names the last placement that the instance had seen;
 * later ones are not yet in its own queue length.
 */

/**
 * Last placement number of a router. All its instances share the counter, so that an instance that returns has seen only earlier
 * numbers.
 */
export interface Placements {
  last: number;
}

/** Open calls of this router at one instance, numbered in the order of placement. */
export class OpenPlacements {
  readonly #placements: Placements;
  /** Numbers of the open calls, ascending. */
  readonly #open = new Set<number>();
  /** The last placement that the instance had seen at its last heartbeat. */
  #seen = 0;
  #numUnreported = 0;

  constructor(placements: Placements) {
    this.#placements = placements;
  }

  get size(): number {
    return this.#open.size;
  }

  /** Open calls placed after the last one that the instance had seen, and so not yet in its own queue length. */
  get numUnreported(): number {
    return this.#numUnreported;
  }

  /** Adds a call that is placed at the instance. Returns the placement number. */
  add(): number {
    const placement = ++this.#placements.last;
    this.#open.add(placement);
    this.#numUnreported++;
    return placement;
  }

  /** Records that the call with this placement number has ended. */
  end(placement: number): void {
    if (this.#open.delete(placement) && placement > this.#seen) this.#numUnreported--;
  }

  /** Records the last placement that the instance had seen at a heartbeat. A late heartbeat with a smaller number does not set it back. */
  seen(last: number): void {
    this.#seen = Math.max(this.#seen, last);
    this.#numUnreported = [...this.#open].filter((placement) => placement > this.#seen).length;
  }
}

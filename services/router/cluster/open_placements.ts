/**
 * Calls that this router has placed at an instance and not heard the end of. A heartbeat names the last placement that the instance had seen;
 * later ones are not yet in its own queue length.
 */

/** Counts the placements of a router, at all instances: an instance that comes back has seen earlier ones. */
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

  /** A call goes there. @returns its number. */
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

  /** A heartbeat says which placement the instance had seen last; a late heartbeat says less than was known. */
  seen(last: number): void {
    this.#seen = Math.max(this.#seen, last);
    this.#numUnreported = [...this.#open].filter((placement) => placement > this.#seen).length;
  }
}

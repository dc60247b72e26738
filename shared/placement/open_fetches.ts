/**
 * Bytes that placed requests are still to fetch, by reader and by holder: a further fetch shares their links.
 *
 *   placement ──sources──► begin ──► bytes of its reader, of each holder ──► price of the next fetch
 *   prompt computed, or call ended ──► end
 */
import type { Source } from '../protocol/messages.ts';

/** Bytes of open fetches. */
export interface FetchingBytes {
  /** Keys are ids of the instances that fetch. */
  readonly byReader: Readonly<Record<string, number>>;
  /** Keys are addresses of the holders. */
  readonly byHolder: Readonly<Record<string, number>>;
}

/** Open fetches of one model's requests, which the placed calls of this router bound (P1). */
export class OpenFetches {
  readonly #byReader = new Map<string, number>();
  readonly #byHolder = new Map<string, number>();
  #numOpen = 0;

  /** Returns the bytes as they are now: a copy, which a logged decision keeps. */
  get bytes(): FetchingBytes {
    return { byReader: Object.fromEntries(this.#byReader), byHolder: Object.fromEntries(this.#byHolder) };
  }

  /** Number of open fetches: zero when no request is in flight (R2). */
  get numOpen(): number {
    return this.#numOpen;
  }

  /**
   * Records that the instance `reader` fetches the blocks of `sources`. Returns the function that ends the fetch; a second call does
   * nothing.
   */
  begin(reader: string, sources: readonly Source[], blockBytes: number): () => void {
    const parts = sources.map(({ address, start, end }) => ({ address, bytes: (end - start) * blockBytes }));
    const count = (sign: 1 | -1): void => {
      for (const { address, bytes } of parts) {
        add(this.#byReader, reader, sign * bytes);
        add(this.#byHolder, address, sign * bytes);
      }
    };
    count(1);
    this.#numOpen++;
    let isOpen = true;
    return () => {
      if (!isOpen) return;
      isOpen = false;
      this.#numOpen--;
      count(-1);
    };
  }
}

/** Adds to a sum; one that is zero is deleted. */
function add(sums: Map<string, number>, key: string, bytes: number): void {
  const sum = (sums.get(key) ?? 0) + bytes;
  if (sum > 0) sums.set(key, sum);
  else sums.delete(key);
}

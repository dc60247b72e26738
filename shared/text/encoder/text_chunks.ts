/** Cache of encoded text chunks: a text that begins like an earlier one is not encoded again. */

/** Approximate length of a text chunk in UTF-16 code units. The CHUNK + BEHIND code units from a chunk's start are its cache key. */
export const CHUNK = 4_096;
/**
 * Length, in UTF-16 code units, of the text after a chunk that belongs to the cache key: this text decides where the chunk's last
 * pretoken ends.
 */
export const BEHIND = 128;
/** Code units of all cache keys together, at most (P1). */
const MAX_CHARACTERS = 16 * 2 ** 20;

/** Returns a copy of a substring, which would otherwise keep the whole text in memory. */
export function ownCopy(part: string): string {
  return ` ${part}`.slice(1);
}

/** An encoded chunk of text: its length in UTF-16 code units and its token ids. */
export interface TextChunk {
  readonly length: number;
  readonly ids: Uint32Array;
}

/** Cache of encoded chunks by key. The least recently used chunks are evicted when all keys together exceed MAX_CHARACTERS (P1). */
export class TextChunkCache {
  readonly #chunks = new Map<string, TextChunk>();
  #characters = 0;

  get(key: string): TextChunk | undefined {
    const known = this.#chunks.get(key);
    if (!known) return undefined;
    this.#chunks.delete(key);
    this.#chunks.set(key, known);
    return known;
  }

  /** Adds a chunk, and evicts the least recently used ones beyond MAX_CHARACTERS. */
  keep(key: string, chunk: TextChunk): void {
    if (this.#chunks.has(key)) return;
    this.#chunks.set(ownCopy(key), chunk);
    this.#characters += key.length;
    for (const oldest of this.#chunks.keys()) {
      if (this.#characters <= MAX_CHARACTERS) return;
      this.#chunks.delete(oldest);
      this.#characters -= oldest.length;
    }
  }
}

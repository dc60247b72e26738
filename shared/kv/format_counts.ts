/** Counts how many records of each format a tier has. Bounded (P1) by the number of records: a format without a record is removed. */
import type { Digest } from './block_key.ts';

/** Records of one format. */
export interface FormatCount {
  readonly blocks: number;
  /** Bytes of the records, preambles included. */
  readonly bytes: number;
}

/** Counts records and their bytes by format. */
export class FormatCounts {
  readonly #counts = new Map<Digest, { blocks: number; bytes: number }>();

  add(format: Digest, bytes: number): void {
    const count = this.#counts.get(format) ?? { blocks: 0, bytes: 0 };
    this.#counts.set(format, count);
    count.blocks++;
    count.bytes += bytes;
  }

  remove(format: Digest, bytes: number): void {
    const count = this.#counts.get(format);
    if (!count) return;
    count.blocks--;
    count.bytes -= bytes;
    if (count.blocks === 0) this.#counts.delete(format);
  }

  /** Returns the counts of the formats with the most bytes, at most `most` of them, by format digest. */
  largest(most: number): Record<string, FormatCount> {
    const byBytes = [...this.#counts].sort(([, a], [, b]) => b.bytes - a.bytes);
    return Object.fromEntries(byBytes.slice(0, most).map(([format, count]) => [format, { ...count }]));
  }
}

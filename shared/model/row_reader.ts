/** Reads rows of files a slice at a time, with the next slices read ahead. Hashes of all that was read form the model's fingerprint. */
import { createHash } from 'node:crypto';
import type { FileHandle } from 'node:fs/promises';
import { xxh64 } from '../base/xxh64.ts';
import { readFully } from './read_fully.ts';

/** Slices that the I/O threads read ahead of the one in use. */
const AHEAD = 3;
/** Bytes of one part of a tensor that is read whole; all parts are read at once. */
const PART_BYTES = 2 << 20;

/** Consecutive rows of a file: `numRows` rows of `rowBytes` bytes, read `rowsPerSlice` at a time. */
export interface RowRange {
  readonly file: FileHandle;
  /** For messages. */
  readonly path: string;
  /** Byte offset of the first row in the file. */
  readonly start: number;
  readonly rowBytes: number;
  readonly numRows: number;
  readonly rowsPerSlice: number;
}

interface Slice {
  readonly rowStart: number;
  /** Bytes of the rows, valid until the next slice is requested. */
  readonly bytes: Buffer<ArrayBuffer>;
}

/** Reads rows a few slices ahead of their use, and hashes every slice for the model's fingerprint. */
export class RowReader {
  /** Buffers of finished runs, for the next run. */
  readonly #free: Buffer<ArrayBuffer>[] = [];
  /** Bytes that have been read and returned so far. */
  doneBytes = 0;
  /** SHA-256 over the hashes of all slices of a run that was read to its end, by the run's label. */
  readonly #hashes = new Map<string, string>();

  /** Yields the rows of `run` in slices, in order, and records their hash under `label`. @throws ModelError when the file ends before. */
  async *slices(run: RowRange, label: string): AsyncGenerator<Slice> {
    const { rowBytes, numRows, rowsPerSlice } = run;
    const numSlices = Math.ceil(numRows / rowsPerSlice);
    const buffers = this.#take(Math.min(AHEAD + 1, numSlices), Math.min(rowsPerSlice, numRows) * rowBytes);
    const hashes = new BigUint64Array(numSlices);
    /** Reads of the next slices, in order. */
    const reads = buffers.map((buffer, slice) => begun(readSlice(buffer, run, slice)));
    try {
      for (let slice = 0; slice < numSlices; slice++) {
        const [next] = reads;
        if (!next) break;
        const { buffer, bytes } = await next;
        hashes[slice] = xxh64(bytes);
        this.doneBytes += bytes.length;
        yield { rowStart: slice * rowsPerSlice, bytes };
        void reads.shift();
        const later = slice + buffers.length;
        if (later < numSlices) reads.push(begun(readSlice(buffer, run, later)));
      }
      this.#note(label, hashes);
    } finally {
      // All reads end first: when a file is closed while it is read, its descriptor may be another file’s by then.
      await Promise.allSettled(reads);
      this.#free.push(...buffers);
    }
  }

  /**
   * Returns all rows of a run in memory of their own; hashed in the same slices as {@link slices}. @throws ModelError when the file
   * ends before.
   */
  async whole({ file, path, start, ...run }: RowRange, label: string): Promise<Uint8Array<ArrayBuffer>> {
    const numBytes = run.numRows * run.rowBytes;
    const bytes = new Uint8Array(numBytes);
    const reads: Promise<void>[] = [];
    for (let from = 0; from < numBytes; from += PART_BYTES) {
      const part = Buffer.from(bytes.buffer, from, Math.min(PART_BYTES, numBytes - from));
      reads.push(readFully(file, part, start + from, path));
    }
    // All reads end first: when a file is closed while it is read, its descriptor may be another file’s by then.
    await Promise.allSettled(reads);
    await Promise.all(reads);
    const sliceBytes = run.rowsPerSlice * run.rowBytes;
    const numSlices = numBytes === 0 ? 0 : Math.ceil(numBytes / sliceBytes);
    const hashes = BigUint64Array.from({ length: numSlices }, (_, slice) =>
      xxh64(bytes.subarray(slice * sliceBytes, (slice + 1) * sliceBytes)),
    );
    this.#note(label, hashes);
    this.doneBytes += numBytes;
    return bytes;
  }

  #note(label: string, hashes: BigUint64Array): void {
    this.#hashes.set(label, createHash('sha256').update(hashes).digest('hex'));
  }

  /**
   * Returns SHA-256 over `seed` and the XXH64 hashes of all slices read: differs between models, and between a damaged file and an
   * intact one.
   */
  fingerprint(seed: string): string {
    const hash = createHash('sha256').update(seed);
    for (const rows of [...this.#hashes.keys()].sort()) hash.update(`\n${rows} ${this.#hashes.get(rows)}`);
    return hash.digest('hex');
  }

  #take(count: number, bytes: number): Buffer<ArrayBuffer>[] {
    const taken = this.#free.splice(0, count);
    return Array.from({ length: count }, (_, i) => {
      const buffer = taken[i];
      return buffer && buffer.length >= bytes ? buffer : Buffer.from(new ArrayBuffer(bytes));
    });
  }
}

/** Returns the read itself, marked as handled: a failure before the read is awaited must not count as an unhandled rejection. */
function begun<T>(read: Promise<T>): Promise<T> {
  read.catch(() => undefined);
  return read;
}

async function readSlice(
  buffer: Buffer<ArrayBuffer>,
  run: RowRange,
  slice: number,
): Promise<{ readonly buffer: Buffer<ArrayBuffer>; readonly bytes: Buffer<ArrayBuffer> }> {
  const { file, path, start, rowBytes, numRows, rowsPerSlice } = run;
  const first = slice * rowsPerSlice;
  const bytes = buffer.subarray(0, Math.min(rowsPerSlice, numRows - first) * rowBytes);
  await readFully(file, bytes, start + first * rowBytes, path);
  return { buffer, bytes };
}

/**
 * The file in which a store's records lie, one behind the other, each at a multiple of a page, as the thread that writes them sees it.
 * Which are there, and where, says the LMDB environment beside it: a record counts when its entry is committed, and its bytes are
 * another's only when the entry is gone.
 *
 * A file of its own, because a record then goes from the slab into the page cache and back in one copy by the kernel; LMDB's overflow
 * pages cost three, at a third of the speed.
 */
import { closeSync, constants, fstatSync, fsyncSync, openSync, writeSync } from 'node:fs';
import { ExtentAllocator } from '../../shared/kv/extent_allocator.ts';
import type { DiskEntry } from './disk_process.ts';

/** A record begins at one of its own. */
export const PAGE_BYTES = 4_096;

/** The file of records, and the free places in it. */
export class RecordsFile {
  readonly #file: number;
  readonly #places: ExtentAllocator;

  /** With the records of `entries` in it. @throws Error when it cannot be opened, or they are not in it, or overlap. */
  constructor(path: string, maxBytes: number, entries: readonly DiskEntry[]) {
    const used = entries.map(({ at, bytes }) => ({ start: at, end: at + bytes })).sort((a, b) => a.start - b.start);
    const end = used.at(-1)?.end ?? 0;
    // A smaller budget than before takes nothing from what is there.
    this.#places = new ExtentAllocator(Math.max(maxBytes, end + PAGE_BYTES), PAGE_BYTES, used);
    // Made when it is not there, never cut.
    this.#file = openSync(path, constants.O_RDWR | constants.O_CREAT);
    const { size } = fstatSync(this.#file);
    if (size >= end) return;
    this.close();
    throw new Error(`the file of records has ${size} bytes, and should have ${end} at least`);
  }

  /** Puts a record somewhere. @returns where. @throws Error, with ENOSPC when it does not fit; nothing is taken then. */
  write(record: Uint8Array): number {
    const at = this.#places.allocate(record.length);
    if (at === undefined) throw new Error('ENOSPC: the file of records has no place that is long enough');
    try {
      for (let done = 0; done < record.length;)
        done += writeSync(this.#file, record, done, record.length - done, at + done);
    } catch (error) {
      this.#places.release(at);
      throw error;
    }
    return at;
  }

  /** The places of records that no entry names any more. */
  free(places: readonly number[]): void {
    for (const at of places) this.#places.release(at);
  }

  /** Flushes everything written to the disk itself (fsync). */
  sync(): void {
    fsyncSync(this.#file);
  }

  close(): void {
    closeSync(this.#file);
  }
}

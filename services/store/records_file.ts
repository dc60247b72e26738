/**
 * The file of a store's records, one after another, each at a multiple of PAGE_BYTES; used by the thread that writes them. The LMDB
 * environment next to it has their keys and offsets. A record may be sealed (sealed_box.ts); its place has room for that either way. A record counts once its entry is committed, and its bytes are reused only after
 * its entry is removed.
 *
 * A file of its own lets the kernel move a record between slab and page cache with one copy. LMDB's overflow pages need three
 * copies, at a third of the speed.
 */
import { closeSync, constants, fstatSync, fsyncSync, openSync, writeSync } from 'node:fs';
import { ExtentAllocator } from '../../shared/kv/extent_allocator.ts';
import type { DiskEntry } from './disk_process.ts';
import { overwrite } from './erase.ts';
import { SEAL_BYTES, type Sealer } from './sealed_box.ts';

/** Page size in bytes. Every record begins at a page boundary, so no two records share a page. */
export const PAGE_BYTES = 4_096;
/** Bytes that are encrypted or decrypted at a time: they stay in the processor's cache. */
export const CRYPTED_BYTES = 64 << 10;

/** The file of records, and the free places in it. */
export class RecordsFile {
  readonly #file: number;
  readonly #extents: ExtentAllocator;

  /**
   * Opens or creates the file, and marks the ranges of `entries` as used. @throws Error when the file cannot be opened or is too short
   * for the entries, or when entries overlap.
   */
  constructor(path: string, maxBytes: number, entries: readonly DiskEntry[]) {
    const used = entries
      .map(({ at, bytes }) => ({ start: at, end: at + SEAL_BYTES + bytes }))
      .sort((a, b) => a.start - b.start);
    const end = used.at(-1)?.end ?? 0;
    // A budget that is smaller than the stored records removes none of them.
    this.#extents = new ExtentAllocator(Math.max(maxBytes, end + PAGE_BYTES), PAGE_BYTES, used);
    // Creates the file when it is absent, for this user alone, and never truncates it.
    this.#file = openSync(path, constants.O_RDWR | constants.O_CREAT, 0o600);
    const { size } = fstatSync(this.#file);
    // The last record may be in clear, and has no room for a seal in front of it then.
    if (size >= end - SEAL_BYTES) return;
    this.close();
    throw new Error(`the file of records has ${size} bytes, and should have ${end} at least`);
  }

  /**
   * Writes a record into a free range, sealed by what `sealerAt` returns for its offset, unless that is undefined. @returns its byte offset.
   * @throws Error, with ENOSPC when no range is long enough; no range stays allocated then.
   */
  write(record: Uint8Array, sealerAt: (at: number) => Sealer | undefined): number {
    const at = this.#extents.allocate(SEAL_BYTES + record.length);
    if (at === undefined) throw new Error('ENOSPC: the file of records has no place that is long enough');
    try {
      const sealer = sealerAt(at);
      if (sealer) this.#writeSealed(record, at, sealer);
      else this.#writeAll(record, at);
    } catch (error) {
      this.#extents.release(at);
      throw error;
    }
    return at;
  }

  #writeAll(bytes: Uint8Array, at: number): void {
    for (let done = 0; done < bytes.length;) done += writeSync(this.#file, bytes, done, bytes.length - done, at + done);
  }

  #writeSealed(record: Uint8Array, at: number, sealer: Sealer): void {
    if (record.length <= CRYPTED_BYTES) {
      const part = sealer.update(record);
      this.#writeAll(Buffer.concat([sealer.end(), part]), at);
      return;
    }
    for (let done = 0; done < record.length; done += CRYPTED_BYTES)
      this.#writeAll(sealer.update(record.subarray(done, done + CRYPTED_BYTES)), at + SEAL_BYTES + done);
    this.#writeAll(sealer.end(), at);
  }

  /** Overwrites these ranges with zeros, and flushes them to the disk. */
  erase(ranges: readonly Pick<DiskEntry, 'at' | 'bytes'>[]): void {
    for (const { at, bytes } of ranges) overwrite(this.#file, bytes, at);
    if (ranges.length > 0) this.sync();
  }

  /** Frees the ranges at these byte offsets, whose records no entry names any more. */
  free(offsets: readonly number[]): void {
    for (const at of offsets) this.#extents.release(at);
  }

  /** Flushes everything written to the disk itself (fsync). */
  sync(): void {
    fsyncSync(this.#file);
  }

  close(): void {
    closeSync(this.#file);
  }
}

/**
 * The file in which a store's records lie, one behind the other, each at a multiple of a page. Which are there, and where, says the LMDB
 * environment beside it: a record counts when its entry is committed, and its bytes are another's only when the entry is gone.
 *
 * A file of its own, because a record then goes from the slab into the page cache and back in one copy by the kernel; LMDB's overflow
 * pages cost three, at a third of the speed.
 */
import { close, constants, fstat, fsync, open, read, write } from 'node:fs';
import { promisify } from 'node:util';
import { Stretches } from '../../shared/kv/stretches.ts';
import type { DiskEntry } from './disk_process.ts';

const PAGE_BYTES = 4_096;

const [openFile, closeFile, syncFile, statOf] = [promisify(open), promisify(close), promisify(fsync), promisify(fstat)];
const [readFrom, writeTo] = [promisify(read), promisify(write)];

export class RecordsFile {
  readonly #file: number;
  readonly #places: Stretches;
  /** Places that are being read, how often. */
  readonly #reading = new Map<number, number>();
  /** Of those, the ones that are nobody's afterwards. */
  readonly #leaving = new Set<number>();
  /** Reads and writes that the kernel works on. */
  #numBusy = 0;
  #isClosed = false;

  private constructor(file: number, places: Stretches) {
    this.#file = file;
    this.#places = places;
  }

  /** With the records of `entries` in it. @throws Error when it cannot be opened, or they are not in it, or overlap. */
  static async open(path: string, maxBytes: number, entries: readonly DiskEntry[]): Promise<RecordsFile> {
    const used = entries.map(({ at, bytes }) => ({ start: at, end: at + bytes })).sort((a, b) => a.start - b.start);
    const end = used.at(-1)?.end ?? 0;
    // A smaller budget than before takes nothing from what is there.
    const places = new Stretches(Math.max(maxBytes, end + PAGE_BYTES), PAGE_BYTES, used);
    // Made when it is not there, never cut.
    const file = await openFile(path, constants.O_RDWR | constants.O_CREAT);
    const { size } = await statOf(file);
    if (size >= end) return new RecordsFile(file, places);
    await closeFile(file);
    throw new Error(`the file of records has ${size} bytes, and should have ${end} at least`);
  }

  /** Puts a record somewhere. @returns where. @throws Error, with ENOSPC when it does not fit; nothing is taken then. */
  async write(record: Uint8Array): Promise<number> {
    const at = this.#places.allocate(record.length);
    if (at === undefined) throw new Error('ENOSPC: the file of records has no place that is long enough');
    try {
      for (let done = 0; done < record.length;) {
        const rest = record.length - done;
        const { bytesWritten } = await this.#busy(() => writeTo(this.#file, record, done, rest, at + done));
        done += bytesWritten;
      }
    } catch (error) {
      this.#places.release(at);
      throw error;
    }
    return at;
  }

  /** Into `target`. @returns whether all of it was there. */
  async read(at: number, target: Uint8Array): Promise<boolean> {
    this.#reading.set(at, (this.#reading.get(at) ?? 0) + 1);
    try {
      for (let done = 0; done < target.length;) {
        const rest = target.length - done;
        const { bytesRead } = await this.#busy(() => readFrom(this.#file, target, done, rest, at + done));
        if (bytesRead === 0) return false;
        done += bytesRead;
      }
      return true;
    } finally {
      const left = (this.#reading.get(at) ?? 1) - 1;
      if (left > 0) this.#reading.set(at, left);
      else this.#reading.delete(at);
      if (left === 0 && this.#leaving.delete(at)) this.#places.release(at);
    }
  }

  /** The places of records that no entry names any more, when nobody reads them. */
  free(places: readonly number[]): void {
    for (const at of places) {
      if (this.#reading.has(at)) this.#leaving.add(at);
      else this.#places.release(at);
    }
  }

  /** What was written is on the disk itself. */
  async sync(): Promise<void> {
    await this.#busy(() => syncFile(this.#file));
  }

  /** When nothing reads or writes it any more; what begins from now on fails. */
  close(): void {
    this.#isClosed = true;
    this.#closeWhenIdle();
  }

  #closeWhenIdle(): void {
    // Nothing was promised of it.
    if (this.#isClosed && this.#numBusy === 0) closeFile(this.#file).catch(() => undefined);
  }

  /** Its number is not another file's while the kernel works on it. */
  async #busy<T>(work: () => Promise<T>): Promise<T> {
    if (this.#isClosed) throw new Error('EAGAIN: the file of records is being opened again');
    this.#numBusy++;
    try {
      return await work();
    } finally {
      this.#numBusy--;
      this.#closeWhenIdle();
    }
  }
}

/**
 * Queue of the disk tier's reads, dealt to the reader threads. Reads that are requested while all readers are busy share one message.
 * Bounded (P1) by the callers: each has acquired a slot for its record.
 */
import type { Thread } from '../../shared/base/threads.ts';
import type { DiskRead, DiskReader } from './disk_reader.ts';

/** Records in one message, at most: a few milliseconds of work. */
const MAX_READS = 16;
/** Bytes that one message should ask for. Reading fewer costs less than the message. */
const MIN_BYTES = 256 << 10;
/** Messages that one reader has at once, so that the next is waiting when it has finished one. */
const MAX_MESSAGES = 2;

/** The `generation`th file of records at `path`. A reader opens the path again when the generation changes. */
interface FileRef {
  readonly path: string;
  readonly generation: number;
}

interface Waiting {
  readonly read: DiskRead;
  readonly file: FileRef;
  readonly resolve: (fault: string | undefined) => void;
  readonly reject: (error: unknown) => void;
}

type Reader = Pick<Thread<DiskReader>, 'call'>;

interface Busy {
  readonly thread: Reader;
  numMessages: number;
}

/** Queue of disk reads, which are sent to the reader threads in batches. */
export class DiskReads {
  readonly #readers: readonly Busy[];
  readonly #queue: Waiting[] = [];

  constructor(readers: readonly Reader[]) {
    this.#readers = readers.map((thread) => ({ thread, numMessages: 0 }));
  }

  /**
   * Reads a record into its slot. Returns undefined when the record is present and valid, else what is wrong with it. @throws Error when
   * the file cannot be opened.
   */
  read(read: DiskRead, file: FileRef): Promise<string | undefined> {
    const done = new Promise<string | undefined>((resolve, reject) => {
      this.#queue.push({ read, file, resolve, reject });
    });
    this.#dispatch();
    return done;
  }

  #dispatch(): void {
    for (let first = this.#queue[0]; first; first = this.#queue[0]) {
      const reader = this.#readers.reduce((best, one) => (one.numMessages < best.numMessages ? one : best));
      if (reader.numMessages >= MAX_MESSAGES) return;
      // The queue is divided evenly among the readers; one message has reads of one file only.
      const fewest = Math.floor(MIN_BYTES / first.read.bytes);
      const share = Math.min(MAX_READS, Math.max(fewest, Math.ceil(this.#queue.length / this.#readers.length)));
      const { generation } = first.file;
      const other = this.#queue.findIndex(({ file }) => file.generation !== generation);
      void this.#send(reader, first.file, this.#queue.splice(0, other < 0 ? share : Math.min(share, other)));
    }
  }

  async #send(reader: Busy, file: FileRef, batch: readonly Waiting[]): Promise<void> {
    reader.numMessages++;
    try {
      const faults = await reader.thread.call('read', { ...file, reads: batch.map(({ read }) => read) });
      batch.forEach(({ resolve }, i) => {
        resolve(faults[i]);
      });
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
    reader.numMessages--;
    this.#dispatch();
  }
}

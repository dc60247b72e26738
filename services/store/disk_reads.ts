/**
 * Reads of the disk tier, dealt to its readers: what is asked for while they are busy goes in one message. Bounded (P1) by those who ask:
 * each holds a slot for its record.
 */
import type { Thread } from '../../shared/base/threads.ts';
import type { DiskRead, DiskReader } from './disk_reader.ts';

/** Records in one message; a few milliseconds. */
const MAX_READS = 16;
/** Less in one message would be less work than the message. */
const MIN_BYTES = 256 << 10;
/** Messages to a reader at once: the next is there when it is through with one. */
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
   * Reads a record into its slot. Returns undefined when the record is there and sound, else what is wrong with it. @throws Error when
   * the file cannot be opened.
   */
  read(read: DiskRead, file: FileRef): Promise<string | undefined> {
    const done = new Promise<string | undefined>((resolve, reject) => {
      this.#queue.push({ read, file, resolve, reject });
    });
    this.#deal();
    return done;
  }

  #deal(): void {
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
    this.#deal();
  }
}

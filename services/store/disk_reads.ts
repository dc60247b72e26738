/**
 * Reads of the disk tier, dealt to its readers: what is asked for while they are busy goes in one message. Bounded (P1) by those who ask:
 * each holds a slot for its record.
 */
import type { Thread } from '../../shared/base/threads.ts';
import type { DiskRead, DiskReader } from './disk_reader.ts';

/** Records in one message; a few milliseconds. */
const MAX_READS = 16;
/** Messages to a reader at once: the next is there when it is through with one. */
const MAX_MESSAGES = 2;

interface Waiting {
  readonly read: DiskRead;
  readonly resolve: (fault: string | undefined) => void;
  readonly reject: (error: unknown) => void;
}

type Reader = Pick<Thread<DiskReader>, 'call'>;

export class DiskReads {
  readonly #readers: readonly { readonly thread: Reader; numMessages: number }[];
  readonly #queue: Waiting[] = [];

  constructor(readers: readonly Reader[]) {
    this.#readers = readers.map((thread) => ({ thread, numMessages: 0 }));
  }

  /** Undefined when it is in its slot and sound, else what is wrong with it. @throws Error when the file cannot be read. */
  read(read: DiskRead, file: { readonly path: string; readonly generation: number }): Promise<string | undefined> {
    const done = new Promise<string | undefined>((resolve, reject) => {
      this.#queue.push({ read, resolve, reject });
    });
    this.#deal(file);
    return done;
  }

  #deal(file: { readonly path: string; readonly generation: number }): void {
    while (this.#queue.length > 0) {
      const reader = this.#readers.reduce((best, one) => (one.numMessages < best.numMessages ? one : best));
      if (reader.numMessages >= MAX_MESSAGES) return;
      // What there is, shared out.
      const share = Math.min(MAX_READS, Math.ceil(this.#queue.length / this.#readers.length));
      void this.#send(reader, this.#queue.splice(0, share), file);
    }
  }

  async #send(
    reader: { readonly thread: Reader; numMessages: number },
    batch: readonly Waiting[],
    file: { readonly path: string; readonly generation: number },
  ): Promise<void> {
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
    this.#deal(file);
  }
}

/**
 * Copies records from memory that both ends of a data channel share into their slots, and verifies them there. Works in batches
 * between event-loop turns, so that asks are still sent meanwhile; a helper thread copies too where there is one.
 */
import type { Clock } from '../../base/clock.ts';
import { messageOf } from '../../base/failure.ts';
import type { BorrowedMemory, OwnMemory } from './host_memory.ts';
import { copyRecord, type CopyJob } from './record_copy.ts';

/** Bytes copied between two event-loop turns: some tenths of a millisecond. */
const BYTES_AT_ONCE = 2 << 20;
/** Bytes in one batch for the helper, and most batches it may have unfinished (P1). */
const HELPED_BYTES = 1 << 20;
const MAX_HELPED = 3;

/** One record to copy out of a holder's shared memory. */
export interface MemoryRead extends ChannelCopy {
  readonly stream: number;
  readonly memory: BorrowedMemory;
  /** Called once: 'received' when the copy is in its slot and usable unless `fault` is set, or 'given up' when the read was cancelled. */
  readonly done: (how: 'received' | 'given up', fault: string | undefined) => void;
}

/** Copy of one record out of the shared memory of a data channel. */
export interface ChannelCopy extends CopyJob {
  readonly channel: number;
}

/** Another thread that copies. */
export interface CopyHelper {
  /** Opens the shared memory of a data channel. Copies out of it may begin when the promise resolves to true. */
  open(channel: number, name: string): Promise<boolean>;
  /** Closes the memory of a data channel, after all copies that were requested before. */
  close(channel: number): Promise<void>;
  /** Copies and verifies records. @returns for each record the reason why it cannot be used, or undefined. */
  copy(jobs: readonly ChannelCopy[]): Promise<readonly (string | undefined)[]>;
}

/** Queue of records to copy from shared memory into their slots and verify there, on this thread and on a helper. */
export class MemoryReads {
  readonly #clock: Pick<Clock, 'turn'>;
  readonly #own: () => OwnMemory;
  readonly #helper: CopyHelper | undefined;
  /** Data channels whose memory the helper has open. */
  readonly #helped = new Set<number>();
  #waiting: MemoryRead[] = [];
  /** Batches that the helper is copying, each with the promise that its copies are done. */
  readonly #helping = new Map<readonly MemoryRead[], Promise<void>>();
  #isReading = false;

  constructor(clock: Pick<Clock, 'turn'>, own: () => OwnMemory, helper: CopyHelper | undefined) {
    this.#clock = clock;
    this.#own = own;
    this.#helper = helper;
  }

  open(channel: number, name: string): void {
    void this.#helper?.open(channel, name).then((isOpen) => {
      if (isOpen) this.#helped.add(channel);
    });
  }

  add(read: MemoryRead): void {
    this.#waiting.push(read);
    if (!this.#isReading) void this.#readAll();
  }

  /**
   * Cancels the waiting reads of a data channel, or of one of its streams. @returns undefined when none of their slots is being
   * written, else a promise that resolves once none is.
   */
  giveUp(channel: number, stream?: number): Promise<void> | undefined {
    const isOf = (read: MemoryRead): boolean =>
      read.channel === channel && (stream === undefined || read.stream === stream);
    const gone = this.#waiting.filter(isOf);
    this.#waiting = this.#waiting.filter((read) => !isOf(read));
    for (const { done } of gone) done('given up', undefined);
    const busy = [...this.#helping].flatMap(([reads, copied]) => (reads.some(isOf) ? [copied] : []));
    return busy.length > 0 ? Promise.all(busy).then(() => undefined) : undefined;
  }

  /** Closes the data channel's memory at the helper; call `giveUp` first. */
  close(channel: number): void {
    void this.#helper?.close(channel).then(() => this.#helped.delete(channel));
  }

  async #readAll(): Promise<void> {
    this.#isReading = true;
    // Reads added in the same event-loop turn are in the queue by then.
    await this.#clock.turn();
    while (this.#waiting.length > 0) {
      this.#share();
      for (let numBytes = 0; numBytes < BYTES_AT_ONCE;) {
        const read = this.#waiting.shift();
        if (!read) break;
        numBytes += read.bytes;
        read.done('received', copyRecord(this.#own(), read.memory, read));
      }
      await this.#clock.turn();
    }
    this.#isReading = false;
  }

  /**
   * Passes reads from the end of the queue to the helper, up to MAX_HELPED batches, so that it has the next batch ready when one is
   * done.
   */
  #share(): void {
    if (!this.#helper) return;
    while (this.#helping.size < MAX_HELPED && this.#waiting.length > 1) {
      const reads: MemoryRead[] = [];
      for (let numBytes = 0; numBytes < HELPED_BYTES && this.#waiting.length > 1;) {
        const last = this.#waiting.at(-1);
        if (!last || !this.#helped.has(last.channel)) break;
        this.#waiting.pop();
        reads.unshift(last);
        numBytes += last.bytes;
      }
      if (reads.length === 0) return;
      this.#helping.set(reads, this.#help(this.#helper, reads));
    }
  }

  async #help(helper: CopyHelper, reads: readonly MemoryRead[]): Promise<void> {
    const jobs = reads.map(({ channel, offset, slot, bytes, format, digest, frame }): ChannelCopy => {
      return { channel, offset, slot, bytes, format, digest, frame };
    });
    const faults = await helper.copy(jobs).catch((error: unknown) => reads.map(() => messageOf(error)));
    this.#helping.delete(reads);
    reads.forEach(({ done }, i) => {
      done('received', faults[i]);
    });
    this.#share();
  }
}

/**
 * A thread alongside a transfer thread that copies records for it out of memory that processes share: one thread alone cannot fill a
 * machine's memory bus.
 */
import type { SlabMemory } from '../../kv/slab.ts';
import { systemMemory, type BorrowedMemory, type OwnMemory } from './host_memory.ts';
import type { ChannelCopy } from './memory_reads.ts';
import { copyRecord } from './record_copy.ts';

class Copier {
  #own: OwnMemory | undefined;
  readonly #memories = new Map<number, BorrowedMemory>();

  attach(memory: SlabMemory): void {
    this.#own = systemMemory.attach(memory, false);
  }

  /** Opens the shared memory of a data channel's holder. @returns whether it can be opened from here. */
  open({ channel, name }: { readonly channel: number; readonly name: string }): boolean {
    const memory = systemMemory.open(name);
    if (memory) this.#memories.set(channel, memory);
    return memory !== undefined;
  }

  /** Copies and verifies records. @returns for each record the reason why it cannot be used, or undefined. */
  copy(jobs: readonly ChannelCopy[]): (string | undefined)[] {
    return jobs.map((job) => {
      const memory = this.#memories.get(job.channel);
      return this.#own && memory
        ? copyRecord(this.#own, memory, job)
        : `the memory of data channel ${job.channel} is not open`;
    });
  }

  close(channel: number): void {
    this.#memories.get(channel)?.close();
    this.#memories.delete(channel);
  }
}

/** Entry point of the copy thread: returns the methods that the transfer thread calls. */
export function start(): Copier {
  return new Copier();
}

/** A thread beside a mover that copies records for it out of memory that processes share: one thread alone cannot fill a machine's memory bus. */
import type { SlabMemory } from '../../kv/slab.ts';
import { systemMemory, type BorrowedMemory, type OwnMemory } from './host_memory.ts';
import { copyRecord, type CopyJob } from './record_copy.ts';

class Copier {
  #own: OwnMemory | undefined;
  readonly #memories = new Map<number, BorrowedMemory>();

  attach(memory: SlabMemory): void {
    this.#own = systemMemory.attach(memory, false);
  }

  /** @returns whether it is to be seen. */
  open({ lane, name }: { readonly lane: number; readonly name: string }): boolean {
    const memory = systemMemory.open(name);
    if (memory) this.#memories.set(lane, memory);
    return memory !== undefined;
  }

  /** @returns of each why it cannot be used. */
  copy({ lane, jobs }: { readonly lane: number; readonly jobs: readonly CopyJob[] }): (string | undefined)[] {
    const [own, memory] = [this.#own, this.#memories.get(lane)];
    if (!own || !memory) throw new Error(`the memory of lane ${lane} is not open`);
    return jobs.map((job) => copyRecord(own, memory, job));
  }

  close(lane: number): void {
    this.#memories.get(lane)?.close();
    this.#memories.delete(lane);
  }
}

export function start(): Copier {
  return new Copier();
}

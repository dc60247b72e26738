/**
 * Host memory for block records that threads share: equal slots in one SharedArrayBuffer.
 *
 * The owner (a control thread) allocates and frees; other threads only get slot numbers and write or read what they were
 * handed. Memory is zero pages until touched.
 */
import assert from 'node:assert/strict';

export interface SlabMemory {
  readonly buffer: SharedArrayBuffer;
  readonly slotBytes: number;
}

export class Slab {
  readonly memory: SlabMemory;
  readonly numSlots: number;
  readonly #free: number[];
  readonly #isFree: Uint8Array;

  constructor(slotBytes: number, numSlots: number) {
    this.memory = { buffer: new SharedArrayBuffer(slotBytes * numSlots), slotBytes };
    this.numSlots = numSlots;
    this.#free = Array.from({ length: numSlots }, (_, i) => numSlots - 1 - i);
    this.#isFree = new Uint8Array(numSlots).fill(1);
  }

  get numFree(): number {
    return this.#free.length;
  }

  /** A slot, or undefined when all are in use. */
  allocate(): number | undefined {
    const slot = this.#free.pop();
    if (slot !== undefined) this.#isFree[slot] = 0;
    return slot;
  }

  release(slot: number): void {
    assert(this.#isFree[slot] === 0, `slot ${slot} of ${this.numSlots} is not in use`);
    this.#isFree[slot] = 1;
    this.#free.push(slot);
  }
}

/** A slot's bytes, in any thread. */
export function slotBytes(memory: SlabMemory, slot: number): Uint8Array {
  return new Uint8Array(memory.buffer, slot * memory.slotBytes, memory.slotBytes);
}

/**
 * Host memory for block records that threads share: slots of any sizes in one SharedArrayBuffer.
 *
 * The owner (a control thread) allocates and frees; other threads only get slots and write or read what they were handed. Memory is
 * zero pages until touched.
 */
import { aligned, ExtentAllocator } from './extent_allocator.ts';

export interface SlabMemory {
  readonly buffer: SharedArrayBuffer;
}

/** Slots begin at multiples of this. */
const ALIGNMENT = 64;

export class Slab extends ExtentAllocator {
  readonly memory: SlabMemory;

  constructor(numBytes: number) {
    super(numBytes, ALIGNMENT);
    this.memory = { buffer: new SharedArrayBuffer(this.numBytes) };
  }
}

/** What a slot of a slab for so many bytes takes. */
export function slotLength(bytes: number): number {
  return aligned(bytes, ALIGNMENT);
}

/** A slot's first bytes, in any thread. */
export function slotBytes(memory: SlabMemory, slot: number, bytes: number): Uint8Array {
  return new Uint8Array(memory.buffer, slot, bytes);
}

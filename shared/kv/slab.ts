/**
 * Host memory for records that threads share: slots of any sizes in one SharedArrayBuffer.
 *
 * The owner (a control thread) acquires and releases slots; other threads only read or write the slots that they were sent.
 * Untouched memory stays zero pages, which use no RAM.
 */
import { aligned, ExtentAllocator } from './extent_allocator.ts';

/** Memory of a slab, which other threads can receive. */
export interface SlabMemory {
  readonly buffer: SharedArrayBuffer;
}

/** Slots begin at multiples of this. */
const ALIGNMENT = 64;

/** Slots for records in one SharedArrayBuffer. Only the owning thread acquires and releases slots. */
export class Slab extends ExtentAllocator {
  readonly memory: SlabMemory;

  constructor(numBytes: number) {
    super(numBytes, ALIGNMENT);
    this.memory = { buffer: new SharedArrayBuffer(this.numBytes) };
  }
}

/** Returns the length of a slab's slot for `bytes` bytes: the next multiple of ALIGNMENT. */
export function slotLength(bytes: number): number {
  return aligned(bytes, ALIGNMENT);
}

/** Returns the first `bytes` bytes of a slot, in any thread. */
export function slotBytes(memory: SlabMemory, slot: number, bytes: number): Uint8Array {
  return new Uint8Array(memory.buffer, slot, bytes);
}

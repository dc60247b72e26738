/**
 * Memory that processes of one host share, alongside a data channel: records lie in their holder's slab, and the asker copies them once
 * into its own slab, without a socket. Drivers are the operating system's shared memory, and a simulated one in tests.
 *
 * A holder reuses the slots of an asker that is gone or counts as gone, so a late asker may find another record there. An asker
 * therefore verifies its copy (K2), never the memory that it copied from.
 */
import { bootId } from '../../base/boot_id.ts';
import {
  mapPublished,
  plainBytes,
  publish,
  type BytesAt,
  type MappedMemory,
  type PublishedMemory,
} from '../../base/native_memory.ts';
import type { SlabMemory } from '../../kv/slab.ts';

/** This process's slab. */
export interface OwnMemory {
  /** Name under which other processes of this host open the slab; empty when it is not published. */
  readonly name: string;
  /** Returns the first `length` bytes of a slot. */
  bytes(slot: number, length: number): Uint8Array;
  /** Returns the offset at which other processes find bytes [start, end) of the slab; undefined when that range is not published. */
  offsetOf(start: number, end: number): number | undefined;
}

/** Another process's slab, mapped for reading. */
export interface BorrowedMemory {
  /** Returns `length` bytes at byte offset `offset`, to copy from; undefined when the range is outside the memory. */
  at(offset: number, length: number): Uint8Array | undefined;
  /** Unmaps the memory. */
  close(): void;
}

/** Memory shared between processes of one host: the operating system's, or a simulated one in tests. */
export interface HostMemory {
  /** Id of this host. Processes with equal ids may be able to share memory; opening it shows whether they can. */
  readonly host: string;
  /** Attaches this process's slab before it holds records; `isShared` publishes it to other processes of this host. */
  attach(memory: SlabMemory, isShared: boolean): OwnMemory;
  /** Maps another process's published memory; undefined when the memory cannot be opened from here. */
  open(name: string): BorrowedMemory | undefined;
}

/** The operating system's shared memory; processes of one boot of a machine have the same `host`. */
export const systemMemory: HostMemory = {
  host: bootId(),
  attach: (memory, isShared) => new AttachedSlab(memory, isShared),
  open: (name) => {
    const mapped = mapPublished(name);
    return mapped && new MappedSlab(mapped);
  },
};

class AttachedSlab implements OwnMemory {
  readonly bytes: BytesAt;
  /** The slab's memory, referenced here so that it is not freed while `bytes` reads it by address. */
  readonly memory: SlabMemory;
  readonly #published: PublishedMemory | undefined;

  constructor(memory: SlabMemory, isShared: boolean) {
    this.memory = memory;
    this.#published = isShared ? publish(memory.buffer) : undefined;
    this.bytes = plainBytes(memory.buffer);
  }

  get name(): string {
    return this.#published?.name ?? '';
  }

  offsetOf(start: number, end: number): number | undefined {
    const found = this.#published;
    return found && start >= found.start && end <= found.end ? start - found.start : undefined;
  }
}

class MappedSlab implements BorrowedMemory {
  #mapped: MappedMemory | undefined;

  constructor(mapped: MappedMemory) {
    this.#mapped = mapped;
  }

  at(offset: number, length: number): Uint8Array | undefined {
    const mapped = this.#mapped;
    return mapped && offset + length <= mapped.numBytes ? mapped.bytes(offset, length) : undefined;
  }

  close(): void {
    const mapped = this.#mapped;
    this.#mapped = undefined;
    mapped?.close();
  }
}

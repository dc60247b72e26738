/**
 * Memory that processes of one host share, beside a data channel: records lie in their holder's slab, and their asker copies them from there into
 * its own, once, without a socket. Who gives it is a driver: the system's, a simulated one in tests.
 *
 * Whoever is gone, or is taken to be, may find that what it reads is another record meanwhile: an asker judges its copy (K2), never what it
 * copied from.
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
  /** How others of this host find it; empty: they do not. */
  readonly name: string;
  bytes(slot: number, length: number): Uint8Array;
  /** Returns the offset at which other processes find bytes [start, end) of the slab; undefined when that range is not published. */
  placeOf(start: number, end: number): number | undefined;
}

/** Another's. */
export interface BorrowedMemory {
  /** To be copied from; undefined when there is no such place. */
  at(place: number, length: number): Uint8Array | undefined;
  close(): void;
}

/** Memory shared between processes of one host: the operating system's, or a simulated one in tests. */
export interface HostMemory {
  /** Processes that say the same may see the same memory; whether they do, opening it tells. */
  readonly host: string;
  /** Before anything is in it. `isShared`: others may see it. */
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

  placeOf(start: number, end: number): number | undefined {
    const found = this.#published;
    return found && start >= found.start && end <= found.end ? start - found.start : undefined;
  }
}

class MappedSlab implements BorrowedMemory {
  #mapped: MappedMemory | undefined;

  constructor(mapped: MappedMemory) {
    this.#mapped = mapped;
  }

  at(place: number, length: number): Uint8Array | undefined {
    const mapped = this.#mapped;
    return mapped && place + length <= mapped.numBytes ? mapped.bytes(place, length) : undefined;
  }

  close(): void {
    const mapped = this.#mapped;
    this.#mapped = undefined;
    mapped?.close();
  }
}

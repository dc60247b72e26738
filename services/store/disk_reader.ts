/**
 * Reader thread of the disk tier: reads records from the store's file into slots of the slab, and verifies them (K2) while they are in
 * the CPU's cache. There are several alongside the writing thread, so that reads do not wait for writes, and a disk that hangs blocks
 * these threads alone.
 */
import { closeSync, openSync, readSync } from 'node:fs';
import { messageOf } from '../../shared/base/failure.ts';
import type { Digest } from '../../shared/kv/block_key.ts';
import { RecordVerifier } from '../../shared/kv/record.ts';
import { slotBytes, type SlabMemory } from '../../shared/kv/slab.ts';

/** Bytes that are read and verified at a time. */
const READ_BYTES = 256 << 10;

/** A record of the file, and the slot of `bytes` to read it into. */
export interface DiskRead {
  readonly at: number;
  readonly bytes: number;
  readonly format: Digest;
  readonly digest: Digest;
  readonly slot: number;
}

/** Reads records from the store's file into slots of the slab, and verifies them. Runs in a thread of its own. */
export class DiskReader {
  #slab: SlabMemory | undefined;
  #file: { readonly number: number; readonly generation: number } | undefined;

  attach(memory: SlabMemory): void {
    this.#slab = memory;
  }

  /**
   * Reads records from the file at `path`, which is opened again when `generation` changes. Returns for each record undefined, or why
   * it is unusable. @throws Error when the file cannot be opened.
   */
  read({
    path,
    generation,
    reads,
  }: {
    readonly path: string;
    readonly generation: number;
    readonly reads: readonly DiskRead[];
  }): (string | undefined)[] {
    const slab = this.#slab;
    if (!slab) throw new Error('the reader has no slab yet');
    const file = this.#open(path, generation);
    return reads.map(({ at, bytes, format, digest, slot }) => {
      const record = slotBytes(slab, slot, bytes);
      const coming = new RecordVerifier(record, { format, digest });
      try {
        for (let done = 0; done < bytes;) {
          const numRead = readSync(file, record, done, Math.min(READ_BYTES, bytes - done), at + done);
          if (numRead === 0) return 'the file of records ends before the record does';
          done += numRead;
          coming.received(done);
        }
      } catch (error) {
        // The error concerns this record alone; the records next to it may be sound.
        return messageOf(error);
      }
      return coming.fault;
    });
  }

  #open(path: string, generation: number): number {
    if (this.#file?.generation === generation) return this.#file.number;
    if (this.#file) closeSync(this.#file.number);
    this.#file = undefined;
    const number = openSync(path, 'r');
    this.#file = { number, generation };
    return number;
  }
}

/** Creates the object that a reader thread serves. */
export function start(): DiskReader {
  return new DiskReader();
}

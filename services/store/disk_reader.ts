/**
 * Reader thread of the disk tier: reads records from the store's file into slots of the slab, opens those that are sealed, and verifies them
 * (K2) while they are in the CPU's cache. There are several alongside the writing thread, so that reads do not wait for writes, and a disk that hangs blocks
 * these threads alone.
 */
import { closeSync, openSync, readSync } from 'node:fs';
import { dirname } from 'node:path';
import { messageOf } from '../../shared/base/failure.ts';
import { RecordVerifier } from '../../shared/kv/record.ts';
import { slotBytes, type SlabMemory } from '../../shared/kv/slab.ts';
import { recordAad } from './disk_entries.ts';
import type { DiskEntry } from './disk_process.ts';
import { KeyList, keyListOf, type TenantKey } from './key_list.ts';
import { CRYPTED_BYTES } from './records_file.ts';
import { Opener, SEAL_BYTES } from './sealed_box.ts';

/** Bytes that are read and verified at a time. */
const READ_BYTES = 256 << 10;
const CUT = 'the file of records ends before the record does';

/** A record of the file, and the slot of `bytes` to read it into. */
export interface DiskRead extends Pick<
  DiskEntry,
  'at' | 'bytes' | 'format' | 'digest' | 'key' | 'tenant' | 'keyNumber'
> {
  readonly slot: number;
}

/** Reads records from the store's file into slots of the slab, and verifies them. Runs in a thread of its own. */
export class DiskReader {
  readonly #diskKey: Uint8Array | undefined;
  #slab: SlabMemory | undefined;
  #file: { readonly number: number; readonly generation: number } | undefined;
  #keys: KeyList | undefined;
  /** Ciphertext of one part of a record, with the seal in front of the first. */
  readonly #part = Buffer.allocUnsafeSlow(SEAL_BYTES + CRYPTED_BYTES);

  /** `diskKey` is the key of `--disk-key`; undefined where records are in clear. */
  constructor(diskKey: Uint8Array | undefined) {
    this.#diskKey = diskKey;
  }

  attach(memory: SlabMemory): void {
    this.#slab = memory;
  }

  /** Drops the keys that the reader knows; it reads their list again when it needs one. */
  dropKeys(): void {
    this.#keys = undefined;
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
    return reads.map((read) => {
      const { bytes, format, digest, slot } = read;
      const record = slotBytes(slab, slot, bytes);
      const coming = new RecordVerifier(record, { format, digest });
      try {
        return read.keyNumber === 0n
          ? readClear(file, read, record, coming)
          : this.#readSealed(file, read, record, coming, keyListOf(dirname(path)));
      } catch (error) {
        // The error concerns this record alone; the records next to it may be sound.
        return messageOf(error);
      }
    });
  }

  /** Reads and opens a sealed record. The clear text is verified, but counts only once the seal has been. */
  #readSealed(
    file: number,
    read: DiskRead,
    record: Uint8Array,
    coming: RecordVerifier,
    listPath: string,
  ): string | undefined {
    const sealing = this.#keyOf(read.keyNumber, listPath);
    if (!sealing) return 'the key of its tenant is gone';
    const { at, bytes } = read;
    let opener: Opener | undefined;
    for (let done = 0; done < bytes;) {
      const head = opener ? 0 : SEAL_BYTES;
      const length = head + Math.min(CRYPTED_BYTES, bytes - done);
      const part = this.#part.subarray(0, length);
      for (let got = 0; got < length;) {
        const numRead = readSync(file, part, got, length - got, at + (opener ? SEAL_BYTES + done : 0) + got);
        if (numRead === 0) return CUT;
        got += numRead;
      }
      opener ??= new Opener(sealing.key, part.subarray(0, SEAL_BYTES), recordAad(read));
      record.set(opener.update(part.subarray(head)), done);
      done += length - head;
      coming.received(done);
    }
    return opener?.isTrue() === true ? coming.fault : 'its seal is not authentic: it was changed, or moved on the disk';
  }

  /** Returns the key of a number from the list, which is read again for a number that is not in it yet. */
  #keyOf(number: bigint, listPath: string): TenantKey | undefined {
    const known = this.#keys?.byNumber(number);
    if (known || !this.#diskKey) return known;
    this.#keys = KeyList.read(listPath, this.#diskKey);
    return this.#keys.byNumber(number);
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

function readClear(
  file: number,
  { at, bytes }: DiskRead,
  record: Uint8Array,
  coming: RecordVerifier,
): string | undefined {
  for (let done = 0; done < bytes;) {
    const numRead = readSync(file, record, done, Math.min(READ_BYTES, bytes - done), at + done);
    if (numRead === 0) return CUT;
    done += numRead;
    coming.received(done);
  }
  return coming.fault;
}

/** Creates the object that a reader thread serves. */
export function start(given: { readonly diskKey?: Uint8Array | undefined } | undefined): DiskReader {
  return new DiskReader(given?.diskKey);
}

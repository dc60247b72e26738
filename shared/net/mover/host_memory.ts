/**
 * Memory that processes of one host share, beside a lane: its holder writes records into it, and their asker reads them from there, a copy
 * each, without a socket. Who gives it is a driver: a file of a memory file system, a simulated one in tests.
 *
 * The file has a name only until both have it open, some milliseconds: nothing is left behind by whoever is killed after that, and what is
 * left by one who was killed before is taken away by the next.
 */
import {
  closeSync,
  constants,
  fstatSync,
  ftruncateSync,
  openSync,
  readdirSync,
  readSync,
  statSync,
  unlinkSync,
  writeSync,
} from 'node:fs';
import { bootId } from '../../base/boot_id.ts';
import { Stretches } from '../../kv/stretches.ts';

/** Where Linux has one; elsewhere lanes go over their sockets. */
const FOLDER = '/dev/shm';
const NAME = /^\/dev\/shm\/penstock-[\w-]{1,24}$/;
/** In front of the records: what shows that both have the same file. */
const PROOF_BYTES = 4_096;
const MIN_PROOF_BYTES = 16;
const ALIGNMENT = 4_096;
const STALE_MS = 60_000;
/** Of one lane; a file system that is smaller is a failed write, and that record goes over the socket. */
const MEMORY_BYTES = 32 << 20;

/** A holder's end. */
export interface LentMemory {
  /** How its asker finds it. */
  readonly path: string;
  /** Copies a record in. @returns where, undefined when there is no room: then it goes another way. */
  put(record: Uint8Array): number | undefined;
  /** Its asker has read it. @returns false when nothing was there. */
  free(place: number): boolean;
  close(): void;
}

/** An asker's end. */
export interface BorrowedMemory {
  /** Copies a record's bytes from `from` on; less than there is room for when there are no more. */
  get(place: number, from: number, into: Uint8Array): void;
  close(): void;
}

export interface HostMemory {
  /** Processes that say the same may see the same memory; whether they do, opening it tells. */
  readonly host: string;
  /** Undefined where there is none. `proof`: what its asker must find in it. */
  create(name: string, proof: Buffer): LentMemory | undefined;
  /** Undefined when it is not to be seen from here, or is another's. */
  open(path: string, proof: Buffer): BorrowedMemory | undefined;
}

export const sharedFiles: HostMemory = {
  host: bootId(),
  create: (name, proof) => LentFile.create(name, proof),
  open: (path, proof) => BorrowedFile.open(path, proof),
};

class LentFile implements LentMemory {
  readonly path: string;
  readonly #file: number;
  readonly #places = new Stretches(MEMORY_BYTES, ALIGNMENT);

  private constructor(path: string, file: number) {
    this.path = path;
    this.#file = file;
  }

  static create(name: string, proof: Buffer): LentFile | undefined {
    const path = `${FOLDER}/penstock-${name}`;
    let lent: LentFile | undefined;
    try {
      lent = new LentFile(path, openSync(path, constants.O_RDWR | constants.O_CREAT | constants.O_EXCL, 0o600));
      writeSync(lent.#file, proof, 0, proof.length, 0);
      lent.#sweep();
      return lent;
    } catch {
      // There is no such file system, or it is full.
      lent?.close();
      return undefined;
    }
  }

  /** Of others that were killed while theirs had a name: none that lives keeps it so long. */
  #sweep(): void {
    const { mtimeMs } = fstatSync(this.#file);
    for (const name of readdirSync(FOLDER)) {
      const path = `${FOLDER}/${name}`;
      if (!NAME.test(path)) continue;
      try {
        if (mtimeMs - statSync(path).mtimeMs > STALE_MS) unlinkSync(path);
      } catch {
        // It has gone meanwhile, or is another user's.
      }
    }
  }

  put(record: Uint8Array): number | undefined {
    const place = this.#places.allocate(record.length);
    if (place === undefined) return undefined;
    try {
      for (let done = 0; done < record.length;)
        done += writeSync(this.#file, record, done, record.length - done, PROOF_BYTES + place + done);
      return place / ALIGNMENT;
    } catch {
      this.#places.release(place);
      return undefined;
    }
  }

  free(place: number): boolean {
    const at = place * ALIGNMENT;
    if (this.#places.slotAt(at) !== at) return false;
    this.#places.release(at);
    return true;
  }

  close(): void {
    try {
      unlinkSync(this.path);
    } catch {
      // Its asker has taken the name away, as it should.
    }
    try {
      // Whoever has it open still keeps no bytes of it.
      ftruncateSync(this.#file, 0);
    } finally {
      closeSync(this.#file);
    }
  }
}

class BorrowedFile implements BorrowedMemory {
  readonly #file: number;

  private constructor(file: number) {
    this.#file = file;
  }

  static open(path: string, proof: Buffer): BorrowedFile | undefined {
    // A peer says where: one name, of one kind, that holds what only the two of them know.
    if (!NAME.test(path) || proof.length < MIN_PROOF_BYTES) return undefined;
    let file: number | undefined;
    try {
      file = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
      const found = Buffer.alloc(proof.length);
      const isFull = fstatSync(file).isFile() && readSync(file, found, 0, found.length, 0) === proof.length;
      if (isFull && found.equals(proof)) {
        unlinkSync(path);
        return new BorrowedFile(file);
      }
    } catch {
      // It is not to be seen from here: the lane goes over its socket.
    }
    if (file !== undefined) closeSync(file);
    return undefined;
  }

  get(place: number, from: number, into: Uint8Array): void {
    const at = PROOF_BYTES + place * ALIGNMENT + from;
    for (let done = 0; done < into.length;) {
      const numRead = readSync(this.#file, into, done, into.length - done, at + done);
      if (numRead === 0) return;
      done += numRead;
    }
  }

  close(): void {
    closeSync(this.#file);
  }
}

/** Overwrites and deletes files whose content must not stay on the disk. A file system that copies on write, or the controller of an SSD, may keep old bytes. */
import {
  closeSync,
  existsSync,
  fstatSync,
  fsyncSync,
  lstatSync,
  openSync,
  readdirSync,
  rmSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';

/** Bytes that are written at a time. */
const STEP_BYTES = 1 << 20;

/** Overwrites `numBytes` of an open file with zeros, from a byte offset on. They are on the disk once the file is flushed. */
export function overwrite(file: number, numBytes: number, from = 0): void {
  const zeros = Buffer.alloc(Math.min(STEP_BYTES, numBytes));
  for (let done = 0; done < numBytes;)
    done += writeSync(file, zeros, 0, Math.min(zeros.length, numBytes - done), from + done);
}

/** Overwrites the files of a folder, and deletes it. Does nothing when it is not there. @throws Error when one cannot be written. */
export function eraseFolder(folder: string): void {
  if (!existsSync(folder)) return;
  for (const name of readdirSync(folder)) {
    const path = join(folder, name);
    // A link is no file of the store.
    if (!lstatSync(path).isFile()) continue;
    const file = openSync(path, 'r+');
    try {
      overwrite(file, fstatSync(file).size);
      fsyncSync(file);
    } finally {
      closeSync(file);
    }
  }
  rmSync(folder, { recursive: true, force: true });
}

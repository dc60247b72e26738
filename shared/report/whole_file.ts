/**
 * Files that are written whole or not at all: into a new folder next to the target, then renamed over it. A reader sees the old file or the
 * new one, whenever the process ends.
 */
import { mkdtemp, open, realpath, rename, rm, stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { Failure, messageOf } from '../base/failure.ts';

/** Characters that are collected before they are written. */
const BATCH_LENGTH = 2 ** 18;

/** Checks that `path` can be written, and changes nothing. @throws Failure otherwise. Called before long work that ends in the file. */
export async function checkWritable(path: string): Promise<void> {
  await withFolder(path, async () => undefined);
}

/** Writes the texts, one after the other, as the file `path`. @throws Failure when that fails; the file is then as it was before. */
export async function writeWhole(path: string, texts: Iterable<string>): Promise<void> {
  await withFolder(path, async (folder, target) => {
    const made = join(folder, basename(target));
    const file = await open(made, 'w');
    try {
      let batch = '';
      for (const text of texts) {
        batch += text;
        if (batch.length < BATCH_LENGTH) continue;
        await file.writeFile(batch);
        batch = '';
      }
      await file.writeFile(batch);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(made, target);
  });
}

/** Calls `use` with a new folder in the one of the target, which is removed afterwards, and with the target at the end of its links. */
async function withFolder(path: string, use: (folder: string, target: string) => Promise<void>): Promise<void> {
  try {
    const target = await realpath(path).catch(() => path);
    const there = await stat(target).catch(() => undefined);
    if (there && !there.isFile()) throw new Error('it is no regular file');
    const folder = await mkdtemp(join(dirname(target), '.penstock-'));
    try {
      await use(folder, target);
    } finally {
      await rm(folder, { recursive: true });
    }
  } catch (error) {
    if (error instanceof Failure) throw error;
    throw new Failure('invalid_request', `${path} cannot be written: ${messageOf(error)}`);
  }
}

import type { FileHandle } from 'node:fs/promises';
import { ModelError } from './model_folder.ts';

/** Fills `into` with the bytes of a file from `position` on. @throws ModelError when the file ends before. */
export async function readFully(file: FileHandle, into: Buffer, position: number, path: string): Promise<void> {
  for (let done = 0; done < into.length;) {
    const { bytesRead } = await file.read(into, done, into.length - done, position + done);
    if (bytesRead === 0)
      throw new ModelError(`${path} ended at ${position + done} while it was read: download it again`);
    done += bytesRead;
  }
}

/**
 * Files of a role that only grow. Each text is written with the file of that name looked up before, so that a file which was renamed or removed
 * (as logrotate does) is left to whoever did so, and another one begins.
 */
import { open, stat, type FileHandle } from 'node:fs/promises';
import type { BigIntStats } from 'node:fs';
import { messageOf } from '../../shared/base/failure.ts';
import { ConfigError } from '../../shared/base/options.ts';
import type { Appender, OpenAppender } from '../../shared/node/role.ts';

/** Permissions of a new file: it says who asked for what. */
const MODE = 0o600;
const NEWLINE = 10;

/** The {@link OpenAppender} of this machine. */
export const openAppender: OpenAppender = async (file, flag) => {
  try {
    return new AppendedFile(file, await openFile(file));
  } catch (error) {
    throw new ConfigError(
      `${flag} ${file}: cannot be written: ${messageOf(error)}; make its folder and let this user write there, or name another file`,
    );
  }
};

/** A file that is open. */
interface OpenFile {
  readonly handle: FileHandle;
  readonly id: string;
  /** Whether it ends within a line, which the next text must not continue. */
  readonly endsInLine: boolean;
}

class AppendedFile implements Appender {
  readonly #path: string;
  #open: OpenFile;

  constructor(path: string, opened: OpenFile) {
    [this.#path, this.#open] = [path, opened];
  }

  async append(text: string): Promise<void> {
    await this.#follow();
    const { handle, endsInLine } = this.#open;
    const bytes = Buffer.from(endsInLine ? `\n${text}` : text);
    const { size } = await handle.stat();
    let numWritten = 0;
    try {
      // A disk that becomes full takes a part.
      while (numWritten < bytes.length) {
        const { bytesWritten } = await handle.write(bytes, numWritten, bytes.length - numWritten, null);
        numWritten += bytesWritten;
      }
      this.#open = { ...this.#open, endsInLine: bytes.at(-1) !== NEWLINE };
    } catch (error) {
      if (numWritten > 0) await this.#takeBack(size, numWritten);
      throw error;
    }
  }

  async close(): Promise<void> {
    await this.#open.handle.close();
  }

  /** Opens the file anew when another one, or none, has its name. */
  async #follow(): Promise<void> {
    const found = await statOf(this.#path);
    if (found && idOf(found) === this.#open.id) return;
    const { handle: before } = this.#open;
    this.#open = await openFile(this.#path);
    await before.close();
  }

  /** Cuts off the part that was written after `size` bytes, unless somebody else has written meanwhile. */
  async #takeBack(size: number, numWritten: number): Promise<void> {
    const { handle } = this.#open;
    try {
      if ((await handle.stat()).size !== size + numWritten) throw new Error('another process writes to the file');
      await handle.truncate(size);
    } catch {
      this.#open = { ...this.#open, endsInLine: true };
    }
  }
}

async function openFile(path: string): Promise<OpenFile> {
  const found = await statOf(path);
  // To open a pipe would wait for its reader.
  if (found && !found.isFile()) throw new Error('it is no regular file');
  const handle = await open(path, 'a+', MODE);
  try {
    const opened = await handle.stat({ bigint: true });
    const { size } = opened;
    const last = Buffer.alloc(1);
    if (size > 0n) await handle.read(last, 0, 1, Number(size) - 1);
    return { handle, id: idOf(opened), endsInLine: size > 0n && last[0] !== NEWLINE };
  } catch (error) {
    await handle.close();
    throw error;
  }
}

/** Returns the state of a file; undefined where there is none of that name. */
async function statOf(path: string): Promise<BigIntStats | undefined> {
  try {
    return await stat(path, { bigint: true });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

/** Returns what names a file whatever its path. */
function idOf({ dev, ino }: BigIntStats): string {
  return `${dev} ${ino}`;
}

/**
 * Folders that one process has at a time: two stores would overwrite each other's index.
 *
 * A file in the folder says whose it is: process, pid namespace, boot of the machine, and a count that its owner raises every BEAT_MS.
 * On the same machine and in the same namespace the process table says whether the owner lives. For whoever cannot see it, in
 * another container or over a network, an owner whose count stands still for WATCH_MS is gone; one that comes back finds
 * another's name in the file, and ends.
 */
import {
  closeSync,
  linkSync,
  mkdirSync,
  openSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  writeSync,
} from 'node:fs';
import { open, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { bootId } from '../../shared/base/boot_id.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { newId } from '../../shared/base/identity.ts';
import type { DataFolder, DataFolders } from '../../shared/node/role.ts';

const BEAT_MS = 1_000;
const WATCH_MS = 4_000;
const LOOK_MS = 250;
/** Of the file, so that raising the count writes in place and needs no room on a full disk. */
const OWNER_BYTES = 256;

/** Who has a folder, as its file says. */
interface Owner {
  readonly pid: number;
  /** When the process started, in ticks since boot, where that can be known. */
  readonly start: string;
  readonly namespace: string;
  readonly boot: string;
  /** This claim. */
  readonly id: string;
  readonly beat: number;
}

export const dataFolders: DataFolders = { refuseShared, claim };

function folderOf(dataDir: string, name: string): string {
  return join(dataDir, name.replaceAll(/[^A-Za-z0-9._-]/g, '_'));
}

/** @throws Error when a process that can be seen from here has the folder. */
function refuseShared(dataDir: string, name: string): void {
  const folder = folderOf(dataDir, name);
  const owner = ownerIn(join(folder, 'owner'));
  if (owner && isVisible(owner) && isAlive(owner)) throw inUse(folder, `process ${owner.pid}`);
}

function inUse(folder: string, who: string): Error {
  return new Error(`${who} uses the data folder ${folder}: give this store another --data-dir or --name`);
}

/** @throws Error when another live process has it, or it cannot be made. */
async function claim(dataDir: string, name: string, onLost: (error: Error) => void): Promise<DataFolder> {
  refuseShared(dataDir, name);
  const folder = folderOf(dataDir, name);
  const file = join(folder, 'owner');
  try {
    mkdirSync(folder, { recursive: true });
  } catch (cause) {
    throw new Error(`cannot make the data folder ${folder}: ${messageOf(cause)}; choose another with --data-dir`, {
      cause,
    });
  }
  const before = textOf(file);
  if (before !== undefined) {
    await outlive(folder, file, before);
    takeAway(folder, file, before);
  }
  const own: Owner = {
    ...{ pid: process.pid, start: startOf(process.pid) ?? '', namespace: pidNamespace(), boot: bootId() },
    ...{ id: newId(), beat: 0 },
  };
  try {
    create(file, own);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'EEXIST') throw inUse(folder, 'another process');
    // A full disk has no room for this file either; the tier below it will make some, and then a beat writes it.
    if (code !== 'ENOSPC' && code !== 'EDQUOT') throw error;
  }
  const heart = new Heart(file, own, (owner) => {
    onLost(inUse(folder, `while this one stood still, process ${owner.pid} took it: now that`));
  });
  return {
    path: folder,
    release: () => {
      heart.stop();
      if (ownerIn(file)?.id === own.id) rmSync(file, { force: true });
    },
  };
}

/** Says again and again who has the folder; never waits for a disk that hangs. */
class Heart {
  readonly #file: string;
  readonly #own: Owner;
  readonly #onLost: (owner: Owner) => void;
  readonly #timer: NodeJS.Timeout;
  #beat = 0;
  #isBeating = false;

  constructor(file: string, own: Owner, onLost: (owner: Owner) => void) {
    this.#file = file;
    this.#own = own;
    this.#onLost = onLost;
    this.#timer = setInterval(() => {
      void this.#tryBeat();
    }, BEAT_MS);
    this.#timer.unref();
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  async #tryBeat(): Promise<void> {
    // One at a time, however long it takes.
    if (this.#isBeating) return;
    this.#isBeating = true;
    try {
      await this.#write();
    } catch {
      // A disk that takes no writes now; the next one may get through.
    }
    this.#isBeating = false;
  }

  /** Over what is there when it is this claim's, or was never written; anew where somebody has taken it away. */
  async #write(): Promise<void> {
    const text = await readFile(this.#file, 'utf8').catch(() => undefined);
    const owner = text === undefined ? undefined : read(text);
    if (owner && owner.id !== this.#own.id) {
      this.stop();
      this.#onLost(owner);
      return;
    }
    const opened = await open(this.#file, text === undefined ? 'wx' : 'r+');
    try {
      await opened.write(lineOf({ ...this.#own, beat: ++this.#beat }), 0);
    } finally {
      await opened.close();
    }
  }
}

/** Waits for what can be known of the owner. @throws Error when it lives. */
async function outlive(folder: string, file: string, text: string): Promise<void> {
  const owner = read(text);
  if (owner && isVisible(owner)) {
    if (isAlive(owner)) throw inUse(folder, `process ${owner.pid}`);
    return;
  }
  for (let waitedMs = 0; waitedMs < WATCH_MS; waitedMs += LOOK_MS) {
    await systemClock.sleep(LOOK_MS);
    const now = textOf(file);
    if (now !== undefined && now !== text)
      throw inUse(folder, `process ${read(now)?.pid ?? '?'} of another container or machine`);
  }
}

/** The file of an owner that is gone, by one of those who want it. @throws Error when another was faster. */
function takeAway(folder: string, file: string, judged: string): void {
  const aside = `${file}.${newId()}`;
  try {
    renameSync(file, aside);
  } catch {
    // Taken away already: whoever makes the next one has it.
    return;
  }
  const taken = textOf(aside);
  if (taken === judged) {
    rmSync(aside, { force: true });
    return;
  }
  // Back where it was, over nobody else's.
  try {
    linkSync(aside, file);
  } catch {
    // Another has it by now; its owner hears of it.
  }
  rmSync(aside, { force: true });
  throw inUse(folder, `process ${(taken === undefined ? undefined : read(taken))?.pid ?? '?'}`);
}

/** @throws Error with EEXIST when somebody has. */
function create(file: string, owner: Owner): void {
  const opened = openSync(file, 'wx');
  try {
    writeSync(opened, lineOf(owner), 0);
  } finally {
    closeSync(opened);
  }
}

function lineOf(owner: Owner): string {
  return `${JSON.stringify(owner).padEnd(OWNER_BYTES - 1)}\n`;
}

function textOf(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return undefined;
  }
}

function ownerIn(file: string): Owner | undefined {
  const text = textOf(file);
  return text === undefined ? undefined : read(text);
}

/** Undefined for what nobody wrote who has it. */
function read(text: string): Owner | undefined {
  try {
    const owner = JSON.parse(text) as Partial<Owner> | null;
    const isOwner =
      Number.isInteger(owner?.pid) && Number.isInteger(owner?.beat) && typeof owner?.id === 'string' && owner.id !== '';
    return isOwner ? (owner as Owner) : undefined;
  } catch {
    return undefined;
  }
}

/** Its process, if it lives, is in this one's process table. */
function isVisible({ boot, namespace }: Owner): boolean {
  return boot === bootId() && namespace === pidNamespace();
}

/** That of a dead one, or of one whose number was given anew, is nobody's. */
function isAlive({ pid, start }: Owner): boolean {
  if (pid === process.pid || !isProcessAlive(pid)) return false;
  const actual = startOf(pid);
  return actual === undefined || actual === start;
}

function isProcessAlive(pid: number): boolean {
  if (pid <= 0) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    // Somebody else's process is one too.
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** Empty where there are none. */
function pidNamespace(): string {
  try {
    return readlinkSync('/proc/self/ns/pid');
  } catch {
    return '';
  }
}

/** When a process started, in ticks since boot; `dead` for one that only waits to be reaped; undefined where /proc is not. */
function startOf(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The second field is the name in parentheses, which may hold anything; the state follows, the start is field 22.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return fields[0] === 'Z' ? 'dead' : fields[19];
  } catch {
    return undefined;
  }
}

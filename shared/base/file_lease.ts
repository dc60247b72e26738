/**
 * Lease in a file, by which one process has exclusive use of something: a store its data folder, a download its model.
 *
 *   absent ──claim──► held ──release──► absent
 *                      │ renewed every RENEW_MS: the file's count goes up
 *                      └─ its process died, or its count stood still for `watchMs` ──claim by another──► held by that one
 *
 * The file holds pid, pid namespace, boot id of the machine, and the count. On the same machine and in the same namespace the
 * process table shows whether the owner lives. A claimant that cannot see the owner (in another container, or over a network)
 * watches the count. An owner that stood still for so long that another process took its lease finds the other's name in the file,
 * and calls `onLost`. The renewal timer keeps a process with a lease alive until the release.
 */
import { closeSync, linkSync, openSync, readFileSync, readlinkSync, renameSync, rmSync, writeSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { bootId } from './boot_id.ts';
import { every, type Clock } from './clock.ts';

const RENEW_MS = 1_000;
const LOOK_MS = 250;
/** Fixed length of the file in bytes, so that a renewal overwrites it in place and works on a full disk. */
const OWNER_BYTES = 256;

/** The claiming process, with its clock and its view of the process table. */
export interface LeaseProcess {
  readonly clock: Clock;
  readonly newId: () => string;
  readonly pid: number;
  /** Whether a process of that number runs in this pid namespace. */
  readonly isRunning: (pid: number) => boolean;
}

/** Settings and callbacks of one claim of a lease. */
export interface LeaseOptions {
  /** Milliseconds for which the count of an owner outside this process table must stand still before the lease is taken from it. */
  readonly watchMs: number;
  /** Called when another process took the lease while this one stood still; `owner` names that process. */
  readonly onLost: (owner: string) => void;
  /** Called when the claim begins to watch the count of an owner that is not in this process table. */
  readonly onWatching?: () => void;
  readonly signal?: AbortSignal | undefined;
  /** Permissions of the file; those of others to read it by default, who may share what the lease is for. */
  readonly mode?: number;
}

/** A lease that this process holds, and renews until it calls `release`. */
export interface FileLease {
  /** Removes the file, unless another process has it by now. */
  readonly release: () => void;
}

/** Another live process has the lease. */
export class LeaseTaken extends Error {
  /** For people: `process 12`. */
  readonly owner: string;

  constructor(file: string, owner: string) {
    super(`${owner} has ${file}`);
    this.owner = owner;
  }
}

/** Names one process among all that have ever run, in every container and on every machine. */
export interface ProcessMark {
  readonly pid: number;
  /** Start of the process, in ticks since boot; empty where it cannot be known. */
  readonly start: string;
  readonly namespace: string;
  readonly boot: string;
}

/** The owner of a lease, as its file says. */
interface Owner extends ProcessMark {
  /** Unique id of the claim; a process may claim several leases. */
  readonly id: string;
  /** Number of renewals; the key that every version of this software writes. */
  readonly beat: number;
}

/** Claims of this process that have not been released: an owner with this pid and another id is an earlier process of the same number. */
const ownClaims = new Set<string>();

/** Returns the mark of a process of this process table. */
export function markOf(pid: number): ProcessMark {
  return { pid, start: startOf(pid) ?? '', namespace: pidNamespace(), boot: bootId() };
}

/** Whether the marked process runs in this process table, has ended there, or belongs to another container or machine. */
export function stateOf(mark: ProcessMark, isRunning: LeaseProcess['isRunning']): 'running' | 'ended' | 'elsewhere' {
  if (!isVisible(mark)) return 'elsewhere';
  return isSame(mark, isRunning) ? 'running' : 'ended';
}

/** Refuses a lease that a live process of this process table has; does not claim it. @throws LeaseTaken */
export function refuseTaken(file: string, claimant: LeaseProcess): void {
  const owner = ownerIn(file);
  if (owner && isVisible(owner) && isAlive(owner, claimant)) throw new LeaseTaken(file, nameOf(owner));
}

/**
 * Resolves when this process has the lease. The folder of the file exists.
 * @throws LeaseTaken when another live process has it; the signal's reason; Error when the file cannot be written.
 */
export async function claimLease(file: string, claimant: LeaseProcess, options: LeaseOptions): Promise<FileLease> {
  refuseTaken(file, claimant);
  const { mode = 0o644 } = options;
  const before = textOf(file);
  if (before !== undefined) {
    await outlive(file, before, claimant, options);
    removeStale(file, before, claimant);
  }
  const own: Owner = { ...markOf(claimant.pid), id: claimant.newId(), beat: 0 };
  try {
    create(file, own, mode);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'EEXIST') throw new LeaseTaken(file, 'another process');
    // A full disk has no room for this file either; a later renewal writes it.
    if (code !== 'ENOSPC' && code !== 'EDQUOT') throw error;
  }
  ownClaims.add(own.id);
  const over = new AbortController();
  const stop = (): void => {
    ownClaims.delete(own.id);
    over.abort();
  };
  renew({ file, mode }, own, claimant.clock, over.signal, (owner) => {
    stop();
    options.onLost(nameOf(owner));
  });
  return {
    release: () => {
      stop();
      if (ownerIn(file)?.id === own.id) rmSync(file, { force: true });
    },
  };
}

/** Raises the count until `signal` aborts; never waits for a disk that hangs. `onLost`: the file names another owner. */
function renew(
  { file, mode }: { readonly file: string; readonly mode: number },
  own: Owner,
  clock: Clock,
  signal: AbortSignal,
  onLost: (owner: Owner) => void,
): void {
  let renewals = 0;
  let isWriting = false;
  const isReleased = (): boolean => signal.aborted;
  /** Writes the next count into the file if the file is this claim's or unreadable, and creates the file where it was removed. */
  const write = async (): Promise<void> => {
    const made = { isNew: false };
    const opened = await open(file, 'r+').catch((error: unknown) => {
      made.isNew = isAbsent(error) && !isReleased();
      if (made.isNew) return open(file, 'wx+', mode);
      throw error;
    });
    try {
      // The same handle reads and writes, so a file that another claim has created meanwhile is not overwritten.
      const owner = parse(await opened.readFile('utf8'));
      const isOwn = owner === undefined || owner.id === own.id;
      if (!isReleased() && !isOwn) onLost(owner);
      if (!isReleased() && isOwn) await opened.write(lineOf({ ...own, beat: ++renewals }), 0);
    } finally {
      await opened.close();
    }
    // Released while the file was made anew: nobody else would remove it.
    if (isReleased() && made.isNew) rmSync(file, { force: true });
  };
  every(clock, RENEW_MS, signal, () => {
    // At most one write runs, however long the disk takes.
    if (isWriting) return;
    isWriting = true;
    // A disk that takes no writes now may take the next.
    void write()
      .catch(() => undefined)
      .finally(() => {
        isWriting = false;
      });
  });
}

/** Resolves when the owner that `text` names is gone. @throws LeaseTaken when it lives. */
async function outlive(
  file: string,
  text: string,
  claimant: LeaseProcess,
  { watchMs, onWatching, signal }: LeaseOptions,
): Promise<void> {
  const { clock } = claimant;
  const owner = parse(text);
  if (owner && isVisible(owner)) {
    if (isAlive(owner, claimant)) throw new LeaseTaken(file, nameOf(owner));
    return;
  }
  onWatching?.();
  // Looks are counted, not time: a machine that stood still has stopped the owner too.
  for (let look = 0; look < watchMs / LOOK_MS; look++) {
    await clock.sleep(LOOK_MS, signal);
    signal?.throwIfAborted();
    const now = textOf(file);
    if (now === undefined) return;
    if (now !== text) throw new LeaseTaken(file, `process ${parse(now)?.pid ?? '?'} of another container or machine`);
  }
}

/**
 * Removes the file of an owner that is gone; of several claimants one succeeds. @throws LeaseTaken when the file has changed since it
 * was judged.
 */
function removeStale(file: string, judged: string, { newId }: LeaseProcess): void {
  const aside = `${file}.${newId()}`;
  try {
    renameSync(file, aside);
  } catch (error) {
    // Another claimant has moved the file away already; whichever creates the next file holds the lease.
    if (isAbsent(error)) return;
    throw error;
  }
  const taken = textOf(aside);
  if (taken === judged) {
    rmSync(aside, { force: true });
    return;
  }
  // Put the file back, unless another claim has created one meanwhile.
  try {
    linkSync(aside, file);
  } catch {
    // Another claim exists by now; the owner of this file learns so at its next renewal.
  }
  rmSync(aside, { force: true });
  throw new LeaseTaken(file, `process ${(taken === undefined ? undefined : parse(taken))?.pid ?? '?'}`);
}

/** Creates the file with the owner in it. @throws Error with EEXIST when the file exists. */
function create(file: string, owner: Owner, mode: number): void {
  const opened = openSync(file, 'wx', mode);
  try {
    writeSync(opened, lineOf(owner), 0);
  } finally {
    closeSync(opened);
  }
}

function lineOf(owner: Owner): string {
  return `${JSON.stringify(owner).padEnd(OWNER_BYTES - 1)}\n`;
}

function nameOf({ pid }: Owner): string {
  return `process ${pid}`;
}

function textOf(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    if (isAbsent(error)) return undefined;
    throw error;
  }
}

function isAbsent(error: unknown): boolean {
  const { code } = error as NodeJS.ErrnoException;
  return code === 'ENOENT' || code === 'ENOTDIR';
}

function ownerIn(file: string): Owner | undefined {
  const text = textOf(file);
  return text === undefined ? undefined : parse(text);
}

/** @returns undefined for a file that no claim wrote. */
function parse(text: string): Owner | undefined {
  try {
    const owner = JSON.parse(text) as Partial<Owner> | null;
    const isOwner =
      Number.isInteger(owner?.pid) && Number.isInteger(owner?.beat) && typeof owner?.id === 'string' && owner.id !== '';
    return isOwner ? (owner as Owner) : undefined;
  } catch {
    return undefined;
  }
}

/** Whether the process, if alive, appears in this process's own process table. */
function isVisible({ boot, namespace }: ProcessMark): boolean {
  return boot === bootId() && namespace === pidNamespace();
}

/** Whether the owner's process still runs; false also when its pid now belongs to a process that started at another time. */
function isAlive(owner: Owner, claimant: LeaseProcess): boolean {
  return owner.pid === claimant.pid ? ownClaims.has(owner.id) : isSame(owner, claimant.isRunning);
}

/** Whether the process of this process table that has the marked one's pid is the marked one. */
function isSame({ pid, start }: ProcessMark, isRunning: LeaseProcess['isRunning']): boolean {
  if (pid <= 0 || !isRunning(pid)) return false;
  const actual = startOf(pid);
  return actual === undefined || actual === start;
}

/** Returns the id of this process's pid namespace; empty where the system has none. */
function pidNamespace(): string {
  try {
    return readlinkSync('/proc/self/ns/pid');
  } catch {
    return '';
  }
}

/** Start of a process, in ticks since boot; `dead` for one that only waits to be reaped; undefined where /proc is not. */
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

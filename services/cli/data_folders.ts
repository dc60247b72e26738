/** Folders that one process has at a time: two stores would overwrite each other's index. */
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { messageOf } from '../../shared/base/failure.ts';
import type { DataFolder, DataFolders } from '../../shared/node/role.ts';

export const dataFolders: DataFolders = { refuseShared, claim };

function folderOf(dataDir: string, name: string): string {
  return join(dataDir, name.replaceAll(/[^A-Za-z0-9._-]/g, '_'));
}

/** @throws Error when another live process has the folder. */
function refuseShared(dataDir: string, name: string): void {
  const folder = folderOf(dataDir, name);
  const owner = ownerOf(join(folder, 'pid'));
  if (owner !== undefined) {
    throw new Error(`process ${owner} uses the data folder ${folder}: give this store another --data-dir or --name`);
  }
}

/** @throws Error when another live process has it, or it cannot be made. */
function claim(dataDir: string, name: string): DataFolder {
  refuseShared(dataDir, name);
  const folder = folderOf(dataDir, name);
  const lock = join(folder, 'pid');
  try {
    mkdirSync(folder, { recursive: true });
  } catch (cause) {
    throw new Error(`cannot make the data folder ${folder}: ${messageOf(cause)}; choose another with --data-dir`, {
      cause,
    });
  }
  try {
    writeFileSync(lock, `${process.pid} ${startOf(process.pid) ?? ''}`);
  } catch (error) {
    // A full disk has no room for a lock either; the tier below it will make some.
    if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
  }
  return {
    path: folder,
    release: () => {
      rmSync(lock, { force: true });
    },
  };
}

/** The live process that holds the lock; that of a dead one, or of one whose number was given anew, is nobody's. */
function ownerOf(lock: string): number | undefined {
  let pid: number;
  let start: string | undefined;
  try {
    const [first, second] = readFileSync(lock, 'utf8').split(' ');
    [pid, start] = [Number(first), second];
  } catch {
    return undefined;
  }
  if (!Number.isInteger(pid) || pid <= 0 || pid === process.pid) return undefined;
  try {
    process.kill(pid, 0);
  } catch {
    return undefined;
  }
  const actual = startOf(pid);
  return actual !== undefined && actual !== start ? undefined : pid;
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

/** A store's folder, used by one process at a time: two would overwrite each other's index. */
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { messageOf } from '../../shared/base/failure.ts';

export interface DataFolder {
  readonly environmentPath: string;
  release(): void;
}

/** @throws Error when another live process has it, or it cannot be made. */
export function claimDataFolder(dataDir: string, name: string): DataFolder {
  const folder = join(dataDir, name.replaceAll(/[^A-Za-z0-9._-]/g, '_'));
  const lock = join(folder, 'pid');
  try {
    mkdirSync(folder, { recursive: true });
  } catch (cause) {
    throw new Error(`cannot make the data folder ${folder}: ${messageOf(cause)}; choose another with --data-dir`, { cause });
  }
  const owner = ownerOf(lock);
  if (owner !== undefined) {
    throw new Error(`process ${owner} uses the data folder ${folder}: give this store another --data-dir or --name`);
  }
  writeFileSync(lock, String(process.pid));
  return {
    environmentPath: join(folder, 'lmdb'),
    release: () => {
      rmSync(lock, { force: true });
    },
  };
}

/** The live process that holds the lock; a dead one's lock is nobody's. */
function ownerOf(lock: string): number | undefined {
  let pid: number;
  try {
    pid = Number(readFileSync(lock, 'utf8'));
  } catch {
    return undefined;
  }
  if (!Number.isInteger(pid) || pid <= 0 || pid === process.pid) return undefined;
  try {
    process.kill(pid, 0);
    return pid;
  } catch {
    return undefined;
  }
}

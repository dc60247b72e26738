/**
 * Data folders, each used by one process at a time: two stores in one folder would overwrite each other's index. The file `owner` in a
 * folder is its lease.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { messageOf } from '../../shared/base/failure.ts';
import { claimLease, LeaseTaken, refuseTaken } from '../../shared/base/file_lease.ts';
import type { DataFolder, DataFolders } from '../../shared/node/role.ts';
import { leaseProcess } from './lease_process.ts';
import { narrow } from './private_folder.ts';

const WATCH_MS = 4_000;

/** Data folders of this machine. A lease file in each folder lets one process at a time use it. */
export const dataFolders: DataFolders = { refuseShared, claim };

function folderOf(dataDir: string, name: string): string {
  return join(dataDir, name.replaceAll(/[^A-Za-z0-9._-]/g, '_'));
}

function leaseOf(folder: string): string {
  return join(folder, 'owner');
}

/** Checks that no process visible from here uses the folder. @throws Error otherwise. */
function refuseShared(dataDir: string, name: string): void {
  const folder = folderOf(dataDir, name);
  try {
    refuseTaken(leaseOf(folder), leaseProcess);
  } catch (error) {
    throw asInUse(folder, error);
  }
}

/**
 * Creates the folder, for this user alone, and claims its lease. `onLost` is called when another process has claimed it meanwhile. @throws Error when
 * another live process uses the folder, or it cannot be created.
 */
async function claim(dataDir: string, name: string, onLost: (error: Error) => void): Promise<DataFolder> {
  refuseShared(dataDir, name);
  const folder = folderOf(dataDir, name);
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
  } catch (cause) {
    throw new Error(`cannot make the data folder ${folder}: ${messageOf(cause)}; choose another with --data-dir`, {
      cause,
    });
  }
  try {
    const lease = await claimLease(leaseOf(folder), leaseProcess, {
      watchMs: WATCH_MS,
      mode: 0o600,
      onLost: (owner) => {
        onLost(inUse(folder, `this process stood still for too long, so ${owner} claimed its folder; ${owner} now`));
      },
    });
    return { path: folder, release: lease.release, ...narrow(folder) };
  } catch (error) {
    throw asInUse(folder, error);
  }
}

function asInUse(folder: string, error: unknown): unknown {
  return error instanceof LeaseTaken ? inUse(folder, error.owner) : error;
}

function inUse(folder: string, who: string): Error {
  return new Error(`${who} uses the data folder ${folder}: give this store another --data-dir or --name`);
}

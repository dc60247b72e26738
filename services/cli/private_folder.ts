/**
 * Keeps a folder from the other users of a machine: records of a store say, to whoever has the weights, which tokens they were computed from.
 * Folders are 0700 and files 0600; wider ones, such as those of earlier versions, are narrowed.
 */
import { chmodSync, lstatSync, readdirSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { messageOf } from '../../shared/base/failure.ts';
import type { FolderAccess } from '../../shared/node/role.ts';

/** Permissions of others than the owner. */
const OTHERS = 0o077;
/** Depth to which folders are looked at, and entries in all (P1): a store's are two deep. */
const MAX_DEPTH = 4;
const MAX_ENTRIES = 4_096;

/** Takes all permissions of others from a folder, which may be a link, and what is in it. A link in it is left alone. */
export function narrow(folder: string): FolderAccess {
  const narrowed: string[] = [];
  const open: { path: string; why: string }[] = [];
  let numLeft = MAX_ENTRIES;
  const look = (path: string, depth: number): void => {
    if (numLeft-- <= 0) return;
    let isFolder = false;
    try {
      const status = lstatSync(path, { throwIfNoEntry: false });
      if (!status || status.isSymbolicLink()) return;
      isFolder = status.isDirectory();
      if ((status.mode & OTHERS) !== 0) {
        chmodSync(path, status.mode & 0o7700);
        narrowed.push(path);
      }
    } catch (error) {
      open.push({ path, why: messageOf(error) });
    }
    if (isFolder && depth < MAX_DEPTH) for (const name of namesIn(path)) look(join(path, name), depth + 1);
  };
  // Windows has no such permissions.
  if (process.platform !== 'win32') look(realpathSync(folder), 0);
  return { narrowed, open };
}

function namesIn(folder: string): readonly string[] {
  try {
    return readdirSync(folder);
  } catch {
    // A folder that cannot be listed has nothing that could be narrowed.
    return [];
  }
}

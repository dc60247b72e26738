/**
 * Decides, before an environment is opened, whether its records and the disk key fit.
 *
 *   disk key   what is on disk                     then
 *   none       nothing, or records in clear        opened in clear
 *   none       sealed records                      KeyFault: the option was forgotten
 *   given      nothing                             begun, sealed
 *   given      records in clear                    overwritten and deleted, and begun anew, sealed: no clear text stays
 *   given      sealed under it                     opened
 *   given      sealed under another; no list, or   KeyFault: nothing is deleted
 *              one that is not whole
 *
 * A folder of sealed records has a file `sealed` in it.
 */
import { accessSync, constants, existsSync, mkdirSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { eraseFolder } from './erase.ts';
import { flushFolder, KeyFault, KeyList, keyListOf } from './key_list.ts';

const MARK = 'sealed';

/** Keys of an environment; undefined for one in clear. `erased` says why records were deleted. */
export interface OpenedKeys {
  readonly keys: KeyList | undefined;
  readonly erased: string | undefined;
}

/**
 * Whether an environment is opened at once: there is something of it, there is a disk key, whose list of keys is made first, or its folder
 * cannot be made, which an operator is told before there are records.
 */
export function hasBegun(path: string, diskKey: Uint8Array | undefined): boolean {
  try {
    accessSync(`${dirname(path)}/.`, constants.W_OK);
  } catch {
    return true;
  }
  return diskKey !== undefined || existsSync(path) || existsSync(keyListOf(path));
}

/**
 * Opens the keys of the environment at `path`, and makes its folder and list of keys where they lack. @throws KeyFault when the disk key
 * does not fit, Error when a file cannot be read or written.
 */
export function openKeys(path: string, diskKey: Uint8Array | undefined): OpenedKeys {
  const listPath = keyListOf(path);
  const hasList = existsSync(listPath);
  if (!diskKey) {
    if (!hasList && !isSealed(path)) return { keys: undefined, erased: undefined };
    throw new KeyFault(
      `the records in ${path} are encrypted: start the store with the --disk-key FILE of that time; ` +
        'or move its data folder away, and it begins empty, in clear',
    );
  }
  // Nothing is erased under a wrong key.
  const known = hasList ? KeyList.read(listPath, diskKey) : undefined;
  if (!known && isSealed(path)) {
    throw new KeyFault(
      `the list of keys ${listPath} is not there, and no record can be read without it: bring it back from a backup; ` +
        'or move the store’s data folder away, and it begins empty',
    );
  }
  const inClear = [path, `${path}.damaged`].filter((folder) => hasFiles(folder) && !isSealed(folder));
  for (const folder of inClear) eraseFolder(folder);
  mkdirSync(path, { recursive: true, mode: 0o700 });
  const keys = known ?? KeyList.create(listPath, diskKey);
  if (!isSealed(path)) {
    writeFileSync(join(path, MARK), '', { mode: 0o600 });
    flushFolder(path);
  }
  const erased = 'its records were in clear, and were overwritten and deleted because there is a --disk-key now';
  return { keys, erased: inClear.length > 0 ? erased : undefined };
}

function isSealed(folder: string): boolean {
  return existsSync(join(folder, MARK));
}

/** Whether there is a folder with something in it. A file in its place is none of the store's: it is set aside as it is. */
function hasFiles(folder: string): boolean {
  return statSync(folder, { throwIfNoEntry: false })?.isDirectory() === true && readdirSync(folder).length > 0;
}

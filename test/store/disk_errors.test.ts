/** Classifies disk errors: a tier is set aside only for damage. Budget: 1 s. */
import assert from 'node:assert/strict';
import { constants } from 'node:os';
import { getSystemErrorMap } from 'node:util';
import { test } from 'vitest';
import { isForRoom, mayPass } from '../../services/store/disk_errors.ts';

const { errno } = constants;

/** Returns the error texts of Node and of LMDB (strerror), and the error name alone. */
function wordsOf(code: number): string[] {
  const [name, message] = getSystemErrorMap().get(-code) ?? [`Unknown system error ${-code}`, 'unknown'];
  return [`${name}: ${message}, write`, name];
}

test.each([
  ['ENOSPC', 'No space left on device'],
  ['EDQUOT', 'Disk quota exceeded'],
  ['ENOMEM', 'Cannot allocate memory'],
] as const)('%s is want of room, which passes', (name, strerror) => {
  for (const text of [...wordsOf(errno[name]), strerror]) {
    assert(isForRoom(new Error(text)), text);
    assert(mayPass(new Error(text)), text);
  }
});

test.each([
  ['EACCES', 'Permission denied'],
  ['EPERM', 'Operation not permitted'],
  ['EROFS', 'Read-only file system'],
  ['EMFILE', 'Too many open files'],
  ['ENFILE', 'Too many open files in system'],
  ['EIO', 'Input/output error'],
] as const)('%s passes, or somebody mends it', (name, strerror) => {
  for (const text of [...wordsOf(errno[name]), strerror]) {
    assert(!isForRoom(new Error(text)), text);
    assert(mayPass(new Error(text)), text);
  }
});

test('a full map is want of room; what lies there and is no environment is damage', () => {
  assert(isForRoom(new Error('MDB_MAP_FULL: Environment mapsize limit reached')));
  for (const text of [
    'MDB_CORRUPTED: Located page was wrong type',
    'MDB_INVALID: File is not an LMDB file',
    'MDB_VERSION_MISMATCH: Database environment version mismatch',
    'MDB_PAGE_NOTFOUND: Requested page not found',
    'EISDIR: illegal operation on a directory, open',
    'Invalid argument',
  ]) {
    assert(!isForRoom(new Error(text)), text);
    assert(!mayPass(new Error(text)), text);
  }
});

/** Classifies errors of a disk by their code, or by the text of strerror where LMDB passes only the text on. */
import { constants } from 'node:os';
import { messageOf } from '../../shared/base/failure.ts';

/** libuv has no name for EDQUOT. */
const NO_ROOM = new RegExp(
  `\\bE(NOSPC|DQUOT|NOMEM)\\b|No space left|quota exceeded|Cannot allocate memory|system error -${constants.errno.EDQUOT}\\b`,
  'i',
);
const IS_FULL = /\bMDB_(MAP|TXN)_FULL\b/;
const NOT_NOW =
  /\bE(ACCES|PERM|ROFS|MFILE|NFILE|IO|BUSY|AGAIN)\b|permission denied|not permitted|read-only|too many open|input\/output error/i;

/** A write failed for want of room, which is no damage: something is evicted, and the next write may fit. */
export function isForRoom(error: unknown): boolean {
  const message = messageOf(error);
  return NO_ROOM.test(message) || IS_FULL.test(message);
}

/** Opening failed for no permission, no room, no handle, a disk that fails: it passes, or somebody mends it. */
export function mayPass(error: unknown): boolean {
  const message = messageOf(error);
  return NO_ROOM.test(message) || NOT_NOW.test(message);
}

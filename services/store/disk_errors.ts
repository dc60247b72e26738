/** Classifies errors of a disk by their code, or by the text of strerror where LMDB passes only the text on. */
import { constants } from 'node:os';
import { messageOf } from '../../shared/base/failure.ts';

/** Messages of errors for want of room. libuv has no name for EDQUOT, so its number is matched. */
const NO_ROOM = new RegExp(
  `\\bE(NOSPC|DQUOT|NOMEM)\\b|No space left|quota exceeded|Cannot allocate memory|system error -${constants.errno.EDQUOT}\\b`,
  'i',
);
const IS_FULL = /\bMDB_(MAP|TXN)_FULL\b/;
const NOT_NOW =
  /\bE(ACCES|PERM|ROFS|MFILE|NFILE|IO|BUSY|AGAIN)\b|permission denied|not permitted|read-only|too many open|input\/output error/i;

/** Whether a write failed for want of room. The environment is not damaged then: records are evicted, and the next write may fit. */
export function isForRoom(error: unknown): boolean {
  const message = messageOf(error);
  return NO_ROOM.test(message) || IS_FULL.test(message);
}

/**
 * Whether opening failed for a reason that may pass or that an operator can repair: no permission, no room, no file handle, or a
 * failing disk.
 */
export function mayPass(error: unknown): boolean {
  const message = messageOf(error);
  return NO_ROOM.test(message) || NOT_NOW.test(message);
}

/** The environment was damaged and created anew: none of the earlier entries exist any more. */
export class BegunAnew extends Error {
  constructor(reason: string, options?: ErrorOptions) {
    super(`the disk tier was damaged and starts again empty: ${reason}`, options);
    this.name = 'BegunAnew';
  }
}

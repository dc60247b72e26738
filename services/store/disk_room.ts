/** Failures for want of room are no damage: something is evicted, and the next write may fit. */
import { messageOf } from '../../shared/base/failure.ts';

export function isForRoom(error: unknown): boolean {
  return /ENOSPC|No space left|MDB_MAP_FULL|MDB_TXN_FULL|ENOMEM|EDQUOT/i.test(messageOf(error));
}

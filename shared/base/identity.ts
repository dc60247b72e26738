/** Names for things that must differ: epochs of processes, requests. */
import { randomBytes } from 'node:crypto';

/** Returns a random name: 64 bits as 16 hex digits. */
export function newId(): string {
  return randomBytes(8).toString('hex');
}

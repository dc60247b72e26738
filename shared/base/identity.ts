/** Names for things that must differ: epochs of processes, requests. */
import { randomBytes } from 'node:crypto';

export function newId(): string {
  return randomBytes(8).toString('hex');
}

/** Names for things that must differ: epochs of processes, requests, spans. */
import { randomBytes, randomFillSync } from 'node:crypto';

const ID_BYTES = 8;
/** Random bytes for so many names are asked of the system at once: a call for each name is most of what a name costs. */
const POOLED_IDS = 512;

const pool = Buffer.alloc(ID_BYTES * POOLED_IDS);
let used = pool.length;

/** Returns a random name: 64 bits as 16 hex digits. */
export function newId(): string {
  if (used === pool.length) {
    randomFillSync(pool);
    used = 0;
  }
  const id = pool.toString('hex', used, used + ID_BYTES);
  used += ID_BYTES;
  return id;
}

/** Returns 128 random bits, for the end of a bus (shared/bus/sealed/seal.ts). */
export function newBusEpoch(): Buffer {
  return randomBytes(16);
}

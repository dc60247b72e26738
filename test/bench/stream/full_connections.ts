/** Connections whose reader has stopped, as Linux lists them: the kernel has as much for the reader as it holds, and nothing moves. */
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

/** Bytes that no reader has unsent who reads. */
const FULL_BYTES = 1 << 20;
/** Milliseconds between two looks at a connection. */
const BETWEEN_LOOKS_MS = 1_000;

/** Returns the number of connections to a port of this machine that are full and stay as they are for a second. */
export async function countFullConnections(port: number): Promise<number> {
  const before = queuesOf(port);
  await sleep(BETWEEN_LOOKS_MS);
  return [...queuesOf(port)].filter(([peer, bytes]) => bytes >= FULL_BYTES && before.get(peer) === bytes).length;
}

/** Returns the unsent and unacknowledged bytes of each connection, by the address of its other end. */
function queuesOf(port: number): Map<string, number> {
  const queues = new Map<string, number>();
  for (const line of readFileSync('/proc/net/tcp', 'utf8').split('\n').slice(1)) {
    // Number, own address, other address, state, bytes to send and to read: all hexadecimal.
    const [, own = '', other = '', , bytes = ''] = line.trim().split(/\s+/);
    if (Number.parseInt(own.split(':')[1] ?? '', 16) === port)
      queues.set(other, Number.parseInt(bytes.split(':')[0] ?? '', 16));
  }
  return queues;
}

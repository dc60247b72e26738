/**
 * Links of the simulated cluster. A transfer passes the sending side of its source and the receiving side of its destination; each side
 * sends or receives one transfer after another at the speed of the link, and a transfer passes both at once as far as they are free.
 */
import type { ReplayTime } from './replay_time.ts';

/** Milliseconds from a fetch's request to its first byte. */
export const LINK_LATENCY_MS = 0.5;

/** One instance's connections: to other instances, and between its host memory and its device. */
export class SimulatedPort {
  readonly bytesPerMs: number;
  readonly dramBytesPerMs: number;
  sendFreeMs = 0;
  receiveFreeMs = 0;
  dramFreeMs = 0;
  sentBytes = 0;
  dramBytes = 0;

  constructor(bytesPerMs: number, dramBytesPerMs: number) {
    this.bytesPerMs = bytesPerMs;
    this.dramBytesPerMs = dramBytesPerMs;
  }
}

/** Time of a transfer: when its last byte arrives, and the milliseconds in which its bytes moved. */
export interface Transfer {
  readonly arrivesMs: number;
  readonly movingMs: number;
}

/** Sends `bytes` from one instance to another, after the transfers that both have begun. */
export function send(time: ReplayTime, from: SimulatedPort, to: SimulatedPort, bytes: number): Transfer {
  const movingMs = bytes / Math.min(from.bytesPerMs, to.bytesPerMs);
  const sentMs = Math.max(time.nowMs, from.sendFreeMs) + movingMs;
  from.sendFreeMs = sentMs;
  const receivedMs = Math.max(sentMs - movingMs, to.receiveFreeMs) + movingMs;
  to.receiveFreeMs = receivedMs;
  from.sentBytes += bytes;
  return { arrivesMs: receivedMs + LINK_LATENCY_MS, movingMs };
}

/** Copies `bytes` from an instance's own host memory to its device. */
export function copyIn(time: ReplayTime, port: SimulatedPort, bytes: number): Transfer {
  const movingMs = bytes / port.dramBytesPerMs;
  port.dramFreeMs = Math.max(time.nowMs, port.dramFreeMs) + movingMs;
  port.dramBytes += bytes;
  return { arrivesMs: port.dramFreeMs, movingMs };
}

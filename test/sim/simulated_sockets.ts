/** Plain sockets between simulated processes: a driver of shared/net/transfer_thread/sockets.ts, on the links that calls go over. */
import type { ByteSocket, SocketListener, Sockets } from '../../shared/net/transfer_thread/sockets.ts';
import type { SimFabric } from './simulated_network.ts';
import type { SimProcess } from './simulation.ts';

/** Between a write and its memory being free: whoever takes it back before sends something else. */
const WRITE_MS = 0.05;
const SLICE_BYTES = 4_096;

interface Listening {
  readonly process: SimProcess;
  readonly onSocket: (socket: ByteSocket) => SocketListener;
}

export class SimSockets {
  readonly #fabric: SimFabric;
  readonly #listening = new Map<number, Listening>();
  #nextPort = 10_000;
  /** Called with everything that is sent, at the moment it is read from memory. */
  readonly onWrite: (parts: readonly Uint8Array[], from: SimProcess) => void;

  constructor(fabric: SimFabric, onWrite: SimSockets['onWrite']) {
    this.#fabric = fabric;
    this.onWrite = onWrite;
  }

  of(process: SimProcess): Sockets {
    const fabric = this.#fabric;
    return {
      listen: (_host, _port, onSocket) => {
        const port = this.#nextPort++;
        this.#listening.set(port, { process, onSocket });
        return Promise.resolve(port);
      },
      connect: (host, port, timeoutMs, listener) =>
        new Promise((resolve, reject) => {
          const late = fabric.simulation.at(timeoutMs, process, 'socket timeout', () => {
            reject(new Error(`${host}:${port} does not answer within ${timeoutMs} ms`));
          });
          const there = this.#listening.get(port);
          if (!there || there.process.isDead) {
            fabric.simulation.at(fabric.latencyMs, process, 'socket refused', () => {
              late.isCancelled = true;
              reject(new Error(`${host}:${port} refuses`));
            });
            return;
          }
          fabric.send(process, there.process, 60, 'socket', () => {
            const near = new SimSocket(fabric, this, process, there.process);
            const far = new SimSocket(fabric, this, there.process, process);
            near.meet(far);
            far.meet(near);
            far.listener = there.onSocket(far);
            fabric.send(
              there.process,
              process,
              60,
              'socket open',
              () => {
                near.listener = listener;
                if (late.isCancelled || late.atMs <= fabric.simulation.nowMs) near.destroy();
                late.isCancelled = true;
                resolve(near);
              },
              { isAnswer: true },
            );
          });
        }),
    };
  }
}

class SimSocket implements ByteSocket {
  readonly #fabric: SimFabric;
  readonly #sockets: SimSockets;
  readonly #own: SimProcess;
  readonly #other: SimProcess;
  #peer: SimSocket | undefined;
  #isClosed = false;
  /** Whether this end is closing; its listener learns of the end soon. */
  #isEnding = false;
  /** When what was written before has gone. */
  #writtenMs = 0;
  listener: SocketListener | undefined;

  constructor(fabric: SimFabric, sockets: SimSockets, own: SimProcess, other: SimProcess) {
    this.#fabric = fabric;
    this.#sockets = sockets;
    this.#own = own;
    this.#other = other;
    fabric.links.add(this);
  }

  meet(peer: SimSocket): void {
    this.#peer = peer;
  }

  joins(a: SimProcess, b: SimProcess): boolean {
    return (this.#own === a && this.#other === b) || (this.#own === b && this.#other === a);
  }

  touches(process: SimProcess): boolean {
    return this.#own === process || this.#other === process;
  }

  write(parts: readonly Uint8Array[], onWritten?: () => void): void {
    const { simulation } = this.#fabric;
    // Some writes take long, and their memory must not be reused before.
    const takesMs = WRITE_MS * (1 + (this.#fabric.below(4) === 0 ? this.#fabric.below(40) : 0));
    this.#writtenMs = Math.max(this.#writtenMs, simulation.nowMs) + takesMs;
    simulation.atTime(this.#writtenMs, this.#own, 'socket write', () => {
      if (this.#isClosed) return;
      this.#sockets.onWrite(parts, this.#own);
      const bytes = Buffer.concat(parts);
      for (let at = 0; at < bytes.length; at += SLICE_BYTES)
        this.#send(bytes.subarray(at, at + SLICE_BYTES), parts.length > 1);
      onWritten?.();
    });
  }

  #send(slice: Buffer, isRecord: boolean): void {
    const fabric = this.#fabric;
    // Not in the head of a record, nor in what is asked: that costs patience, and nothing else is tried then.
    if (isRecord && slice.length > 64 && fabric.isFaulty(fabric.faults.flipsPerMillion)) {
      fabric.numFlips++;
      const at = 64 + fabric.below(slice.length - 64);
      slice[at] = (slice[at] ?? 0) ^ (1 << fabric.below(8));
    }
    fabric.send(this.#own, this.#other, slice.length, 'socket bytes', () => {
      this.#peer?.take(slice);
    });
  }

  take(slice: Buffer): void {
    for (let from = 0; from < slice.length && this.listener && !this.#isEnding;) {
      const to = this.listener.into();
      const part = slice.subarray(from, from + to.length);
      to.set(part);
      from += part.length;
      this.listener.onBytes(part.length);
    }
  }

  destroy(): void {
    this.fail('it was closed');
  }

  /** Breaks both ends of the socket, the other one after the link's latency. */
  fail(reason: string): void {
    this.end(0, reason);
    this.#peer?.end(this.#fabric.latencyMs, reason);
  }

  end(afterMs: number, reason: string): void {
    if (this.#isClosed) return;
    if (afterMs === 0) this.#isEnding = true;
    this.#fabric.links.delete(this);
    this.#fabric.simulation.at(afterMs, this.#own, 'socket closed', () => {
      if (this.#isClosed) return;
      this.#isClosed = true;
      this.#isEnding = true;
      this.listener?.onClosed(reason);
    });
  }
}

/**
 * A bus server between simulated processes: what NATS is to a cluster. What is said may be late, come twice or be lost; the server
 * may go away, or be cut off from one process.
 */
import { Failure } from '../../shared/base/failure.ts';
import type { Bus, BusListener, OpenBus } from '../../shared/bus/bus.ts';
import { subjects } from '../../shared/protocol/membership.ts';
import type { SimFabric } from './simulated_network.ts';
import { SimProcess } from './simulation.ts';

/** An end whose server does not answer notices it after this. */
const PINGS_MS = 1_400;
const RETRY_MS = 100;
const RETRY_SPREAD_MS = 400;

type Subscriber = (payload: Buffer) => void;
type Server = (payload: Buffer) => Buffer | Promise<Buffer>;

export class SimBusServer {
  readonly process = new SimProcess('bus');
  readonly fabric: SimFabric;
  readonly #ends = new Set<SimBusEnd>();
  /** Cut off from the server. */
  readonly #blocked = new Set<SimProcess>();
  isAway = false;

  constructor(fabric: SimFabric) {
    this.fabric = fabric;
  }

  openFor(process: SimProcess): OpenBus {
    return (listener) => {
      const end = new SimBusEnd(this, process, listener);
      this.#ends.add(end);
      return end;
    };
  }

  forget(end: SimBusEnd): void {
    this.#ends.delete(end);
  }

  isReachable(process: SimProcess): boolean {
    return !this.isAway && !this.#blocked.has(process);
  }

  /** Makes the server unreachable and breaks its connections. */
  leave(): void {
    this.isAway = true;
    for (const end of this.#ends)
      this.fabric.send(this.process, end.process, 0, 'bus resets', () => end.lose('a reset'));
  }

  return(): void {
    this.isAway = false;
    this.#blocked.clear();
  }

  /** Drops all messages of a process without an error. The process's end notices after PINGS_MS. */
  block(process: SimProcess): void {
    this.#blocked.add(process);
    this.fabric.simulation.at(PINGS_MS, process, 'bus pings', () => {
      if (!this.isReachable(process))
        for (const end of this.#ends) if (end.process === process) end.lose('no answer to pings');
    });
  }

  unblock(process: SimProcess): void {
    this.#blocked.delete(process);
  }

  /** From one end to the server; what waits for no answer may be lost, late or doubled. */
  take(from: SimBusEnd, bytes: number, label: string, isHeld: boolean, run: () => void): void {
    if (!this.isReachable(from.process)) return;
    this.#carry(from.process, this.process, bytes, label, isHeld, () => {
      if (this.isReachable(from.process)) run();
    });
  }

  /** To an end that is connected. */
  give(to: SimBusEnd, bytes: number, label: string, isHeld: boolean, run: () => void): void {
    if (!this.isReachable(to.process)) return;
    const { session } = to;
    this.#carry(this.process, to.process, bytes, label, isHeld, () => {
      if (to.isConnected && to.session === session && this.isReachable(to.process)) run();
    });
  }

  #carry(from: SimProcess, to: SimProcess, bytes: number, label: string, isHeld: boolean, run: () => void): void {
    const { fabric } = this;
    const { lossesPerMillion, duplicatesPerMillion, reordersPerMillion } = fabric.faults;
    if (!isHeld && fabric.isFaulty(lossesPerMillion)) return;
    if (!isHeld && fabric.isFaulty(duplicatesPerMillion)) fabric.send(from, to, bytes, label, run);
    const lateMs = !isHeld && fabric.isFaulty(reordersPerMillion) ? 1 + fabric.below(40) : 0;
    fabric.send(from, to, bytes, label, run, { lateMs });
  }

  publish(subject: string, payload: Buffer): void {
    for (const end of this.#ends) {
      if (end.process.isDead || !end.isConnected || !end.subscribers.has(subject)) continue;
      this.give(end, payload.length, `bus ${subject}`, false, () => {
        end.receive(subject, payload);
      });
    }
  }

  serverOf(subject: string): SimBusEnd | undefined {
    return [...this.#ends].find((end) => !end.process.isDead && end.isConnected && end.servers.has(subject));
  }
}

class SimBusEnd implements Bus {
  readonly name = 'bus';
  readonly process: SimProcess;
  readonly subscribers = new Map<string, Set<Subscriber>>();
  readonly servers = new Map<string, Server>();
  readonly #server: SimBusServer;
  readonly #listener: BusListener;
  readonly #waiting = new Set<(failure: Failure) => void>();
  isConnected = false;
  /** Connections that it had. */
  session = 0;
  #isClosed = false;

  constructor(server: SimBusServer, process: SimProcess, listener: BusListener) {
    this.#server = server;
    this.process = process;
    this.#listener = listener;
    this.#connect();
  }

  #connect(): void {
    if (this.#isClosed) return;
    const { fabric } = this.#server;
    fabric.simulation.at(2 * fabric.latencyMs, this.process, 'bus connects', () => {
      if (this.#isClosed) return;
      if (this.#server.isReachable(this.process)) {
        this.isConnected = true;
        this.session++;
        this.#listener.onConnected();
      } else this.#retry();
    });
  }

  #retry(): void {
    const { fabric } = this.#server;
    fabric.simulation.at(RETRY_MS + fabric.below(RETRY_SPREAD_MS), this.process, 'bus tries again', () => {
      this.#connect();
    });
  }

  lose(reason: string): void {
    if (!this.isConnected) return;
    this.isConnected = false;
    for (const fail of [...this.#waiting]) fail(new Failure('instance_lost', reason));
    this.#listener.onDisconnected(reason);
    this.#retry();
  }

  publish(subject: string, payload: Buffer): void {
    if (!this.isConnected) return;
    if (subject.endsWith(subjects.goodbye)) this.#server.fabric.onGoodbye(this.process);
    this.#server.take(this, payload.length, `bus ${subject}`, false, () => {
      this.#server.publish(subject, payload);
    });
  }

  subscribe(subject: string, handler: Subscriber): () => void {
    const set = this.subscribers.get(subject) ?? new Set();
    this.subscribers.set(subject, set.add(handler));
    return () => set.delete(handler);
  }

  receive(subject: string, payload: Buffer): void {
    for (const handler of this.subscribers.get(subject) ?? []) {
      try {
        handler(payload);
      } catch {
        // A message that cannot be read is dropped, as in the other drivers.
      }
    }
  }

  request(subject: string, payload: Buffer, timeoutMs: number): Promise<Buffer> {
    if (!this.isConnected) return Promise.reject(new Failure('instance_lost', 'no connection to the bus'));
    return new Promise((resolve, reject) => {
      const { fabric } = this.#server;
      const fail = (failure: Failure): void => {
        this.#waiting.delete(fail);
        timer.isCancelled = true;
        reject(failure);
      };
      const timer = fabric.simulation.at(timeoutMs, this.process, 'bus request timeout', () => {
        fail(new Failure('deadline_exceeded', `no answer on ${subject}`));
      });
      this.#waiting.add(fail);
      const answer = (settle: () => void): void => {
        this.#server.give(this, 0, `bus answer ${subject}`, true, settle);
      };
      this.#server.take(this, payload.length, `bus ${subject}`, true, () => {
        const server = this.#server.serverOf(subject);
        if (!server) {
          answer(() => {
            fail(new Failure('not_found', `no process serves ${subject}`));
          });
          return;
        }
        this.#server.give(server, payload.length, `bus ${subject}`, true, () => {
          const back = (settle: () => void): void => {
            this.#server.take(server, 0, `bus answer ${subject}`, true, () => {
              answer(settle);
            });
          };
          server.serveOne(subject, payload).then(
            (reply) => {
              back(() => {
                this.#waiting.delete(fail);
                timer.isCancelled = true;
                resolve(reply);
              });
            },
            (error: unknown) => {
              back(() => {
                fail(error instanceof Failure ? error : new Failure('internal', String(error)));
              });
            },
          );
        });
      });
    });
  }

  async serveOne(subject: string, payload: Buffer): Promise<Buffer> {
    const handler = this.servers.get(subject);
    if (!handler) throw new Failure('not_found', `no process serves ${subject}`);
    return await handler(payload);
  }

  serve(subject: string, handler: Server): () => void {
    this.servers.set(subject, handler);
    return () => this.servers.delete(subject);
  }

  close(): void {
    this.#isClosed = true;
    // Messages published before the close are still delivered.
    this.#server.take(this, 0, 'bus ends', true, () => {
      this.#server.forget(this);
    });
  }
}

/**
 * The embedded bus as every process but the router sees it: one stream to the hub, reconnected for as long as it takes.
 *
 * The pause between attempts doubles from 100 ms to 500 ms, so that a restarted router has its cluster back within 2 s. A wrong
 * token ends it: trying again would not help.
 */
import type { ClientDuplexStream } from '@grpc/grpc-js';
import type { Clock } from '../base/clock.ts';
import { Failure, messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import { connectHub } from '../protocol/calls.ts';
import { BusKind, type BusFrame } from '../protocol/messages.ts';
import { toFailure, type Peers } from '../protocol/rpc.ts';
import type { Bus } from './bus.ts';
import { errorBody, RemoteCalls } from './embedded_hub.ts';

const MIN_PAUSE_MS = 100;
const MAX_PAUSE_MS = 500;
/** Published while the hub does not read: beyond this they are dropped, and the sequence numbers tell. */
const MAX_BACKLOG_BYTES = 16 << 20;

export interface HubClientOptions {
  readonly address: string;
  readonly peers: Peers;
  readonly clock: Clock;
  readonly log: Log;
  /** After every (re)connection, when subscriptions are in place. */
  readonly onConnected: () => void;
  readonly onDisconnected: (reason: string) => void;
  /** The hub refuses this process. */
  readonly onRefused: (failure: Failure) => void;
}

export class HubClient implements Bus {
  readonly #options: HubClientOptions;
  readonly #subscribers = new Map<string, Set<(payload: Buffer) => void>>();
  readonly #servers = new Map<string, (payload: Buffer) => Buffer | Promise<Buffer>>();
  readonly #stopped = new AbortController();
  #call: ClientDuplexStream<BusFrame, BusFrame> | undefined;
  /** Of this connection. */
  #backlogBytes = 0;
  #remote: RemoteCalls | undefined;

  constructor(options: HubClientOptions) {
    this.#options = options;
    void this.#connectForever();
  }

  publish(subject: string, payload: Buffer): void {
    if (!this.#remote || this.#backlogBytes > MAX_BACKLOG_BYTES) return;
    this.#send({ kind: BusKind.publish, subject, payload });
  }

  subscribe(subject: string, handler: (payload: Buffer) => void): () => void {
    const set = this.#subscribers.get(subject) ?? new Set();
    if (set.size === 0 && this.#remote) this.#send({ kind: BusKind.subscribe, subject });
    this.#subscribers.set(subject, set.add(handler));
    return () => set.delete(handler);
  }

  async request(subject: string, payload: Buffer, timeoutMs: number): Promise<Buffer> {
    if (!this.#remote) throw new Failure('instance_lost', `no connection to the hub ${this.#options.address}`);
    const answered = new AbortController();
    const timeout = this.#options.clock.sleep(timeoutMs, answered.signal).then((): Buffer => {
      throw new Failure('deadline_exceeded', `no answer on ${subject} within ${timeoutMs} ms`);
    });
    timeout.catch(() => undefined);
    try {
      return await Promise.race([this.#remote.ask(subject, payload), timeout]);
    } finally {
      answered.abort();
    }
  }

  serve(subject: string, handler: (payload: Buffer) => Buffer | Promise<Buffer>): () => void {
    this.#servers.set(subject, handler);
    if (this.#remote) this.#send({ kind: BusKind.serve, subject });
    return () => this.#servers.delete(subject);
  }

  close(): void {
    this.#stopped.abort();
    // What was published goes out first, a goodbye for instance.
    this.#call?.end();
  }

  #send(frame: Partial<BusFrame> & Pick<BusFrame, 'kind'>): void {
    const size = frame.payload?.length ?? 0;
    this.#backlogBytes += size;
    this.#call?.write({ subject: '', payload: Buffer.alloc(0), id: 0, ...frame }, () => (this.#backlogBytes -= size));
  }

  async #connectForever(): Promise<void> {
    const { clock, onDisconnected, onRefused } = this.#options;
    let pauseMs = MIN_PAUSE_MS;
    const isStopped = (): boolean => this.#stopped.signal.aborted;
    while (!isStopped()) {
      const { wasConnected, failure } = await this.#connectOnce();
      if (isStopped()) return;
      if (failure.code === 'unauthenticated') {
        onRefused(failure);
        return;
      }
      if (wasConnected) onDisconnected(failure.message);
      pauseMs = wasConnected ? MIN_PAUSE_MS : Math.min(2 * pauseMs, MAX_PAUSE_MS);
      await clock.sleep(pauseMs, this.#stopped.signal);
    }
  }

  /** Resolves when the stream is over. */
  #connectOnce(): Promise<{ wasConnected: boolean; failure: Failure }> {
    const { address, peers, onConnected } = this.#options;
    return new Promise((resolve) => {
      const call = connectHub(peers, address);
      this.#call = call;
      this.#backlogBytes = 0;
      let wasConnected = false;
      const end = (error: unknown): void => {
        this.#remote?.fail();
        this.#remote = undefined;
        this.#call = undefined;
        resolve({ wasConnected, failure: toFailure(error, address) });
      };
      call.on('data', (frame: BusFrame) => {
        if (wasConnected) {
          this.#receive(frame);
          return;
        }
        wasConnected = true;
        this.#remote = new RemoteCalls((out) => {
          this.#send(out);
        });
        for (const subject of this.#subscribers.keys()) this.#send({ kind: BusKind.subscribe, subject });
        for (const subject of this.#servers.keys()) this.#send({ kind: BusKind.serve, subject });
        onConnected();
      });
      call.on('error', end);
      call.on('end', () => {
        end(new Failure('instance_lost', `the hub ${address} closed the connection`));
      });
    });
  }

  #receive(frame: BusFrame): void {
    if (frame.kind === BusKind.publish) {
      for (const handler of this.#subscribers.get(frame.subject) ?? []) this.#deliver(handler, frame);
    } else if (frame.kind === BusKind.request) void this.#answer(frame);
    else this.#remote?.settle(frame);
  }

  #deliver(handler: (payload: Buffer) => void, { subject, payload }: BusFrame): void {
    try {
      handler(payload);
    } catch (error) {
      this.#options.log.warn({ subject, error: messageOf(error) }, 'a bus message could not be read');
    }
  }

  async #answer({ subject, payload, id }: BusFrame): Promise<void> {
    try {
      const handler = this.#servers.get(subject);
      if (!handler) throw new Failure('not_found', `nobody serves ${subject}`);
      this.#send({ kind: BusKind.reply, id, payload: await handler(payload) });
    } catch (error) {
      this.#send({ kind: BusKind.error, id, ...errorBody(error) });
    }
  }
}

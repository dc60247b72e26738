/**
 * The embedded bus as every process but the router sees it: one stream to the hub, reconnected for as long as it takes.
 *
 * The pause between attempts doubles from 100 ms to 500 ms, so that a restarted router has its cluster back within 2 s. A wrong
 * token ends it: trying again would not help.
 */
import { Backoff } from '../base/backoff.ts';
import type { Clock } from '../base/clock.ts';
import { asFailure, Failure, messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import { AsyncQueue } from '../base/async_queue.ts';
import type { Network } from '../net/network.ts';
import { BusKind, type BusMessage } from '../protocol/messages.ts';
import type { Bus, BusListener } from './bus.ts';
import { errorBody, RemoteCalls } from './embedded_hub.ts';
import { DONE } from '../base/signal.ts';

const MIN_PAUSE_MS = 100;
const MAX_PAUSE_MS = 500;
/**
 * Most bytes of payload that wait to be sent. Messages published beyond that are dropped; receivers notice the gap in the sequence
 * numbers.
 */
const MAX_BACKLOG_BYTES = 16 << 20;

const EMPTY = Buffer.alloc(0);

/** Settings of a HubClient. `address` is the hub's, `maxBacklogBytes` bounds payloads that wait to be sent (default 16 MiB). */
export interface HubClientOptions extends BusListener {
  readonly address: string;
  readonly network: Network;
  readonly clock: Clock;
  readonly log: Log;
  readonly maxBacklogBytes?: number | undefined;
}

/** Bus of a process that is not the router, over one stream to the hub. Connects at once, and again after every loss until close(). */
export class HubClient implements Bus {
  readonly #options: HubClientOptions;
  readonly #subscribers = new Map<string, Set<(payload: Buffer) => void>>();
  readonly #servers = new Map<string, (payload: Buffer) => Buffer | Promise<Buffer>>();
  readonly #stopped = new AbortController();
  /** Messages that wait to be sent on the current connection; undefined between connections. */
  #out: AsyncQueue<BusMessage> | undefined;
  /** Bytes of payload in `#out`. */
  #backlogBytes = 0;
  #remote: RemoteCalls | undefined;

  constructor(options: HubClientOptions) {
    this.#options = options;
    void this.#connectForever();
  }

  get name(): string {
    return `the hub ${this.#options.address}`;
  }

  get isConnected(): boolean {
    return this.#remote !== undefined;
  }

  publish(subject: string, payload: Buffer): void {
    if (!this.#remote || this.#backlogBytes > (this.#options.maxBacklogBytes ?? MAX_BACKLOG_BYTES)) return;
    this.#send({ kind: BusKind.PUBLISH, subject, payload });
  }

  subscribe(subject: string, handler: (payload: Buffer) => void): () => void {
    const set = this.#subscribers.get(subject) ?? new Set();
    if (!this.#subscribers.has(subject) && this.#remote) this.#send({ kind: BusKind.SUBSCRIBE, subject });
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
      answered.abort(DONE);
    }
  }

  serve(subject: string, handler: (payload: Buffer) => Buffer | Promise<Buffer>): () => void {
    this.#servers.set(subject, handler);
    if (this.#remote) this.#send({ kind: BusKind.SERVE, subject });
    return () => this.#servers.delete(subject);
  }

  close(): void {
    this.#stopped.abort();
    // Ends the stream after the messages already published, for instance a goodbye.
    this.#out?.end();
  }

  #send(message: Partial<BusMessage> & Pick<BusMessage, 'kind'>): void {
    this.#backlogBytes += message.payload?.length ?? 0;
    this.#out?.push({ subject: '', payload: EMPTY, id: 0, ...message });
  }

  async #connectForever(): Promise<void> {
    const { clock, onDisconnected, onRefused } = this.#options;
    const backoff = new Backoff({ clock, firstMs: MIN_PAUSE_MS, mostMs: MAX_PAUSE_MS });
    const isStopped = (): boolean => this.#stopped.signal.aborted;
    let hasBeenConnected = false;
    let said = '';
    while (!isStopped()) {
      const { wasConnected, failure } = await this.#connectOnce();
      if (isStopped()) return;
      hasBeenConnected ||= wasConnected;
      if (failure.code === 'unauthenticated' && !hasBeenConnected) {
        onRefused(failure);
        return;
      }
      // A hub that has taken this process before may do so again: a secret or a certificate is being renewed.
      if (failure.code === 'unauthenticated' && failure.message !== said) {
        said = failure.message;
        if (!wasConnected) onDisconnected(said);
      }
      if (wasConnected) onDisconnected(failure.message);
      if (wasConnected) backoff.reset();
      await backoff.pause(this.#stopped.signal);
    }
  }

  /** Resolves when the stream is over. */
  async #connectOnce(): Promise<{ wasConnected: boolean; failure: Failure }> {
    const { address, network, onConnected } = this.#options;
    this.#backlogBytes = 0;
    const out = new AsyncQueue<BusMessage>(({ payload }) => (this.#backlogBytes -= payload.length));
    this.#out = out;
    let wasConnected = false;
    let failure = new Failure('instance_lost', `the hub ${address} closed the connection`);
    try {
      // This signal never aborts: the stream ends with `out`, so that a published goodbye is still sent.
      const options = { signal: new AbortController().signal, timeoutMs: undefined };
      for await (const message of network.open(address, 'connect', out, options)) {
        if (wasConnected) {
          this.#receive(message);
          continue;
        }
        wasConnected = true;
        this.#remote = new RemoteCalls((reply) => {
          this.#send(reply);
        });
        for (const subject of this.#subscribers.keys()) this.#send({ kind: BusKind.SUBSCRIBE, subject });
        for (const subject of this.#servers.keys()) this.#send({ kind: BusKind.SERVE, subject });
        onConnected();
      }
    } catch (error) {
      failure = asFailure(error);
    }
    this.#remote?.fail();
    this.#remote = undefined;
    this.#out = undefined;
    out.end();
    return { wasConnected, failure };
  }

  #receive(message: BusMessage): void {
    if (message.kind === BusKind.PUBLISH) {
      for (const handler of this.#subscribers.get(message.subject) ?? []) this.#deliver(handler, message);
    } else if (message.kind === BusKind.REQUEST) void this.#answer(message);
    else this.#remote?.complete(message);
  }

  #deliver(handler: (payload: Buffer) => void, { subject, payload }: BusMessage): void {
    try {
      handler(payload);
    } catch (error) {
      this.#options.log.warn({ subject, error: messageOf(error) }, 'a bus message could not be read');
    }
  }

  async #answer({ subject, payload, id }: BusMessage): Promise<void> {
    try {
      const handler = this.#servers.get(subject);
      if (!handler) throw new Failure('not_found', `no process serves ${subject}`);
      this.#send({ kind: BusKind.REPLY, id, payload: await handler(payload) });
    } catch (error) {
      this.#send({ kind: BusKind.ERROR, id, ...errorBody(error) });
    }
  }
}

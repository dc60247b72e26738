/**
 * The bus over NATS servers, with core NATS only (no JetStream), since all content is soft state. A driver: no other code knows of
 * NATS.
 *
 * A lost connection, or one whose server is silent, is closed and opened anew here. The library's own reconnecting is off: it
 * would wait until its output is flushed, and outlive close(). Bounds (P1): published bytes that the server has not acknowledged
 * (MAX_BACKLOG_BYTES; more is dropped, which receivers notice by the sequence numbers), and requests that wait for an answer
 * (MAX_PENDING). The server disconnects a subscriber that does not read.
 */
import { setMaxListeners } from 'node:events';
import { connect, ErrorCode, DebugEvents, Events, headers, type Msg, type NatsConnection, type NatsError } from 'nats';
import { Backoff } from '../../base/backoff.ts';
import type { Clock } from '../../base/clock.ts';
import { Failure, isFailureCode, messageOf } from '../../base/failure.ts';
import type { Log } from '../../base/log.ts';
import type { Bus, BusListener } from '../bus.ts';
import { NatsAddresses, type ServersSource } from './nats_addresses.ts';
import { connectionOptions } from './nats_options.ts';

const MIN_PAUSE_MS = 100;
const MAX_PAUSE_MS = 500;
/** Least milliseconds between two warnings about a missing connection. */
const REPORT_MS = 5_000;
const MAX_BACKLOG_BYTES = 16 << 20;
const MAX_PENDING = 1_024;
/** Message header with the failure code of an answer; absent in other answers. */
const ERROR_HEADER = 'penstock-error';
/** NATS error codes that mean the server refuses this process, so that no further attempt is made. */
const refusals: readonly string[] = [
  ErrorCode.AuthorizationViolation,
  ErrorCode.BadAuthentication,
  ErrorCode.AccountExpired,
  ErrorCode.BadCreds,
];

type Subscriber = (payload: Buffer) => void;
type Server = (payload: Buffer) => Buffer | Promise<Buffer>;

/** Settings of a NatsBus. */
export interface NatsBusOptions {
  readonly servers: ServersSource;
  /** Name of this process in the server's lists of connections. */
  readonly name: string;
  readonly clock: Clock;
  readonly log: Log;
}

/**
 * Bus over NATS servers. Connects at once, and again after every loss, until close(). A refusal by the server ends it at the first connection only: later it
 * means that a server is back before its accounts are, or that a secret is being replaced.
 */
export class NatsBus implements Bus {
  readonly name: string;
  readonly #options: NatsBusOptions;
  readonly #listener: BusListener;
  readonly #subscribers = new Map<string, Set<Subscriber>>();
  readonly #servers = new Map<string, Server>();
  readonly #stopped = new AbortController();
  #connection: NatsConnection | undefined;
  /** Aborts when the current connection ends. */
  #session = new AbortController();
  #isConnected = false;
  /** Bytes of payload that were published and not yet acknowledged by a flush. */
  #backlogBytes = 0;
  #numPending = 0;
  #reportedMs = -Infinity;
  /** Pauses between attempts to connect. */
  readonly #backoff: Backoff;
  readonly #addresses: NatsAddresses;
  #hasBeenConnected = false;

  constructor(options: NatsBusOptions, listener: BusListener) {
    this.#options = options;
    this.#listener = listener;
    this.#backoff = new Backoff({ clock: options.clock, firstMs: MIN_PAUSE_MS, mostMs: MAX_PAUSE_MS });
    this.#addresses = new NatsAddresses(options.servers, options.log);
    this.name = this.#addresses.name;
    void this.#connectForever();
  }

  get isConnected(): boolean {
    return this.#isConnected;
  }

  publish(subject: string, payload: Buffer): void {
    const connection = this.#connection;
    if (!connection || !this.#isConnected || this.#backlogBytes > MAX_BACKLOG_BYTES) return;
    const limit = connection.info?.max_payload ?? Infinity;
    if (payload.length > limit) {
      this.#options.log.error(
        { subject, bytes: payload.length, limit },
        'dropped a message that is larger than the NATS server accepts: raise its max_payload',
      );
      return;
    }
    connection.publish(subject, payload);
    this.#backlogBytes += payload.length;
    if (this.#backlogBytes === payload.length) void this.#flush(connection, this.#session.signal);
  }

  subscribe(subject: string, handler: Subscriber): () => void {
    const set = this.#subscribers.get(subject) ?? new Set();
    if (!this.#subscribers.has(subject)) {
      this.#subscribers.set(subject, set);
      if (this.#connection) this.#listenTo(this.#connection, subject);
    }
    set.add(handler);
    return () => set.delete(handler);
  }

  async request(subject: string, payload: Buffer, timeoutMs: number): Promise<Buffer> {
    const connection = this.#connection;
    if (!connection || !this.#isConnected) throw new Failure('instance_lost', `no connection to ${this.name}`);
    if (this.#numPending >= MAX_PENDING) {
      throw new Failure('overloaded', `${MAX_PENDING} requests wait on this connection`);
    }
    this.#numPending++;
    try {
      const asked = connection.request(subject, payload, { timeout: timeoutMs });
      const answer = await Promise.race([asked, ended(this.#session.signal, asked)]);
      const code = answer.headers?.get(ERROR_HEADER) ?? '';
      if (code === '') return bytesOf(answer);
      throw new Failure(isFailureCode(code) ? code : 'internal', bytesOf(answer).toString('utf8'));
    } catch (error) {
      if (error instanceof Failure) throw error;
      const { code } = error as NatsError;
      if (code === (ErrorCode.NoResponders as string)) throw new Failure('not_found', `no process serves ${subject}`);
      // The library reports a timeout also when it closes the connection.
      if (code === (ErrorCode.Timeout as string) && !connection.isClosed())
        throw new Failure('deadline_exceeded', `no answer on ${subject} within ${timeoutMs} ms`);
      throw new Failure('instance_lost', `${this.name}: ${messageOf(error)}`, { cause: error });
    } finally {
      this.#numPending--;
    }
  }

  serve(subject: string, handler: Server): () => void {
    const isNew = !this.#servers.has(subject);
    this.#servers.set(subject, handler);
    if (isNew && this.#connection) this.#serveOn(this.#connection, subject);
    return () => this.#servers.delete(subject);
  }

  close(): void {
    this.#stopped.abort();
    const connection = this.#connection;
    if (!connection) return;
    void connection
      .flush()
      .catch(() => undefined)
      .then(() => connection.close());
  }

  async #connectForever(): Promise<void> {
    const { signal } = this.#stopped;
    const isStopped = (): boolean => signal.aborted;
    while (!isStopped()) {
      const { address, isLast } = this.#addresses.next();
      try {
        await this.#connectOnce(address);
      } catch (error) {
        if (isStopped()) return;
        if (!this.#goesOn(error as NatsError, address)) return;
      }
      // Each server is tried once before the pause.
      if (isLast) await this.#backoff.pause(signal);
    }
  }

  /** Logs why there is no connection, at most every REPORT_MS. Returns whether another attempt makes sense. */
  #goesOn(error: NatsError, address: string): boolean {
    const { clock, log } = this.#options;
    const isRefused = refusals.includes(error.code);
    if (isRefused && !this.#hasBeenConnected) {
      const why = `${this.name} refuses this process: ${messageOf(error)}; see --bus-user, --bus-password-file, --bus-token, --bus-nkey, --bus-credentials`;
      this.#listener.onRefused(new Failure('unauthenticated', why, { cause: error }));
      return false;
    }
    if (clock.nowMs() - this.#reportedMs < REPORT_MS) return true;
    this.#reportedMs = clock.nowMs();
    const what = isRefused
      ? 'the NATS server refuses this process, which it has taken before: trying again, with what its files hold by then'
      : 'no connection to the NATS servers, trying again';
    const hint = /certificate required|client didn't provide a certificate|bad certificate/i.test(messageOf(error))
      ? ' (the server wants a certificate of this process: --bus-cert and --bus-key)'
      : '';
    log.warn({ bus: this.name, server: address, error: messageOf(error) + hint }, what);
    return true;
  }

  /**
   * Connects to a server, and resolves when the connection is closed or its server is silent. @throws NatsError when no connection is made, or the
   * server ends it with an error.
   */
  async #connectOnce(address: string): Promise<void> {
    const { name } = this.#options;
    const connection = await connect({ ...connectionOptions(this.#addresses.servers(), address), name });
    this.#addresses.learn(connection.info?.connect_urls);
    this.#connection = connection;
    for (const subject of this.#subscribers.keys()) this.#listenTo(connection, subject);
    for (const subject of this.#servers.keys()) this.#serveOn(connection, subject);
    const silent = this.#watch(connection);
    if (this.#stopped.signal.aborted) void connection.close();
    this.#session = new AbortController();
    // One listener per request, taken away when it ends.
    setMaxListeners(0, this.#session.signal);
    this.#backlogBytes = 0;
    let reason = 'the server does not answer';
    try {
      const flushed = connection.flush().then(() => true);
      if (!(await Promise.race([flushed, silent]))) return;
      this.#isConnected = true;
      this.#hasBeenConnected = true;
      this.#backoff.reset();
      if (!this.#stopped.signal.aborted) this.#listener.onConnected();
      const error: unknown = await Promise.race([connection.closed(), silent]);
      if (error === false) return;
      reason = error instanceof Error ? messageOf(error) : 'the connection was closed';
      if (error instanceof Error) throw error;
    } finally {
      const wasConnected = this.#isConnected;
      this.#connection = undefined;
      this.#isConnected = false;
      this.#session.abort();
      void connection.close();
      if (wasConnected && !this.#stopped.signal.aborted) this.#listener.onDisconnected(reason);
    }
  }

  /** Resolves with false when the server no longer answers pings; never resolves for a connection that is closed. */
  async #watch(connection: NatsConnection): Promise<false> {
    for await (const { type, data } of connection.status()) {
      if (type === DebugEvents.StaleConnection) return false;
      if (type === Events.Update) this.#addresses.learn(connection.info?.connect_urls);
      const error = typeof data === 'string' ? data : '';
      if (type === Events.Error) this.#options.log.warn({ bus: this.name, error }, 'the NATS server reports an error');
    }
    return new Promise(() => undefined);
  }

  #listenTo(connection: NatsConnection, subject: string): void {
    connection.subscribe(subject, {
      callback: (error, message) => {
        if (error) return;
        for (const handler of this.#subscribers.get(subject) ?? []) this.#deliver(handler, message);
      },
    });
  }

  #deliver(handler: Subscriber, message: Msg): void {
    try {
      handler(bytesOf(message));
    } catch (error) {
      const { subject } = message;
      this.#options.log.warn({ subject, error: messageOf(error) }, 'a bus message could not be read');
    }
  }

  #serveOn(connection: NatsConnection, subject: string): void {
    connection.subscribe(subject, {
      callback: (error, message) => {
        if (!error) void this.#answer(subject, message);
      },
    });
  }

  async #answer(subject: string, message: Msg): Promise<void> {
    try {
      const handler = this.#servers.get(subject);
      if (!handler) throw new Failure('not_found', `no process serves ${subject}`);
      message.respond(await handler(bytesOf(message)));
    } catch (error) {
      const named = headers();
      named.set(ERROR_HEADER, error instanceof Failure ? error.code : 'internal');
      message.respond(Buffer.from(messageOf(error)), { headers: named });
    }
  }

  /** Flushes until the server has acknowledged all published bytes, or the connection has ended. */
  async #flush(connection: NatsConnection, session: AbortSignal): Promise<void> {
    const isOver = (): boolean => session.aborted;
    while (this.#backlogBytes > 0 && !isOver()) {
      const bytes = this.#backlogBytes;
      const flushed = connection.flush();
      const isDone = await Promise.race([flushed, ended(session, flushed)]).then(
        () => true,
        () => false,
      );
      // A new connection has its own count of the backlog.
      if (!isDone || isOver()) return;
      this.#backlogBytes = Math.max(0, this.#backlogBytes - bytes);
    }
  }
}

/** Rejects with `instance_lost` when the connection ends before `asked` is settled. */
function ended(session: AbortSignal, asked: Promise<unknown>): Promise<never> {
  return new Promise((_resolve, reject) => {
    const end = (): void => {
      reject(new Failure('instance_lost', 'the connection to the bus ended'));
    };
    if (session.aborted) end();
    session.addEventListener('abort', end, { once: true });
    const release = (): void => {
      session.removeEventListener('abort', end);
    };
    asked.then(release, release);
  });
}

function bytesOf({ data }: Msg): Buffer {
  return Buffer.from(data.buffer, data.byteOffset, data.byteLength);
}

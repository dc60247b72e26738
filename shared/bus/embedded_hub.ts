/**
 * The hub of the embedded bus: lives in the only router, serves a stream per process, and is itself the bus of the router.
 *
 *   process ══ Connect(messages) ══► hub ──► local subscribers and servers
 *                              ◄══     ──► other processes that subscribed
 *
 * Bounds (P1): MAX_CONNECTIONS streams. A stream with more than MAX_BACKLOG_BYTES unread is ended; its process reconnects and asks
 * for snapshots. A process cannot take over a subject that the hub's own process serves.
 */
import { Failure, messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import { AsyncQueue } from '../base/async_queue.ts';
import type { Handler } from '../net/network.ts';
import { BusKind, type BusMessage } from '../protocol/messages.ts';
import type { Bus } from './bus.ts';

const MAX_CONNECTIONS = 1_024;
const MAX_BACKLOG_BYTES = 16 << 20;
/** Subjects that one process subscribes to or serves (P1): it needs a handful. */
const MAX_SUBJECTS = 64;

type Subscriber = (payload: Buffer) => void;
type Server = (payload: Buffer) => Buffer | Promise<Buffer>;

const EMPTY = Buffer.alloc(0);

/** Hub of the embedded bus, and the router's own end of it. */
export class EmbeddedHub implements Bus {
  readonly name = 'the hub';
  /** Always true: the hub is the bus itself. */
  readonly isConnected = true;
  readonly #log: Log;
  readonly #subscribers = new Map<string, Set<Subscriber>>();
  readonly #servers = new Map<string, Server>();
  /** Subjects that this process serves. */
  readonly #own = new Set<string>();
  readonly #connections = new Set<AsyncQueue<BusMessage>>();

  constructor(log: Log) {
    this.#log = log;
  }

  /**
   * Delivers to every subscriber. A message that a subscriber cannot read is only logged, because any process with the token can send
   * one.
   */
  publish(subject: string, payload: Buffer): void {
    for (const subscriber of this.#subscribers.get(subject) ?? []) {
      try {
        subscriber(payload);
      } catch (error) {
        this.#log.warn({ subject, error: messageOf(error) }, 'a bus message could not be read');
      }
    }
  }

  subscribe(subject: string, handler: Subscriber): () => void {
    const set = this.#subscribers.get(subject) ?? new Set();
    this.#subscribers.set(subject, set.add(handler));
    return () => {
      set.delete(handler);
      if (set.size === 0) this.#subscribers.delete(subject);
    };
  }

  async request(subject: string, payload: Buffer): Promise<Buffer> {
    const server = this.#servers.get(subject);
    if (!server) throw new Failure('not_found', `no process serves ${subject}`);
    return await server(payload);
  }

  serve(subject: string, handler: Server): () => void {
    this.#own.add(subject);
    const stop = this.#serveRemote(subject, handler);
    return () => {
      this.#own.delete(subject);
      stop();
    };
  }

  /** Registers a remote server of a subject. A newer one replaces it: a process that reconnected succeeds itself. */
  #serveRemote(subject: string, handler: Server): () => void {
    this.#servers.set(subject, handler);
    return () => {
      if (this.#servers.get(subject) === handler) this.#servers.delete(subject);
    };
  }

  close(): void {
    for (const messages of this.#connections) messages.end();
    this.#connections.clear();
  }

  readonly connect: Handler<'connect'> = (messages, { caller }) => this.#connection(messages, caller);

  async *#connection(messages: AsyncIterable<BusMessage>, caller: string): AsyncGenerator<BusMessage> {
    if (this.#connections.size >= MAX_CONNECTIONS) {
      throw new Failure('overloaded', `the hub serves at most ${MAX_CONNECTIONS} processes`);
    }
    let backlogBytes = 0;
    const out = new AsyncQueue<BusMessage>(({ payload }) => (backlogBytes -= payload.length));
    const connection = new Connection((message) => {
      if (backlogBytes > MAX_BACKLOG_BYTES) {
        connection.leave();
        out.fail(new Failure('overloaded', 'this process does not read what it subscribed to'));
        return;
      }
      backlogBytes += message.payload?.length ?? 0;
      out.push({ subject: '', payload: EMPTY, id: 0, ...message });
    });
    this.#connections.add(out);
    // The greeting: only now does the other side know that it is connected and admitted.
    connection.send({ kind: BusKind.PUBLISH });
    void this.#listen(messages, connection, caller).then(
      () => out.end(),
      (error: unknown) => out.fail(error),
    );
    try {
      yield* out;
    } finally {
      this.#connections.delete(out);
      connection.leave();
    }
  }

  /** Handles messages of one process until its stream ends. @throws Failure `overloaded` beyond MAX_SUBJECTS. */
  async #listen(messages: AsyncIterable<BusMessage>, connection: Connection, caller: string): Promise<void> {
    const { send, calls, undo } = connection;
    for await (const message of messages) {
      const { kind, subject } = message;
      if (kind === BusKind.PUBLISH) this.publish(subject, message.payload);
      else if ((kind === BusKind.SUBSCRIBE || kind === BusKind.SERVE) && undo.length >= MAX_SUBJECTS) {
        throw new Failure('overloaded', `a process has at most ${MAX_SUBJECTS} subjects`);
      } else if (kind === BusKind.SUBSCRIBE) {
        undo.push(this.subscribe(subject, (payload) => send({ kind: BusKind.PUBLISH, subject, payload })));
      } else if (kind === BusKind.SERVE) {
        if (this.#own.has(subject))
          this.#log.warn({ subject, caller }, 'refused a process that wants to serve a subject of the hub itself');
        else undo.push(this.#serveRemote(subject, (payload) => calls.ask(subject, payload)));
      } else if (kind === BusKind.REQUEST) void this.#answer(message, send);
      else calls.complete(message);
    }
  }

  async #answer({ subject, payload, id }: BusMessage, send: Send): Promise<void> {
    try {
      send({ kind: BusKind.REPLY, id, payload: await this.request(subject, payload) });
    } catch (error) {
      send({ kind: BusKind.ERROR, id, ...errorBody(error) });
    }
  }
}

type Send = (message: Partial<BusMessage> & Pick<BusMessage, 'kind'>) => void;

/** One process at the hub, with the subscriptions and served subjects to undo when it disconnects. */
class Connection {
  readonly send: Send;
  readonly calls: RemoteCalls;
  readonly undo: (() => void)[] = [];

  constructor(send: Send) {
    this.send = send;
    this.calls = new RemoteCalls(send);
  }

  /** A second call does nothing. */
  leave(): void {
    for (const step of this.undo.splice(0)) step();
    this.calls.fail();
  }
}

/** Requests that were sent down one stream and wait for their reply. Bounded (P1). */
export class RemoteCalls {
  static readonly MAX_PENDING = 1_024;
  readonly #send: Send;
  readonly #pending = new Map<number, { resolve: (payload: Buffer) => void; reject: (error: Error) => void }>();
  #nextId = 1;

  constructor(send: Send) {
    this.#send = send;
  }

  ask(subject: string, payload: Buffer): Promise<Buffer> {
    return new Promise((resolve, reject) => {
      if (this.#pending.size >= RemoteCalls.MAX_PENDING) {
        reject(new Failure('overloaded', `${RemoteCalls.MAX_PENDING} requests wait on this connection`));
        return;
      }
      const id = this.#nextId++;
      this.#pending.set(id, { resolve, reject });
      this.#send({ kind: BusKind.REQUEST, subject, payload, id });
    });
  }

  /** Completes the request that a REPLY or ERROR message belongs to; ignores an unknown id. */
  complete({ kind, subject, payload, id }: BusMessage): void {
    const call = this.#pending.get(id);
    this.#pending.delete(id);
    if (kind === BusKind.REPLY) call?.resolve(payload);
    else call?.reject(new Failure(subject === 'not_found' ? 'not_found' : 'internal', payload.toString('utf8')));
  }

  fail(): void {
    for (const call of this.#pending.values()) call.reject(new Failure('instance_lost', 'the bus connection ended'));
    this.#pending.clear();
  }
}

/** Returns the body of an ERROR message: the failure's code as `subject`, its text as `payload`. */
export function errorBody(error: unknown): { subject: string; payload: Buffer } {
  return { subject: error instanceof Failure ? error.code : 'internal', payload: Buffer.from(messageOf(error)) };
}

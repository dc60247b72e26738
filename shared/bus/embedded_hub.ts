/**
 * The hub of the embedded bus: lives in the one router, serves a gRPC stream per process, and is a bus itself for the router.
 *
 *   process ══ Connect(frames) ══► hub ──► local subscribers and servers
 *                              ◄══     ──► other processes that subscribed
 *
 * Bounds (P1): MAX_CONNECTIONS streams; a stream that does not read MAX_BACKLOG_BYTES is ended, its process reconnects and
 * asks for snapshots. A process serves what nobody serves here: a subject of the hub's own is not taken over.
 */
import { Failure, messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import type { HubCall } from '../protocol/calls.ts';
import { BusKind, type BusFrame } from '../protocol/messages.ts';
import { endWith } from '../protocol/open_call.ts';
import type { Bus } from './bus.ts';

const MAX_CONNECTIONS = 1_024;
const MAX_BACKLOG_BYTES = 16 << 20;
/** Subjects that one process subscribes to or serves (P1): it needs a handful. */
const MAX_SUBJECTS = 64;

type Subscriber = (payload: Buffer) => void;
type Server = (payload: Buffer) => Buffer | Promise<Buffer>;

const EMPTY = Buffer.alloc(0);

export class EmbeddedHub implements Bus {
  readonly #log: Log;
  readonly #subscribers = new Map<string, Set<Subscriber>>();
  readonly #servers = new Map<string, Server>();
  /** Subjects that this process serves. */
  readonly #own = new Set<string>();
  readonly #connections = new Set<HubCall>();

  constructor(log: Log) {
    this.#log = log;
  }

  /** A subscriber that cannot read a message does not end the process: anybody with the token can send one. */
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
    if (!server) throw new Failure('not_found', `nobody serves ${subject}`);
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

  /** The newest serves: a process that reconnected is its own successor. */
  #serveRemote(subject: string, handler: Server): () => void {
    this.#servers.set(subject, handler);
    return () => {
      if (this.#servers.get(subject) === handler) this.#servers.delete(subject);
    };
  }

  close(): void {
    for (const call of this.#connections) call.end();
    this.#connections.clear();
  }

  /** The gRPC handler of `Hub.Connect`. */
  readonly connect = (call: HubCall): void => {
    if (this.#connections.size >= MAX_CONNECTIONS) {
      // What a refused peer still sends is read and dropped, so that its stream can end.
      call.resume();
      endWith(call, new Failure('overloaded', `the hub serves at most ${MAX_CONNECTIONS} processes`));
      return;
    }
    this.#connections.add(call);
    const undo: (() => void)[] = [];
    let backlogBytes = 0;
    const send = (frame: Partial<BusFrame> & Pick<BusFrame, 'kind'>): void => {
      if (call.cancelled || backlogBytes > MAX_BACKLOG_BYTES) {
        call.end();
        return;
      }
      const size = frame.payload?.length ?? 0;
      backlogBytes += size;
      call.write({ subject: '', payload: EMPTY, id: 0, ...frame }, () => (backlogBytes -= size));
    };
    const calls = new RemoteCalls(send);
    // The greeting: only now does the other side know that it is connected and admitted.
    send({ kind: BusKind.publish });
    call.on('data', (frame: BusFrame) => {
      if (frame.kind === BusKind.publish) this.publish(frame.subject, frame.payload);
      else if ((frame.kind === BusKind.subscribe || frame.kind === BusKind.serve) && undo.length >= MAX_SUBJECTS) {
        endWith(call, new Failure('overloaded', `a process has at most ${MAX_SUBJECTS} subjects`));
      } else if (frame.kind === BusKind.subscribe) {
        undo.push(
          this.subscribe(frame.subject, (payload) => send({ kind: BusKind.publish, subject: frame.subject, payload })),
        );
      } else if (frame.kind === BusKind.serve) {
        if (this.#own.has(frame.subject)) {
          this.#log.warn({ subject: frame.subject, peer: call.getPeer() }, 'refused to have a subject taken over');
        } else undo.push(this.#serveRemote(frame.subject, (payload) => calls.ask(frame.subject, payload)));
      } else if (frame.kind === BusKind.request) void this.#answer(frame, send);
      else calls.settle(frame);
    });
    const leave = (): void => {
      if (!this.#connections.delete(call)) return;
      for (const step of undo) step();
      calls.fail();
    };
    call.on('cancelled', leave);
    call.on('error', leave);
    call.on('end', () => {
      leave();
      call.end();
    });
  };

  async #answer(
    { subject, payload, id }: BusFrame,
    send: (frame: Partial<BusFrame> & Pick<BusFrame, 'kind'>) => void,
  ): Promise<void> {
    try {
      send({ kind: BusKind.reply, id, payload: await this.request(subject, payload) });
    } catch (error) {
      send({ kind: BusKind.error, id, ...errorBody(error) });
    }
  }
}

/** Requests that were sent down one stream and wait for their reply. Bounded (P1). */
export class RemoteCalls {
  static readonly MAX_PENDING = 1_024;
  readonly #send: (frame: Partial<BusFrame> & Pick<BusFrame, 'kind'>) => void;
  readonly #pending = new Map<number, { resolve: (payload: Buffer) => void; reject: (error: Error) => void }>();
  #nextId = 1;

  constructor(send: (frame: Partial<BusFrame> & Pick<BusFrame, 'kind'>) => void) {
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
      this.#send({ kind: BusKind.request, subject, payload, id });
    });
  }

  /** A reply or an error frame. */
  settle({ kind, subject, payload, id }: BusFrame): void {
    const call = this.#pending.get(id);
    this.#pending.delete(id);
    if (kind === BusKind.reply) call?.resolve(payload);
    else call?.reject(new Failure(subject === 'not_found' ? 'not_found' : 'internal', payload.toString('utf8')));
  }

  fail(): void {
    for (const call of this.#pending.values()) call.reject(new Failure('instance_lost', 'the bus connection ended'));
    this.#pending.clear();
  }
}

/** An error frame says its code in `subject` and its message in `payload`. */
export function errorBody(error: unknown): { subject: string; payload: Buffer } {
  return { subject: error instanceof Failure ? error.code : 'internal', payload: Buffer.from(messageOf(error)) };
}

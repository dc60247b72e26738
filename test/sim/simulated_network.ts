/**
 * Calls over simulated links: latency, bandwidth, order within a direction, partitions, cuts, lost processes. A driver of
 * shared/net/network.ts, as gRPC is one.
 */
import assert from 'node:assert/strict';
import { setMaxListeners } from 'node:events';
import { asFailure, Failure, type FailureCode } from '../../shared/base/failure.ts';
import { AsyncQueue } from '../../shared/base/async_queue.ts';
import type { Random } from '../../shared/base/random.ts';
import type {
  CallName,
  CallOptions,
  Handlers,
  Listener,
  Network,
  Reply,
  Request,
  ServedCall,
} from '../../shared/net/network.ts';
import { subjects } from '../../shared/protocol/membership.ts';
import {
  BusKind,
  type BusMessage,
  type DecodeReplies,
  type DecodeRequest,
  type FetchReply,
  type RequestContext,
} from '../../shared/protocol/messages.ts';
import { DecodeSlots, type OpenSlot } from './decode_slots.ts';
import type { SimProcess, Simulation } from './simulation.ts';

type AnyHandler = (requests: AsyncIterable<object>, call: ServedCall) => AsyncIterable<object>;

interface Endpoint {
  readonly process: SimProcess;
  readonly handlers: Handlers;
}

/** A peer that does not answer at all for this long is lost, as keepalives have it. */
const KEEPALIVE_MS = 15_000;
/** A handler may go on for so long when its caller has left; a store's may be in the middle of a slow read. */
const MAX_ABANDONED_MS = 50;
const MAX_ABANDONED_STORE_MS = 3_000;

export interface LinkFaults {
  /** Slices of records, per million, that arrive with a flipped bit. */
  flipsPerMillion: number;
  /** Bus messages, per million, that arrive twice; `reordersPerMillion` counts those that arrive late. */
  duplicatesPerMillion: number;
  /** Bus messages, per million, that are lost; used only where a server is the bus. */
  lossesPerMillion: number;
  reordersPerMillion: number;
  /** Messages of decode instances, per million, that arrive twice, or cut. */
  repliesPerMillion: number;
}

/** An end of a plain socket. */
export interface SimLink {
  joins(a: SimProcess, b: SimProcess): boolean;
  touches(process: SimProcess): boolean;
  fail(reason: string): void;
}

/** Everything between processes. */
export class SimFabric {
  readonly simulation: Simulation;
  readonly #random: Random;
  /** Messages of one direction of one call that are not read yet. */
  readonly window: number;
  readonly #endpoints = new Map<string, Endpoint>();
  readonly #calls = new Set<SimCall>();
  /** Plain sockets: one for each of their ends. */
  readonly links = new Set<SimLink>();
  /**
   * Arrival time of the last message, by connection and direction. The two connections that processes open to each other have no
   * common order.
   */
  readonly #lastMs = new Map<string, number>();
  /** How much slower than the link this connection is. */
  readonly #lags = new Map<string, number>();
  /** Directions that are partitioned, with what waits. */
  readonly #held = new Map<string, (() => void)[]>();
  readonly faults: LinkFaults = {
    flipsPerMillion: 0,
    duplicatesPerMillion: 0,
    lossesPerMillion: 0,
    reordersPerMillion: 0,
    repliesPerMillion: 0,
  };
  latencyMs = 0.2;
  bytesPerMs = 100_000;
  numFlips = 0;
  /** Calls of these names that a process serves: their handlers run. */
  readonly #served = new Map<SimProcess, number>();
  /** Called with the description of an invariant that a call broke. */
  readonly onFault: (fault: string) => void;
  /** A process has published its goodbye, lost on the bus or not. */
  readonly onGoodbye: (process: SimProcess) => void;
  readonly onReply: (name: CallName, request: object | undefined, reply: object, server: SimProcess) => void;
  #nextPort = 1;

  /** `onReply` sees every reply with its call's first request, as it is sent. */
  constructor(
    simulation: Simulation,
    random: Random,
    window: number,
    { onReply, onFault, onGoodbye }: Pick<SimFabric, 'onReply' | 'onFault' | 'onGoodbye'>,
  ) {
    this.simulation = simulation;
    this.#random = random;
    this.window = window;
    this.onReply = onReply;
    this.onFault = onFault;
    this.onGoodbye = onGoodbye;
  }

  networkOf(process: SimProcess): Network {
    return {
      listen: (bind, handlers) => Promise.resolve(this.#listen(process, bind, handlers)),
      open: (address, name, requests, options) => this.#open(process, address, name, requests, options),
      hostTowards: () => Promise.resolve(process.name),
      // Connections are not simulated, and calls go on.
      forget: () => undefined,
      close: () => {
        for (const call of this.#calls) if (call.client === process) call.fail('cancelled', 'the process ends');
      },
    };
  }

  #listen(process: SimProcess, bind: string, handlers: Handlers): Listener {
    const address = bind.endsWith(':0') ? `${process.name}:${this.#nextPort++}` : bind;
    const known = this.#endpoints.get(address);
    if (known && !known.process.isDead) throw new Error(`cannot listen on ${address}: it is in use`);
    this.#endpoints.set(address, { process, handlers });
    return {
      address,
      setServing: () => undefined,
      close: () => {
        if (this.#endpoints.get(address)?.process === process) this.#endpoints.delete(address);
        for (const call of this.#calls) {
          if (call.server === process) call.fail('instance_lost', `${address} is closed`);
        }
        return Promise.resolve();
      },
    };
  }

  #open<M extends CallName>(
    client: SimProcess,
    address: string,
    name: M,
    requests: AsyncIterable<Request<M>>,
    options: CallOptions,
  ): AsyncIterableIterator<Reply<M>> {
    const call = new SimCall(this, client, address, name, options);
    this.#calls.add(call);
    call.begin(requests);
    return call.replies;
  }

  endpoint(address: string): Endpoint | undefined {
    const found = this.#endpoints.get(address);
    return found?.process.isDead ? undefined : found;
  }

  over(call: SimCall): void {
    this.#calls.delete(call);
  }

  /** Decode, Prefill and Embed calls that run there. */
  numServed(process: SimProcess): number {
    return this.#served.get(process) ?? 0;
  }

  serving(process: SimProcess, change: 1 | -1): void {
    this.#served.set(process, this.numServed(process) + change);
  }

  /** Calls of these names that are open, those of one client or all. A stream of calls counts as the calls that it carries. */
  openCalls(names: readonly OpenCall['name'][], client?: SimProcess): OpenCall[] {
    return this.#livingCalls(client)
      .flatMap((call) => call.openCalls)
      .filter(({ name }) => names.includes(name));
  }

  /** Calls that their callers have cancelled, and whose slots are taken as long as their servers have not ended them. */
  leavingCalls(): OpenCall[] {
    return this.#livingCalls().flatMap((call) => call.leavingCalls);
  }

  #livingCalls(client?: SimProcess): SimCall[] {
    return [...this.#calls].filter((call) => (client ?? call.client) === call.client && !call.client.isDead);
  }

  /** From one process to another, in order on its connection, unless it is told to be late. An answer goes back on the asker's. */
  send(
    from: SimProcess,
    to: SimProcess,
    bytes: number,
    label: string,
    deliver: () => void,
    { lateMs = 0, isAnswer = false } = {},
  ): void {
    const direction = `${from.name}>${to.name}`;
    const connection = isAnswer ? `${direction} answers` : direction;
    const held = this.#held.get(direction);
    if (held) {
      held.push(() => {
        this.send(from, to, bytes, label, deliver, { lateMs, isAnswer });
      });
      return;
    }
    const now = this.simulation.nowMs;
    const lag = this.#lags.get(connection) ?? this.#random.pick([1, 1, 1, 4]);
    this.#lags.set(connection, lag);
    const arrivalMs = now + lag * this.latencyMs + bytes / this.bytesPerMs;
    const atMs = Math.max(arrivalMs, this.#lastMs.get(connection) ?? 0);
    if (lateMs === 0) this.#lastMs.set(connection, atMs);
    this.simulation.atTime(atMs + lateMs, to, `◄ ${from.name} ${label}`, deliver);
  }

  isFaulty(perMillion: number): boolean {
    return perMillion > 0 && this.#random.chance(perMillion, 1_000_000);
  }

  below(bound: number): number {
    return this.#random.below(bound);
  }

  /**
   * Holds everything sent from one process to the other until {@link heal}. After KEEPALIVE_MS, calls and sockets between the two
   * fail.
   */
  partition(from: SimProcess, to: SimProcess): void {
    const direction = `${from.name}>${to.name}`;
    if (this.#held.has(direction)) return;
    const held: (() => void)[] = [];
    this.#held.set(direction, held);
    this.simulation.at(KEEPALIVE_MS, undefined, `keepalive ${direction}`, () => {
      if (this.#held.get(direction) !== held) return;
      for (const call of this.#between(from, to)) call.fail('instance_lost', 'no answer to keepalives');
      this.cutLinks(from, to);
    });
  }

  /** Whether something that one of them says waits. */
  isParted(a: SimProcess, b: SimProcess): boolean {
    return this.#held.has(`${a.name}>${b.name}`) || this.#held.has(`${b.name}>${a.name}`);
  }

  heal(from: SimProcess, to: SimProcess): void {
    const direction = `${from.name}>${to.name}`;
    const held = this.#held.get(direction) ?? [];
    this.#held.delete(direction);
    for (const send of held) send();
  }

  healAll(): void {
    for (const [direction, held] of [...this.#held]) {
      this.#held.delete(direction);
      for (const send of held) send();
    }
  }

  /** The connection between two breaks: every call on it. */
  cut(a: SimProcess, b: SimProcess): void {
    for (const call of this.#between(a, b)) call.fail('session_broken', 'the connection broke');
    this.cutLinks(a, b);
  }

  /** Only the plain sockets between two break. */
  cutLinks(a: SimProcess, b: SimProcess): void {
    for (const link of [...this.links]) if (link.joins(a, b)) link.fail('the connection broke');
  }

  #between(a: SimProcess, b: SimProcess): SimCall[] {
    return [...this.#calls].filter(
      ({ client, server }) => (client === a && server === b) || (client === b && server === a),
    );
  }

  /** A process is gone: those it talked with see their calls reset. */
  killed(process: SimProcess): void {
    for (const call of [...this.#calls]) {
      if (call.client === process) call.clientDied();
      else if (call.server === process) call.fail('instance_lost', 'the connection was reset');
    }
    for (const link of [...this.links]) if (link.touches(process)) link.fail('the connection was reset');
  }
}

/** A call as its caller has it open. */
export interface OpenCall extends OpenSlot {
  readonly client: SimProcess;
  readonly server: SimProcess | undefined;
}

/** One call, with both of its ends. */
class SimCall {
  readonly #fabric: SimFabric;
  readonly client: SimProcess;
  readonly address: string;
  readonly name: CallName;
  server: SimProcess | undefined;
  /** Since when nobody there knows what it is for. */
  orphanedSinceMs: number | undefined;
  /** Replies that the client reads. */
  readonly replies: AsyncQueue<object>;
  readonly #options: CallOptions;
  readonly #left = new AbortController();
  readonly #requests = new AsyncQueue<object>();
  #isOver = false;
  /** A handler runs for it. */
  #isServed = false;
  #first: object | undefined;
  /** Delivered once more when the call breaks: a reader must not take it for news. */
  #last: object | undefined;
  #numInFlight = 0;
  #onCredit: () => void = () => undefined;
  readonly #timedOut = new AbortController();
  /** The calls that a stream of calls carries. */
  readonly #slots: DecodeSlots | undefined;
  /** A message of the stream was cut on its way. */
  #isCut = false;

  constructor(fabric: SimFabric, client: SimProcess, address: string, name: CallName, options: CallOptions) {
    this.#fabric = fabric;
    this.client = client;
    this.address = address;
    this.name = name;
    this.#options = options;
    if (name === 'decode')
      this.#slots = new DecodeSlots(address, (change) => {
        if (this.server) fabric.serving(this.server, change);
      });
    setMaxListeners(0, this.#left.signal);
    this.replies = new AsyncQueue(() => {
      const { server } = this;
      if (server) fabric.send(client, server, 0, `${name} credit`, () => this.#credit());
    });
    const leave = this.replies.return.bind(this.replies);
    this.replies.return = () => {
      // Nobody stops reading the stream of all calls, but for replies that cannot be right.
      if (this.#slots && !this.#isOver && !this.#isCut)
        fabric.onFault(`R1: ${client.name} cannot read what ${address} sent, and nothing was cut`);
      this.#leave(undefined);
      return leave();
    };
  }

  /** Id of the request trace that the call belongs to: its request id up to the attempt's number; undefined without a request context. */
  get recordId(): string | undefined {
    const first = this.#first as { context?: RequestContext; start?: { context: RequestContext } } | undefined;
    return (first?.context ?? first?.start?.context)?.requestId.split('.')[0];
  }

  /** The call, or the calls that it carries. */
  get openCalls(): OpenCall[] {
    return this.#slots ? this.#callsIn(this.#slots.open) : [this];
  }

  /** Calls that it carries, which the client has cancelled and the server has not ended. */
  get leavingCalls(): OpenCall[] {
    return this.#callsIn(this.#slots?.leaving ?? []);
  }

  #callsIn(slots: readonly OpenSlot[]): OpenCall[] {
    const { client, server } = this;
    return slots.map((slot) => Object.assign(slot, { client, server }));
  }

  begin(requests: AsyncIterable<object>): void {
    const { signal, timeoutMs } = this.#options;
    const follow = (): void => {
      const { reason } = signal as { reason: unknown };
      this.#leave(reason instanceof Failure ? reason : new Failure('cancelled', 'the caller went away'));
    };
    if (signal.aborted) {
      follow();
      return;
    }
    signal.addEventListener('abort', follow, { once: true });
    this.#timedOut.signal.addEventListener('abort', () => {
      signal.removeEventListener('abort', follow);
    });
    if (timeoutMs !== undefined) {
      void this.#fabric.simulation
        .clockOf(this.client)
        .sleep(timeoutMs, this.#timedOut.signal)
        .then(() => {
          if (!this.#isOver) this.#leave(new Failure('deadline_exceeded', `no end within ${timeoutMs} ms`));
        });
    }
    const endpoint = this.#fabric.endpoint(this.address);
    if (!endpoint) {
      this.#fabric.simulation.at(this.#fabric.latencyMs, this.client, `${this.name} refused by ${this.address}`, () => {
        this.#end(new Failure('instance_lost', `${this.address}: nobody listens`));
      });
      return;
    }
    this.server = endpoint.process;
    this.#fabric.send(this.client, endpoint.process, 100, `${this.name} opens`, () => {
      this.#serve(endpoint);
    });
    void this.#pump(requests);
  }

  async #pump(requests: AsyncIterable<object>): Promise<void> {
    const { server } = this;
    assert(server);
    try {
      let numSent = 0;
      for await (const request of requests) {
        if (this.#isOver) return;
        const late = this.#lateness(request);
        if (late === 'twice') this.#sendRequest(server, request, 0);
        this.#sendRequest(server, request, typeof late === 'number' ? late : 0);
        // No faster than it goes out: what is pushed meanwhile waits with who pushes it. The stream of all calls has room for a few
        // messages of each.
        if (!this.#slots && ++numSent % this.#fabric.window === 0) {
          await new Promise<void>((resolve) => {
            this.#fabric.send(server, this.client, 0, `${this.name} ack`, resolve, { isAnswer: true });
          });
        }
      }
      if (this.name === 'connect')
        this.#fabric.send(this.client, server, 0, `${this.name} has said all`, () => this.#requests.end());
    } catch (error) {
      this.#leave(asFailure(error));
    }
  }

  #sendRequest(server: SimProcess, request: object, lateMs: number): void {
    this.#first ??= request;
    const isGoodbye = this.name === 'connect' && (request as BusMessage).subject.endsWith(subjects.goodbye);
    if (isGoodbye) this.#fabric.onGoodbye(this.client);
    this.#slots?.sent(request as DecodeRequest);
    const deliver = (): void => {
      this.#slots?.taken(request as DecodeRequest);
      this.#requests.push(request);
    };
    this.#fabric.send(this.client, server, 200, `${this.name} request`, deliver, { lateMs });
  }

  /** Samples a fault for a bus message that expects no answer: delivered twice, late by some milliseconds, or neither (undefined). */
  #lateness(message: object): 'twice' | number | undefined {
    if (this.name === 'decode' && 'finishes' in message)
      return this.#fabric.isFaulty(this.#fabric.faults.repliesPerMillion) ? 'twice' : undefined;
    if (this.name !== 'connect' || (message as BusMessage).kind !== BusKind.PUBLISH) return undefined;
    if ((message as BusMessage).subject === '') return undefined;
    const { faults } = this.#fabric;
    if (this.#fabric.isFaulty(faults.duplicatesPerMillion)) return 'twice';
    return this.#fabric.isFaulty(faults.reordersPerMillion) ? 1 + this.#fabric.below(40) : undefined;
  }

  #serve({ process, handlers }: Endpoint): void {
    // The connection broke before the call arrived.
    if (this.#left.signal.aborted) return;
    this.#isServed = true;
    const handler = handlers[this.name] as unknown as AnyHandler | undefined;
    const run = async (): Promise<void> => {
      if (!handler) throw new Failure('cluster_mismatch', `no process serves ${this.name}`);
      for await (const reply of handler(this.#requests, { signal: this.#left.signal, caller: this.client.name })) {
        if (this.#left.signal.aborted) return;
        const late = this.#lateness(reply);
        this.#slots?.replied(reply as DecodeReplies);
        if (late === 'twice') this.#sendReply(process, reply, 0);
        this.#sendReply(process, reply, typeof late === 'number' ? late : 0);
        while (this.#isHeldBack()) {
          await new Promise<void>((resolve) => {
            this.#onCredit = resolve;
          });
        }
      }
    };
    const isSequence = this.name === 'embed';
    if (isSequence) this.#fabric.serving(process, 1);
    run()
      .finally(() => {
        this.#isServed = false;
        this.#slots?.ended();
        if (isSequence) this.#fabric.serving(process, -1);
      })
      .then(
        () => undefined,
        (error: unknown) => asFailure(error),
      )
      .then((failure) => {
        void this.#requests.return();
        if (process.isDead) return;
        this.#fabric.send(
          process,
          this.client,
          0,
          `${this.name} ends${failure ? `: ${failure.code}` : ''}`,
          () => {
            this.#end(failure && new Failure(failure.code, `${this.address}: ${failure.message}`));
          },
          { isAnswer: true },
        );
      })
      .catch((error: unknown) => {
        throw error;
      });
  }

  /** Whether the window is full, since the reader is behind. */
  #isHeldBack(): boolean {
    return this.#numInFlight >= this.#fabric.window && !this.#left.signal.aborted;
  }

  #sendReply(server: SimProcess, reply: object, lateMs: number): void {
    this.#numInFlight++;
    this.#fabric.onReply(this.name, this.#first, reply, server);
    const carried = this.#carried(reply);
    const bytes = 'data' in carried ? (carried as FetchReply).data.length : 100;
    this.#fabric.send(
      server,
      this.client,
      bytes,
      `${this.name} reply`,
      () => {
        this.#last = carried;
        this.#slots?.received(carried as DecodeReplies);
        this.replies.push(carried);
      },
      { lateMs, isAnswer: true },
    );
  }

  /** A copy of what belongs to the sender, perhaps with a bit flipped, or without its last tokens. */
  #carried(reply: object): object {
    if (this.name === 'decode') return this.#perhapsCut(reply as DecodeReplies);
    if (this.name !== 'fetch') return reply;
    const slice = reply as FetchReply;
    const data = Buffer.from(slice.data);
    if (this.#fabric.isFaulty(this.#fabric.faults.flipsPerMillion)) {
      this.#fabric.numFlips++;
      const at = this.#fabric.below(data.length);
      data[at] = (data[at] ?? 0) ^ (1 << this.#fabric.below(8));
    }
    return { ...slice, data };
  }

  #perhapsCut(replies: DecodeReplies): DecodeReplies {
    const { tokens } = replies;
    if (tokens.length === 0 || !this.#fabric.isFaulty(this.#fabric.faults.repliesPerMillion)) return replies;
    this.#isCut = true;
    return { ...replies, tokens: tokens.subarray(0, 4 * this.#fabric.below(tokens.length / 4)) };
  }

  #credit(): void {
    this.#numInFlight--;
    this.#onCredit();
  }

  /** The client has no more interest; whoever serves is told, if it can be. */
  #leave(why: Failure | undefined): void {
    if (this.#isOver) return;
    const { server } = this;
    this.#end(why);
    if (why) this.replies.fail(why);
    if (server) this.#fabric.send(this.client, server, 0, `${this.name} leaves`, () => this.#abandon());
  }

  /** The client hears nothing any more. */
  #end(why: Failure | undefined): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#slots?.left();
    this.#timedOut.abort();
    this.replies.end(why);
    this.#fabric.over(this);
  }

  /** The server's side of an end that it did not make. */
  #abandon(): void {
    const { server } = this;
    if (server && !this.#left.signal.aborted && ['decode', 'embed', 'fetch'].includes(this.name)) {
      const limitMs = server.name.startsWith('store') ? MAX_ABANDONED_STORE_MS : MAX_ABANDONED_MS;
      this.#fabric.simulation.at(limitMs, server, 'looks after a call', () => {
        if (this.#isServed) this.#fabric.onFault(`R2: ${server.name} serves a ${this.name} call whose caller left`);
      });
    }
    this.#left.abort();
    this.#requests.end();
    this.#onCredit();
  }

  /** Breaks the call for both sides, each after the link's latency. */
  fail(code: FailureCode, message: string): void {
    if (this.#isOver) return;
    const { server, client } = this;
    this.#fabric.over(this);
    this.#fabric.simulation.at(this.#fabric.latencyMs, client, `${this.name} broken: ${code}`, () => {
      if (this.name === 'decode' && this.#last) this.replies.push(this.#last);
      this.#end(new Failure(code, `${this.address}: ${message}`));
    });
    if (server) {
      this.#fabric.simulation.at(this.#fabric.latencyMs, server, `${this.name} broken`, () => {
        this.#abandon();
      });
    }
  }

  clientDied(): void {
    const { server } = this;
    this.#isOver = true;
    this.#fabric.over(this);
    if (!server) return;
    this.#fabric.simulation.at(this.#fabric.latencyMs, server, `${this.name}: the caller died`, () => {
      this.#abandon();
    });
  }
}

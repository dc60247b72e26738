/**
 * What processes ask of one another: the calls of penstock.proto, each a stream of requests and a stream of replies. Who carries
 * them is a driver: gRPC between machines, simulated links in tests. Above this wall nobody knows which.
 *
 * A call begins when it is made. It ends with its last reply, with a {@link Failure} of the closed table, or when its reader leaves
 * or its signal aborts: then whoever serves it sees its own signal abort (R2). A signal that aborts with a Failure `instance_lost`
 * says that the peer is gone and can be told nothing.
 */
import { Failure } from '../base/failure.ts';
import type {
  BusMessage,
  DecodeReply,
  DecodeRequest,
  DescribePage,
  DescribeRequest,
  DrainReply,
  DrainRequest,
  FetchReply,
  FetchRequest,
  ChannelReply,
  ChannelRequest,
  OfferReply,
  OfferRequest,
  PrefillReply,
  PrefillRequest,
  SnapshotPage,
  SnapshotRequest,
} from '../protocol/messages.ts';

export interface HealthRequest {
  readonly service: string;
}

export interface HealthReply {
  /** Its number, or its name. */
  readonly status: number | string;
}

/** Per call: what is asked, and what comes back. */
interface Calls {
  /** A run of blocks as a stream of records, in order, in slices. Ends at the first block that cannot be had. */
  fetch: [request: FetchRequest, reply: FetchReply];
  openChannel: [request: ChannelRequest, reply: ChannelReply];
  offer: [request: OfferRequest, reply: OfferReply];
  snapshot: [request: SnapshotRequest, reply: SnapshotPage];
  prefill: [request: PrefillRequest, reply: PrefillReply];
  decode: [request: DecodeRequest, reply: DecodeReply];
  drain: [request: DrainRequest, reply: DrainReply];
  /** Of an engine's model, what a router needs to serve it. */
  describe: [request: DescribeRequest, reply: DescribePage];
  /** The standard health service; `service` is the epoch of the process that is meant: another one does not know it. */
  check: [request: HealthRequest, reply: HealthReply];
  /** The embedded bus. */
  connect: [request: BusMessage, reply: BusMessage];
}
export type CallName = keyof Calls;
export type Request<M extends CallName> = Calls[M][0];
export type Reply<M extends CallName> = Calls[M][1];

export interface CallOptions {
  readonly signal: AbortSignal;
  /** The call fails with `deadline_exceeded` after this; undefined: it lives as long as its process. */
  readonly timeoutMs: number | undefined;
}

/** A call as the one who serves it sees it. */
export interface ServedCall {
  /** Aborts when the caller leaves or is lost, and at the call's deadline. */
  readonly signal: AbortSignal;
  /** The caller's address, for people. */
  readonly caller: string;
}

/** Serves one kind of call. A Failure that it throws is the caller's; replies are taken no faster than they can be sent. */
export type Handler<M extends CallName> = (
  requests: AsyncIterable<Request<M>>,
  call: ServedCall,
) => AsyncIterable<Reply<M>>;
export type Handlers = { readonly [M in CallName]?: Handler<M> };

export interface Listener {
  /** HOST:PORT as it was bound, with the port that it got. */
  readonly address: string;
  /** What health checks hear. */
  setServing(isServing: boolean): void;
  /** Takes no new calls; open ones may end within `graceMs`, then they are reset. */
  close(graceMs: number): Promise<void>;
}

export interface Network {
  /** @throws Error naming the address, for instance when it is in use. */
  /** `epoch`: the name under which health checks ask for this process. */
  listen(bind: string, handlers: Handlers, epoch?: string): Promise<Listener>;
  /** The host by which the process at `peer` reaches this one: that of the interface that leads there. @throws Error for an unknown name */
  hostTowards(peer: string): Promise<string>;
  /** Begins a call at once. */
  open<M extends CallName>(
    address: string,
    name: M,
    requests: AsyncIterable<Request<M>>,
    options: CallOptions,
  ): AsyncIterableIterator<Reply<M>>;
  /** A peer that is gone: its connection is closed when its open calls have ended. */
  forget(address: string): void;
  close(): void;
}

/** A call that asks once. */
export function ask<M extends CallName>(
  network: Network,
  address: string,
  name: M,
  request: Request<M>,
  options: CallOptions,
): AsyncIterableIterator<Reply<M>> {
  return network.open(address, name, only(request), options);
}

/** A call that asks once and has one reply. @throws Failure */
export async function askOnce<M extends CallName>(
  network: Network,
  address: string,
  name: M,
  request: Request<M>,
  options: CallOptions,
): Promise<Reply<M>> {
  let last: Reply<M> | undefined;
  for await (const reply of ask(network, address, name, request, options)) last = reply;
  if (last === undefined) throw new Failure('internal', `${address} answered nothing to ${name}`);
  return last;
}

async function* only<T>(value: T): AsyncGenerator<T> {
  yield value;
}

/** Serves calls that ask once: `serve` has the first request. */
export function answering<M extends CallName>(
  serve: (request: Request<M>, call: ServedCall) => AsyncIterable<Reply<M>>,
): Handler<M> {
  return async function* (requests, call) {
    const first = await requests[Symbol.asyncIterator]().next();
    if (first.done) throw new Failure('invalid_request', 'the call ended before it said what it wants');
    yield* serve(first.value, call);
  };
}

/** Serves calls that ask once and have one reply. */
export function answeringOnce<M extends CallName>(
  serve: (request: Request<M>, call: ServedCall) => Promise<Reply<M>> | Reply<M>,
): Handler<M> {
  return answering<M>(async function* (request, call) {
    yield await serve(request, call);
  });
}

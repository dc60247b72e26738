/**
 * Calls between processes, as penstock.proto defines them: each has a stream of requests and a stream of replies. A driver carries
 * them: gRPC between machines, simulated links in tests. Code above this interface does not know which.
 *
 * A call begins when it is made. A call ends with its last reply, or with a {@link Failure} of the closed table. When its reader
 * leaves or its signal aborts, the call ends too, and the server sees its own signal abort (R2). A signal that aborts with a Failure
 * `instance_lost` means that the peer is gone, so no cancel message is sent.
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

/** Request of a health check; `service` is empty, or the epoch of the process that is meant. */
export interface HealthRequest {
  readonly service: string;
}

/** Reply of a health check. */
export interface HealthReply {
  /** Serving status, by number (1 is SERVING) or by name. */
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
  /** Reads what a router needs to serve an engine's model, in pages. */
  describe: [request: DescribeRequest, reply: DescribePage];
  /** The standard health service; `service` is the epoch of the process that is meant: another one does not know it. */
  check: [request: HealthRequest, reply: HealthReply];
  /** The embedded bus. */
  connect: [request: BusMessage, reply: BusMessage];
}
/** Name of a call between processes. */
export type CallName = keyof Calls;
/** Request type of call `M`. */
export type Request<M extends CallName> = Calls[M][0];
/** Reply type of call `M`. */
export type Reply<M extends CallName> = Calls[M][1];

/** Cancellation and deadline of one call. */
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
/** Handlers of a process, by call name; a process does not serve a call without one. */
export type Handlers = { readonly [M in CallName]?: Handler<M> };

/** Open server of a process. */
export interface Listener {
  /** HOST:PORT as it was bound, with the port that it got. */
  readonly address: string;
  /** Sets the status that health checks receive. */
  setServing(isServing: boolean): void;
  /** Takes no new calls; open ones may end within `graceMs`, then they are reset. */
  close(graceMs: number): Promise<void>;
}

/** Transport for calls between processes: gRPC in production, simulated links in tests. */
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

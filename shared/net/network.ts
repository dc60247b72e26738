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
  DecodeReplies,
  DecodeRequest,
  DescribePage,
  DescribeRequest,
  DrainReply,
  DrainRequest,
  EmbedReply,
  EmbedRequest,
  FetchReply,
  FetchRequest,
  ChannelReply,
  ChannelRequest,
  OfferReply,
  OfferRequest,
  PolicyReply,
  PolicyRequest,
  ForgetReply,
  ForgetRequest,
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

/** Request and reply types of each call. */
interface Calls {
  /**
   * Fetches a run of blocks: a stream of records in order, sent in slices or offered over a data channel. Ends at the first block that
   * the holder does not have.
   */
  fetch: [request: FetchRequest, reply: FetchReply];
  openChannel: [request: ChannelRequest, reply: ChannelReply];
  offer: [request: OfferRequest, reply: OfferReply];
  snapshot: [request: SnapshotRequest, reply: SnapshotPage];
  embed: [request: EmbedRequest, reply: EmbedReply];
  /** Carries all Decode and Prefill calls from a router to an instance; see decode/decode_stream.ts. */
  decode: [request: DecodeRequest, reply: DecodeReplies];
  drain: [request: DrainRequest, reply: DrainReply];
  /** Reads what a router needs to serve an engine's model, in pages. */
  describe: [request: DescribeRequest, reply: DescribePage];
  /** Sets or reports the placement policy of a router. */
  policy: [request: PolicyRequest, reply: PolicyReply];
  /** Deletes the blocks of a tenant: at a router everywhere, at an engine or a store its own. */
  forget: [request: ForgetRequest, reply: ForgetReply];
  /** The standard health service; `service` is the epoch of the process that is meant. Any other process replies `not_found`. */
  check: [request: HealthRequest, reply: HealthReply];
  /** Connects a member to the bus that the router embeds. */
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

/** Server's view of a call. */
export interface ServedCall {
  /** Aborts when the caller leaves or is lost, and at the call's deadline. */
  readonly signal: AbortSignal;
  /** The caller's address, for people. */
  readonly caller: string;
}

/**
 * Serves one kind of call. A Failure that the handler throws is sent to the caller; replies are requested from the handler no faster
 * than they can be sent.
 */
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
  /**
   * Listens for calls; `epoch` is the name under which health checks ask for this process. @throws Error naming the address, for
   * instance when it is in use.
   */
  listen(bind: string, handlers: Handlers, epoch?: string): Promise<Listener>;
  /**
   * Returns the host at which the process at `peer` reaches this one: the address of the local interface that leads there. @throws
   * Error when the name is unknown.
   */
  hostTowards(peer: string): Promise<string>;
  /** Begins a call at once. */
  open<M extends CallName>(
    address: string,
    name: M,
    requests: AsyncIterable<Request<M>>,
    options: CallOptions,
  ): AsyncIterableIterator<Reply<M>>;
  /** Closes the connection to a peer that is gone, once its open calls have ended. */
  forget(address: string): void;
  /** Ends all open calls and closes all connections. */
  close(): void;
}

/** Makes a call with a single request. */
export function ask<M extends CallName>(
  network: Network,
  address: string,
  name: M,
  request: Request<M>,
  options: CallOptions,
): AsyncIterableIterator<Reply<M>> {
  return network.open(address, name, only(request), options);
}

/** Makes a call with a single request and a single reply. @throws Failure */
export async function askOnce<M extends CallName>(
  network: Network,
  address: string,
  name: M,
  request: Request<M>,
  options: CallOptions,
): Promise<Reply<M>> {
  let last: Reply<M> | undefined;
  for await (const reply of ask(network, address, name, request, options)) last = reply;
  if (last === undefined) {
    const told = 'an instance ended a call without an answer';
    throw new Failure('internal', `${address} answered nothing to ${name}`, { told });
  }
  return last;
}

async function* only<T>(value: T): AsyncGenerator<T> {
  yield value;
}

/** Returns a handler of calls with a single request, which `serve` receives. */
export function answering<M extends CallName>(
  serve: (request: Request<M>, call: ServedCall) => AsyncIterable<Reply<M>>,
): Handler<M> {
  return async function* (requests, call) {
    const first = await requests[Symbol.asyncIterator]().next();
    if (first.done) throw new Failure('invalid_request', 'the call ended before its first message');
    yield* serve(first.value, call);
  };
}

/** Returns a handler of calls with a single request and a single reply. */
export function answeringOnce<M extends CallName>(
  serve: (request: Request<M>, call: ServedCall) => Promise<Reply<M>> | Reply<M>,
): Handler<M> {
  return answering<M>(async function* (request, call) {
    yield await serve(request, call);
  });
}

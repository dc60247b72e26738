/**
 * The network over gRPC: one server per process, one client per peer, a cluster token on every call, failures as codes of the
 * closed table, a deadline everywhere.
 */
import assert from 'node:assert/strict';
import { createSocket } from 'node:dgram';
import { lookup } from 'node:dns/promises';
import {
  Client,
  type Metadata,
  Server,
  type CallOptions as GrpcOptions,
  type UntypedServiceImplementation,
} from '@grpc/grpc-js';
import { HealthImplementation } from 'grpc-health-check';
import type { Clock } from '../../base/clock.ts';
import { Current } from '../../base/current.ts';
import { Failure, messageOf } from '../../base/failure.ts';
import { AsyncQueue } from '../../base/async_queue.ts';
import type { CallName, CallOptions, Handlers, Listener, Network, Reply, Request } from '../network.ts';
import type { TlsTexts } from '../tls_texts.ts';
import { Certificates, channelOptions, clientOptions, serverCredentials } from './channel_options.ts';
import { OpenCall } from './open_call.ts';
import { watchRefusedClients, type OnRefusedClient } from './refused_clients.ts';
import { serveDuplex, serveUnary, type AnyHandler } from './serve.ts';
import { toFailure } from './status.ts';
import { requireToken, withToken } from './token_guard.ts';
import { explained } from './tls_trouble.ts';
import { methodOf, serviceOf, wires, type Wire } from './wire.ts';

const MAX_CLIENTS = 4_096;

/** The {@link Network} over gRPC: one server per listener, one client per peer address. */
export class GrpcNetwork implements Network {
  /** Tokens that are taken (cluster_tokens.ts), the one that is sent first. */
  readonly #tokens: Current<string>;
  readonly #onRefusedClient: OnRefusedClient | undefined;
  readonly #clock: Clock;
  readonly #tls: Current<TlsTexts> | undefined;
  readonly #certificates: Certificates | undefined;
  /** One client per peer address. Bounded (P1): beyond MAX_CLIENTS, more than a large cluster has members, the oldest is closed. */
  readonly #clients = new Map<string, Client>();

  /**
   * An empty token admits everyone: loopback only. Of several (cluster_tokens.ts) the first is sent and all are taken. `tls`: calls are encrypted,
   * and both sides checked. What is replaced later holds for calls and connections that begin then; open ones go on, among them the streams that carry Decode and Prefill calls.
   */
  constructor(
    token: string | Current<string>,
    clock: Clock,
    tls?: TlsTexts | Current<TlsTexts>,
    onRefusedClient?: OnRefusedClient,
  ) {
    this.#onRefusedClient = onRefusedClient;
    this.#tokens = Current.of(token);
    this.#clock = clock;
    this.#tls = tls && Current.of(tls);
    this.#certificates = this.#tls && new Certificates(this.#tls);
  }

  async listen(bind: string, handlers: Handlers, epoch = ''): Promise<Listener> {
    const server = new Server({ ...channelOptions, interceptors: [requireToken(this.#tokens)] });
    const isServed = (name: CallName): boolean => handlers[name] !== undefined && wires[name].service !== 'Health';
    const names = (Object.keys(wires) as CallName[]).filter(isServed);
    for (const service of new Set(names.map((name) => wires[name].service))) {
      const own = names.filter((name) => wires[name].service === service);
      const served: UntypedServiceImplementation = {};
      for (const name of own) served[wires[name].method] = this.#serve(name, handlers[name] as AnyHandler);
      server.addService(serviceOf(service), served);
    }
    // A health check names the epoch of the process it means; another incarnation at this address does not know that name.
    const health = new HealthImplementation({ '': 'NOT_SERVING', [epoch]: 'NOT_SERVING' });
    health.addToServer(server);
    const port = await bindServer(server, bind, this.#certificates);
    if (this.#tls && this.#onRefusedClient) watchRefusedClients(server, this.#onRefusedClient);
    return {
      address: `${bind.replace(/:\d+$/, '')}:${port}`,
      setServing: (isServing) => {
        for (const service of new Set(['', epoch])) health.setStatus(service, isServing ? 'SERVING' : 'NOT_SERVING');
      },
      close: (graceMs) => shutDown(server, this.#clock, graceMs),
    };
  }

  #serve(name: CallName, handler: AnyHandler): UntypedServiceImplementation[string] {
    const wire = wires[name];
    if (wire.kind === 'unary') return serveUnary(handler);
    return serveDuplex(wire, handler, this.#clock);
  }

  open<M extends CallName>(
    address: string,
    name: M,
    requests: AsyncIterable<Request<M>>,
    options: CallOptions,
  ): AsyncIterableIterator<Reply<M>> {
    const replies = this.#open(address, name, requests, options);
    // First calls to a peer: their failures explain TLS mistakes to the person who started the process.
    if (!['check', 'connect', 'policy', 'forget'].includes(name)) return replies;
    return explaining(
      replies,
      (failure) => explained(failure, address, this.#tls?.value, this.#clock.wallMs()),
      address,
    );
  }

  #open<M extends CallName>(
    address: string,
    name: M,
    requests: AsyncIterable<Request<M>>,
    { signal, timeoutMs }: CallOptions,
  ): AsyncIterableIterator<Reply<M>> {
    const wire = wires[name];
    const { path, requestSerialize, responseDeserialize } = methodOf(wire);
    const client = this.client(address);
    const deadline: GrpcOptions = timeoutMs === undefined ? {} : { deadline: this.#clock.wallMs() + timeoutMs };
    if (wire.kind === 'duplex') {
      const stream = client.makeBidiStreamRequest(
        path,
        requestSerialize,
        responseDeserialize,
        this.metadata(),
        deadline,
      );
      const options = { cancel: wire.cancel, clock: this.#clock, peer: address, signal };
      const call = new OpenCall<object, object>(stream, options);
      void call.feed(wire.startsWith ? starting(requests) : requests);
      return call;
    }
    const replies = new AsyncQueue<Reply<M>>();
    this.#askOnce<Reply<M>>(client, wire, requests, deadline, address, signal).then(
      (reply) => {
        replies.push(reply);
        replies.end();
      },
      (error: unknown) => {
        replies.end(toFailure(error, address));
      },
    );
    return replies;
  }

  /** A call with one request and one reply. */
  async #askOnce<R>(
    client: Client,
    wire: Wire,
    requests: AsyncIterable<object>,
    deadline: GrpcOptions,
    peer: string,
    signal: AbortSignal,
  ): Promise<R> {
    const { path, requestSerialize, responseDeserialize } = methodOf(wire);
    const first = await requests[Symbol.asyncIterator]().next();
    assert(!first.done, `${wire.method} asks nothing`);
    const request: object = first.value;
    return new Promise((resolve, reject) => {
      const call = client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        this.metadata(),
        deadline,
        (error, reply) => {
          signal.removeEventListener('abort', cancel);
          const { reason } = signal as { reason: unknown };
          if (error) reject(reason instanceof Failure ? reason : toFailure(error, peer));
          else resolve(reply as R);
        },
      );
      const cancel = (): void => {
        call.cancel();
      };
      signal.addEventListener('abort', cancel, { once: true });
      if (signal.aborted) cancel();
    });
  }

  /** Returns the client of an address, created at first use. */
  client(address: string): Client {
    const known = this.#clients.get(address);
    if (known) return known;
    const client = new Client(address, ...clientOptions(address, this.#certificates));
    this.#clients.set(address, client);
    const [oldest] = this.#clients.keys();
    if (this.#clients.size > MAX_CLIENTS && oldest !== undefined) this.forget(oldest);
    return client;
  }

  metadata(): Metadata {
    return withToken(this.#tokens);
  }

  hostTowards(peer: string): Promise<string> {
    return hostTowards(peer);
  }

  forget(address: string): void {
    this.#clients.get(address)?.close();
    this.#clients.delete(address);
  }

  close(): void {
    for (const address of [...this.#clients.keys()]) this.forget(address);
  }
}

/**
 * Returns the address of the local interface that leads to `peer`: connecting a datagram socket sends nothing and binds it to that
 * interface. @throws Error when the name cannot be resolved or there is no route.
 */
async function hostTowards(peer: string): Promise<string> {
  const { hostname, port } = new URL(peer.includes('://') ? peer : `tcp://${peer}`);
  const cannot = (error: unknown): Error =>
    new Error(
      `cannot find the interface that leads to ${peer}: ${messageOf(error)}; set the address of this process with --advertise`,
    );
  const found = await lookup(hostname.replace(/^\[|\]$/g, '')).catch((error: unknown) => {
    throw cannot(error);
  });
  const host = found.address;
  return new Promise((resolve, reject) => {
    const family = found.family === 6 ? 'udp6' : 'udp4';
    const socket = createSocket(family, () => undefined);
    const fail = (error: Error): void => {
      socket.close();
      reject(cannot(error));
    };
    socket.once('error', fail);
    socket.connect(Number(port) || 1, host, ((error?: Error) => {
      if (error) {
        fail(error);
        return;
      }
      const { address } = socket.address();
      socket.close();
      resolve(family === 'udp6' ? `[${address}]` : address);
    }) as () => void);
  });
}

/** Passes the replies on, and explains a failure to connect where TLS is the cause. */
function explaining<R>(
  replies: AsyncIterableIterator<R>,
  explain: (failure: Failure) => Promise<Failure>,
  address: string,
): AsyncIterableIterator<R> {
  return {
    next: async () => {
      try {
        return await replies.next();
      } catch (error) {
        throw await explain(toFailure(error, address));
      }
    },
    return: (value) => replies.return?.(value) ?? Promise.resolve({ done: true, value: undefined }),
    [Symbol.asyncIterator]() {
      return this;
    },
  };
}

async function* starting(requests: AsyncIterable<object>): AsyncGenerator<object> {
  for await (const start of requests) yield { start };
}

function bindServer(server: Server, bind: string, tls: Certificates | undefined): Promise<number> {
  return new Promise((resolve, reject) => {
    server.bindAsync(bind, serverCredentials(tls), (error, port) => {
      if (error)
        reject(
          new Error(`cannot listen on ${bind}: ${error.message}; choose another address or end what uses this one`),
        );
      else resolve(port);
    });
  });
}

/** Ends open calls after `graceMs` at most. */
async function shutDown(server: Server, clock: Clock, graceMs: number): Promise<void> {
  const graceful = new Promise<void>((resolve) => {
    server.tryShutdown(() => {
      resolve();
    });
  });
  await Promise.race([graceful, clock.sleep(graceMs)]);
  server.forceShutdown();
}

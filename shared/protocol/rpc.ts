/**
 * gRPC as this project uses it: one server and one client per peer, a cluster token on every call, failures as codes of the
 * closed table, a deadline everywhere.
 */
import { timingSafeEqual } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import {
  Client,
  Metadata,
  Server,
  ServerCredentials,
  ServerInterceptingCall,
  credentials,
  loadPackageDefinition,
  status,
  type CallOptions,
  type ChannelOptions,
  type ServerInterceptor,
  type ServiceDefinition,
  type StatusObject,
} from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import type { Clock } from '../base/clock.ts';
import { Failure, isFailureCode, messageOf, type FailureCode } from '../base/failure.ts';
import { entropySeed, Random } from '../base/random.ts';

const definition = loadSync(fileURLToPath(new URL('./penstock.proto', import.meta.url)), {
  longs: Number,
  enums: Number,
  defaults: true,
  oneofs: true,
});
const loaded = loadPackageDefinition(definition)['penstock'] as unknown as Record<
  'Blocks' | 'Prefill' | 'Decode' | 'Admin' | 'Hub',
  { service: ServiceDefinition }
>;

export const services = {
  blocks: loaded.Blocks.service,
  prefill: loaded.Prefill.service,
  decode: loaded.Decode.service,
  admin: loaded.Admin.service,
  hub: loaded.Hub.service,
} as const;

const TOKEN_KEY = 'penstock-token';
const FAILURE_KEY = 'penstock-failure';

/** Records come in slices of at most this: a reader that stops holds 16 of them, which is what a stream buffers by count. */
export const SLICE_BYTES = 256 << 10;
const MAX_MESSAGE_BYTES = 16 << 20;

const channelOptions: ChannelOptions = {
  'grpc.max_receive_message_length': MAX_MESSAGE_BYTES,
  'grpc.max_send_message_length': MAX_MESSAGE_BYTES,
  // The default of 64 KiB stops a bulk stream for a round trip per record.
  'grpc-node.flow_control_window': 8 << 20,
  'grpc.initial_reconnect_backoff_ms': 100,
  'grpc.max_reconnect_backoff_ms': 500,
  // A dead peer without a reset is noticed by its silence on the bus; this is the transport's own safety net.
  'grpc.keepalive_time_ms': 10_000,
  'grpc.keepalive_timeout_ms': 5_000,
};

/** A server that answers only calls with the cluster token. An empty token admits everyone: loopback only. */
export function createServer(token: string): Server {
  return new Server({ ...channelOptions, interceptors: [requireToken(token)] });
}

function requireToken(token: string): ServerInterceptor {
  const expected = Buffer.from(token);
  return (_method, call) =>
    new ServerInterceptingCall(call, {
      start: (next) => {
        next({
          onReceiveMetadata: (metadata, proceed) => {
            const given = Buffer.from(String(metadata.get(TOKEN_KEY)[0] ?? ''));
            if (given.length === expected.length && timingSafeEqual(given, expected)) {
              proceed(metadata);
              return;
            }
            call.sendStatus({
              code: status.UNAUTHENTICATED,
              details: 'wrong cluster token: every process of a cluster needs the same PENSTOCK_CLUSTER_TOKEN',
              metadata: new Metadata(),
            });
          },
        });
      },
    });
}

/** Binds and listens. @returns the port. @throws Error naming the address, for instance when it is in use. */
export function listen(server: Server, bind: string): Promise<number> {
  return new Promise((resolve, reject) => {
    server.bindAsync(bind, ServerCredentials.createInsecure(), (error, port) => {
      if (error)
        reject(
          new Error(`cannot listen on ${bind}: ${error.message}; choose another address or end what uses this one`),
        );
      else resolve(port);
    });
  });
}

/** Ends open calls after `graceMs` at most. */
export async function shutDown(server: Server, clock: Clock, graceMs: number): Promise<void> {
  const graceful = new Promise<void>((resolve) => {
    server.tryShutdown(() => {
      resolve();
    });
  });
  await Promise.race([graceful, clock.sleep(graceMs)]);
  server.forceShutdown();
}

/** Clients by address. Bounded (P1): the oldest is closed when there are more than a large cluster has members. */
export class Peers {
  readonly #clients = new Map<string, Client>();
  readonly clock: Clock;
  readonly #token: string;
  readonly #random: Random;

  constructor(token: string, clock: Clock, random = new Random(entropySeed())) {
    this.#token = token;
    this.clock = clock;
    this.#random = random;
  }

  /** Waits between half of `ms` and all of it, so that many who were refused at once do not come back at once. */
  pause(ms: number, signal?: AbortSignal): Promise<void> {
    return this.clock.sleep(ms / 2 + this.#random.below(Math.ceil(ms / 2) + 1), signal);
  }

  client(address: string): Client {
    const known = this.#clients.get(address);
    if (known) return known;
    const client = new Client(address, credentials.createInsecure(), channelOptions);
    this.#clients.set(address, client);
    const [oldest] = this.#clients.keys();
    if (this.#clients.size > 4_096 && oldest !== undefined) this.forget(oldest);
    return client;
  }

  /** Closes the connection to a peer that is gone; open calls end. */
  forget(address: string): void {
    this.#clients.get(address)?.close();
    this.#clients.delete(address);
  }

  metadata(): Metadata {
    const metadata = new Metadata();
    metadata.set(TOKEN_KEY, this.#token);
    return metadata;
  }

  deadline(timeoutMs: number): CallOptions {
    return { deadline: this.clock.wallMs() + timeoutMs };
  }

  close(): void {
    for (const address of [...this.#clients.keys()]) this.forget(address);
  }
}

const statusOf: Partial<Record<FailureCode, status>> = {
  invalid_request: status.INVALID_ARGUMENT,
  context_too_long: status.INVALID_ARGUMENT,
  unauthenticated: status.UNAUTHENTICATED,
  not_found: status.NOT_FOUND,
  cancelled: status.CANCELLED,
  overloaded: status.RESOURCE_EXHAUSTED,
  deadline_exceeded: status.DEADLINE_EXCEEDED,
};

/** A failure as the status a call ends with. */
export function toStatus(
  error: unknown,
): Partial<StatusObject> & { code: status; details: string; metadata: Metadata } {
  const code = error instanceof Failure ? error.code : 'internal';
  const metadata = new Metadata();
  metadata.set(FAILURE_KEY, code);
  return { code: statusOf[code] ?? status.UNKNOWN, details: messageOf(error), metadata };
}

/** A status that no server of ours has named. */
const codeOf: Record<status, FailureCode> = {
  [status.OK]: 'internal',
  [status.CANCELLED]: 'cancelled',
  [status.UNAUTHENTICATED]: 'unauthenticated',
  [status.PERMISSION_DENIED]: 'unauthenticated',
  [status.DEADLINE_EXCEEDED]: 'deadline_exceeded',
  [status.UNAVAILABLE]: 'instance_lost',
  // The transport's own: a stream or its whole session was reset.
  [status.INTERNAL]: 'session_broken',
  [status.ABORTED]: 'session_broken',
  // A message over the limit: no peer would take it.
  [status.RESOURCE_EXHAUSTED]: 'invalid_request',
  [status.INVALID_ARGUMENT]: 'invalid_request',
  [status.OUT_OF_RANGE]: 'invalid_request',
  [status.FAILED_PRECONDITION]: 'invalid_request',
  [status.NOT_FOUND]: 'not_found',
  [status.ALREADY_EXISTS]: 'cluster_mismatch',
  // Another version of this software.
  [status.UNIMPLEMENTED]: 'cluster_mismatch',
  [status.UNKNOWN]: 'internal',
  [status.DATA_LOSS]: 'transfer_failed',
};

/** A call's error as a failure. Only what the transport calls unavailable is a lost peer. */
export function toFailure(error: unknown, peer: string): Failure {
  if (error instanceof Failure) return error;
  const { code, details, metadata } = error as Partial<StatusObject>;
  const named = String(metadata?.get(FAILURE_KEY)[0] ?? '');
  const known: Partial<Record<string, FailureCode>> = codeOf;
  const failure = isFailureCode(named) ? named : (known[String(code)] ?? 'internal');
  return new Failure(failure, `${peer}: ${details ?? messageOf(error)}`, { cause: error });
}

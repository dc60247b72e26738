/** Measures a running cluster for `penstock doctor`: its router over HTTP, its hub and its members by calls. */
import { connect as openSocket } from 'node:net';
import { bootId } from '../../../shared/base/boot_id.ts';
import { systemClock } from '../../../shared/base/clock.ts';
import { asFailure } from '../../../shared/base/failure.ts';
import { mapPublished } from '../../../shared/base/native_memory.ts';
import { GrpcNetwork } from '../../../shared/net/grpc/grpc_network.ts';
import { askOnce } from '../../../shared/net/network.ts';
import type { TlsTexts } from '../../../shared/net/tls_texts.ts';
import { readEventPage, readPool, type ReadEvent } from '../../../shared/protocol/router_api_schemas.ts';
import { connectionTroubleOf, keyHeaders, refusalOf, type Trouble } from '../router_api.ts';
import {
  SLOW_CALL_MS,
  type ApiMeasure,
  type HubMeasure,
  type MemberMeasure,
  type NodeFacts,
} from './cluster_checks.ts';

const TIMEOUT_MS = 3_000;
/** Calls of which the fastest counts: a slow way makes all of them slow, a machine that is busy for a moment only some. */
const NUM_CALLS = 5;
/** Calls beyond NUM_CALLS while all were slow, and milliseconds that they may take. */
const MORE_CALLS = 20;
const MORE_MS = 2_000;
/** Bytes of an answer that are read at most (P1). */
const MAX_ANSWER = 64 * 2 ** 20;
/** An HTTP Date has whole seconds. */
const DATE_STEP_MS = 1_000;

/** HTTP API of a router, by its origin, and the key for it, empty where there is none. */
export interface ApiPlace {
  readonly api: string;
  readonly api_key: string;
}

/** Measures the HTTP API of a router. */
export async function measureApi(place: ApiPlace): Promise<ApiMeasure> {
  try {
    // The first request opens the connection, and only the second is measured.
    await answerOf(place, '/health');
    const startMs = systemClock.nowMs();
    const response = await answerOf(place, '/api/pool');
    const roundTripMs = systemClock.nowMs() - startMs;
    const middleMs = systemClock.wallMs() - roundTripMs / 2;
    const { ok, status, text } = response;
    const trouble = ok ? undefined : refusalOf(status, text, place.api_key !== '');
    if (trouble) return { kind: 'refused', trouble };
    if (!ok) return { kind: 'foreign', status };
    const pool = readPool(JSON.parse(text));
    const dateMs = Date.parse(response.date);
    const [atMs, uncertaintyMs] =
      pool.as_of === undefined
        ? [dateMs + DATE_STEP_MS / 2, DATE_STEP_MS / 2 + roundTripMs / 2]
        : [pool.as_of, roundTripMs / 2];
    return { kind: 'answered', pool, roundTripMs, offsetMs: atMs - middleMs, uncertaintyMs };
  } catch (error) {
    return { kind: 'silent', trouble: troubleOf(error) };
  }
}

/** Returns the newest events of a router; an empty list where it serves none. */
export async function readEvents(place: ApiPlace): Promise<readonly ReadEvent[]> {
  try {
    const { ok, text } = await answerOf(place, '/api/events?limit=200');
    if (!ok) return [];
    return readEventPage(JSON.parse(text));
  } catch {
    return [];
  }
}

interface Answer {
  readonly ok: boolean;
  readonly status: number;
  readonly date: string;
  readonly text: string;
}

async function answerOf({ api, api_key: key }: ApiPlace, path: string): Promise<Answer> {
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const response = await fetch(`${api}${path}`, { signal, headers: keyHeaders(key) });
  const { ok, status, headers } = response;
  if (Number(headers.get('content-length') ?? 0) > MAX_ANSWER) throw new Error('its answer is too large');
  return { ok, status, date: headers.get('date') ?? '', text: await response.text() };
}

function troubleOf(error: unknown): Trouble {
  const isLate = (error as Error).name === 'TimeoutError';
  return isLate ? { why: `no answer within ${TIMEOUT_MS / 1_000} s` } : connectionTroubleOf(error);
}

/** Opens a TCP connection to HOST:PORT and closes it. Returns its milliseconds, or the reason why none opened. */
export function measureConnect(address: string): Promise<number | string> {
  const at = address.lastIndexOf(':');
  const host = address.slice(0, at).replace(/^\[(.*)\]$/, '$1');
  const startMs = systemClock.nowMs();
  return new Promise((done) => {
    const socket = openSocket({ host, port: Number(address.slice(at + 1)), timeout: TIMEOUT_MS });
    const end = (result: number | string): void => {
      socket.destroy();
      done(result);
    };
    socket.once('connect', () => {
      end(systemClock.nowMs() - startMs);
    });
    socket.once('timeout', () => {
      end(`no answer within ${TIMEOUT_MS / 1_000} s`);
    });
    socket.once('error', (error: NodeJS.ErrnoException) => {
      end(error.code ?? error.message);
    });
  });
}

/** Calls of this command to the processes of a cluster. */
export class ClusterCalls {
  readonly #network: GrpcNetwork;

  constructor(token: string, tls: TlsTexts | undefined) {
    this.#network = new GrpcNetwork(token, systemClock, tls);
  }

  /** Measures the hub of a router, by a call that needs the cluster token and changes nothing. */
  async measureHub(address: string): Promise<HubMeasure> {
    const startMs = systemClock.nowMs();
    try {
      await askOnce(this.#network, address, 'policy', { name: '' }, options());
      return { kind: 'answered', roundTripMs: systemClock.nowMs() - startMs };
    } catch (error) {
      const { code, message } = failureAt(address, error);
      return { kind: code === 'unauthenticated' ? 'refused' : 'silent', reason: message };
    }
  }

  /** Measures the way to a member: a connection, calls of its health service, and its data channel. */
  async measureMember({ address, epoch, role }: NodeFacts): Promise<MemberMeasure> {
    const connect = await measureConnect(address);
    if (typeof connect === 'string') return { connect, call: { code: '', message: connect }, channel: undefined };
    const call = await this.#measureCall(address, epoch);
    const channel = typeof call === 'number' && role !== 'router' ? await this.#measureChannel(address) : undefined;
    return { connect, call, channel };
  }

  async #measureCall(address: string, epoch: string): Promise<MemberMeasure['call']> {
    try {
      const call = (): Promise<unknown> => askOnce(this.#network, address, 'check', { service: epoch }, options());
      // The first call opens the connection.
      await call();
      return await fastestMs(call, systemClock);
    } catch (error) {
      return failureAt(address, error);
    }
  }

  /** Asks for a data channel as a fetch would; the member dismisses it, since nobody authenticates on it. */
  async #measureChannel(address: string): Promise<MemberMeasure['channel']> {
    try {
      const { port, memory } = await askOnce(this.#network, address, 'openChannel', { host: bootId() }, options());
      const mapped = memory === '' ? undefined : mapPublished(memory);
      mapped?.close();
      const connect = await measureConnect(`${address.slice(0, address.lastIndexOf(':'))}:${port}`);
      return { port, connect, isShared: mapped !== undefined };
    } catch (error) {
      return failureAt(address, error);
    }
  }

  close(): void {
    this.#network.close();
  }
}

/** Returns the milliseconds of the fastest of some calls, more of them while all are slow. Rejects as a call does. */
export async function fastestMs(call: () => Promise<unknown>, clock: { nowMs(): number }): Promise<number> {
  let least = Infinity;
  const beginMs = clock.nowMs();
  for (let numCalls = 0; numCalls < NUM_CALLS + MORE_CALLS; numCalls++) {
    const startMs = clock.nowMs();
    if (numCalls >= NUM_CALLS && (least <= SLOW_CALL_MS || startMs - beginMs >= MORE_MS)) break;
    await call();
    least = Math.min(least, clock.nowMs() - startMs);
  }
  return least;
}

/** Returns the code of a failure, and its message without the address that it begins with. */
function failureAt(address: string, error: unknown): { readonly code: string; readonly message: string } {
  const { code, message } = asFailure(error);
  return { code, message: message.replace(`${address}: `, '') };
}

function options(): { readonly signal: AbortSignal; readonly timeoutMs: number } {
  return { signal: new AbortController().signal, timeoutMs: TIMEOUT_MS };
}

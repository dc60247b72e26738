/** Checks of a running cluster: each judges what was measured at its router and its members, and is a pure function of it. */
import type { ReadEvent, ReadNode, ReadPool } from '../../../shared/protocol/router_api_schemas.ts';
import type { Trouble } from '../router_api.ts';
import { msText, ok, problem, warning, type Finding } from './finding.ts';

/** A member in `/api/pool`. */
export type NodeFacts = Pick<
  ReadNode,
  'name' | 'role' | 'address' | 'epoch' | 'state' | 'unreachable' | 'fetched_bytes'
>;

/** Part of `/api/pool` that the checks read; a field that an older router lacks is undefined. */
interface PoolFacts extends Pick<ReadPool, 'as_of' | 'bus'> {
  readonly nodes?: readonly NodeFacts[] | undefined;
}

/** Answer of a router over HTTP. */
export type ApiMeasure =
  | {
      readonly kind: 'answered';
      readonly pool: PoolFacts;
      readonly roundTripMs: number;
      /** Wall clock of the router less that of this machine, in milliseconds. */
      readonly offsetMs: number;
      /** The offset is within plus or minus this. */
      readonly uncertaintyMs: number;
    }
  | { readonly kind: 'foreign'; readonly status: number }
  | { readonly kind: 'refused' | 'silent'; readonly trouble: Trouble };

/** Answer of a router at the address of its hub. */
export type HubMeasure =
  | { readonly kind: 'answered'; readonly roundTripMs: number }
  | { readonly kind: 'refused' | 'silent'; readonly reason: string };

/** Way to a member from this machine. */
export interface MemberMeasure {
  /** Milliseconds until a TCP connection was open; the reason as text where none opened. */
  readonly connect: number | string;
  /** Milliseconds of the fastest call of its health service; a failure code where it failed. */
  readonly call: number | { readonly code: string; readonly message: string };
  /** Data channel: its port, and how blocks would come to this machine; a failure where none was offered; undefined for a router. */
  readonly channel:
    | { readonly port: number; readonly connect: number | string; readonly isShared: boolean }
    | { readonly code: string; readonly message: string }
    | undefined;
}

/** Messages of the bus that were not new, from which on the count says something: processes that end leave a few. */
const MANY_REPLAYED = 100;
/** Offset of clocks that confuses whoever compares logs and times of two machines. */
const MAX_OFFSET_MS = 1_000;
/** Round trip of a call that shows in the time of each token. */
export const SLOW_CALL_MS = 50;

/** Judges the answer of a router's HTTP API, which has this origin. Its silence is a fault only where it was given. */
export function apiFindings(api: string, isGiven: boolean, measure: ApiMeasure): Finding[] {
  const cure = 'Start the router, or name its --bind, or its URL, with --api.';
  if (measure.kind === 'foreign')
    return [problem('router', `${api} answers /api/pool with HTTP status ${measure.status}: it is no router.`, cure)];
  if (measure.kind !== 'answered') {
    const { why, cure: own = cure } = measure.trouble;
    const isRefused = measure.kind === 'refused';
    const text = isRefused ? `${api} answers, but not this command: ${why}` : `No router answers at ${api}: ${why}`;
    return isRefused || isGiven
      ? [problem('router', `${text}.`, sentence(own))]
      : [ok('router', `${text}; no cluster was looked for elsewhere.`)];
  }
  const { pool, roundTripMs, offsetMs, uncertaintyMs } = measure;
  const findings = [ok('router', `The router at ${api} answers /api/pool in ${msText(roundTripMs)}.`)];
  findings.push(clockFinding(offsetMs, uncertaintyMs), ...busFindings(pool), ...rolesFindings(pool));
  return findings;
}

function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1).replace(/\.$/, '')}.`;
}

function clockFinding(offsetMs: number, uncertaintyMs: number): Finding {
  const amount = `${msText(Math.abs(offsetMs))} ${offsetMs < 0 ? 'behind' : 'ahead of'} this machine's (± ${msText(uncertaintyMs)})`;
  const text = `The router's clock is ${amount}; members keep no time of day that others rely on.`;
  if (Math.abs(offsetMs) - uncertaintyMs <= MAX_OFFSET_MS) return ok('clock', text);
  return warning('clock', text, 'Synchronise the clocks of both machines (chrony, systemd-timesyncd).');
}

function busFindings({ bus }: PoolFacts): Finding[] {
  if (!bus) return [];
  const findings = [
    bus.connected
      ? ok('bus', `The router is connected to the bus (${bus.name}).`)
      : problem(
          'bus',
          `The router has lost the bus (${bus.name}): it hears of no member.`,
          'Start the NATS servers of --bus, and open their port for the router.',
        ),
  ];
  if (bus.unverified > 0)
    findings.push(
      warning(
        'bus',
        `The router has dropped ${bus.unverified} messages that another cluster token has sealed, or another version sent.`,
        'Give every process the same PENSTOCK_CLUSTER_TOKEN and version, or clusters that share the servers different --cluster names.',
      ),
    );
  if (bus.replayed >= MANY_REPLAYED)
    findings.push(
      warning(
        'bus',
        `The router has dropped ${bus.replayed} messages of the bus that were not new: somebody may send recorded ones again.`,
        'See who has an account at the NATS servers of --bus; the log of the router names the subjects.',
      ),
    );
  return findings;
}

function rolesFindings({ nodes = [] }: PoolFacts): Finding[] {
  const decodes = nodes.filter(({ role }) => role === 'decode');
  if (decodes.some(({ state }) => state === 'alive')) return [];
  return [
    problem(
      'members',
      decodes.length === 0
        ? 'The cluster has no decode instance: nothing is generated.'
        : 'No decode instance of the cluster is alive: nothing is generated.',
      'Start `penstock decode --join HOST:PORT`, or see its log for the reason why it left.',
    ),
  ];
}

/** Judges the hub of a router, which proves the cluster token. `hint` says where a token was looked for. */
export function hubFindings(address: string, isExpected: boolean, measure: HubMeasure, hint: string): Finding[] {
  switch (measure.kind) {
    case 'answered':
      return [ok('token', `The hub at ${address} takes the cluster token, in ${msText(measure.roundTripMs)}.`)];
    case 'refused':
      if (/certificate|TLS/.test(measure.reason))
        return [
          problem(
            'tls',
            `The hub at ${address} and this command do not take each other's certificates: ${measure.reason}.`,
            'Give it the --tls-cert, --tls-key and --tls-ca of a process of the cluster, and renew what has expired.',
          ),
        ];
      return [
        problem('token', `The hub at ${address} refuses the cluster token: ${measure.reason}.`, `Do this: ${hint}.`),
      ];
    case 'silent': {
      const text = `No hub answers at ${address}: ${measure.reason}`;
      if (!isExpected) return [ok('hub', `${text}.`)];
      return [
        problem(
          'hub',
          `${text}.`,
          "Name the router's --hub-bind with --router HOST:PORT, and open that port for this machine.",
        ),
      ];
    }
  }
}

/** Judges a member: its state at the router, the calls to it from here, and the way on which its blocks would come here. */
export function memberFindings(node: NodeFacts, measure: MemberMeasure): Finding[] {
  const check = `${node.role} ${node.name}`;
  return [...stateFindings(check, node), ...callFindings(check, node, measure), ...wayFindings(check, node)];
}

function stateFindings(check: string, { state, unreachable, address }: NodeFacts): Finding[] {
  if (state === 'unreachable')
    return [
      problem(
        check,
        `The router cannot call it at ${address}: ${unreachable ?? 'no reason is known'}.`,
        'Give the process --advertise HOST:PORT with an address that the router reaches, and open its port.',
      ),
    ];
  if (state === 'suspect')
    return [
      warning(
        check,
        'The router has not heard of it for a while: it is stopped, overloaded, or its network is broken.',
        'See its log and the load of its machine; without a heartbeat it is removed after --silence-ms.',
      ),
    ];
  if (state === 'draining')
    return [
      warning(check, 'It drains: it finishes what runs, and takes nothing new.', 'Start another process in its place.'),
    ];
  return [];
}

function callFindings(check: string, { address }: NodeFacts, { connect, call, channel }: MemberMeasure): Finding[] {
  if (typeof connect === 'string')
    return [
      problem(
        check,
        `No connection to ${address} opens from here: ${connect}.`,
        'Start the process again if it has ended; else open its port (--bind), or give it --advertise with an address that is reached from here.',
      ),
    ];
  if (typeof call !== 'number') return [failedCall(check, address, call)];
  const found = `${address} answers a call in ${msText(call)}`;
  if (call > SLOW_CALL_MS)
    return [
      warning(
        check,
        `${found}, which shows in the time of each token.`,
        'Put the processes of a cluster into one network, and look for load on the machine.',
      ),
    ];
  return [channelFinding(check, found, channel)];
}

function failedCall(
  check: string,
  address: string,
  { code, message }: { readonly code: string; readonly message: string },
): Finding {
  if (code === 'deadline_exceeded')
    return problem(
      check,
      `${address} accepts connections, but answers no call: the process is stopped or hangs.`,
      'Continue it (kill -CONT) if it was stopped; else end it (kill -KILL) and start it again.',
    );
  if (code === 'not_found')
    return problem(
      check,
      `Another process answers at ${address}.`,
      'Wait until the router has noticed a restart (some seconds); else give the processes different addresses.',
    );
  if (code === 'unauthenticated')
    return problem(
      check,
      `${address} refuses the cluster token of this command.`,
      'Give every process and this command the same PENSTOCK_CLUSTER_TOKEN.',
    );
  return problem(check, `A call to ${address} failed: ${message}.`, 'See the log of the process.');
}

function channelFinding(check: string, found: string, channel: MemberMeasure['channel']): Finding {
  if (channel === undefined) return ok(check, `${found}.`);
  if ('code' in channel) {
    if (channel.code === 'not_found') return ok(check, `${found}; its blocks come over calls (--transport grpc).`);
    return warning(
      check,
      `${found}, but opens no data channel: ${channel.message}.`,
      'See the log of the process; until then its blocks come over calls, more slowly.',
    );
  }
  const { port, connect, isShared } = channel;
  if (isShared) return ok(check, `${found}; its blocks come here through shared memory.`);
  if (typeof connect === 'string')
    return warning(
      check,
      `${found}, but its data channel on port ${port} cannot be reached from here: ${connect}. Blocks come over calls, more slowly.`,
      'Name a port with --bulk-port at the process, and open it.',
    );
  return ok(check, `${found}; its blocks come here through a socket (port ${port}).`);
}

/** Least bytes over calls from which on the way counts as the usual one. */
const MIN_CALL_BYTES = 2 ** 20;

function wayFindings(check: string, { fetched_bytes: { memory = 0, socket = 0, call = 0 } }: NodeFacts): Finding[] {
  if (call < MIN_CALL_BYTES || call < memory + socket) return [];
  return [
    warning(
      check,
      `Most blocks that it fetched came over calls (${(call / 2 ** 20).toFixed(0)} MiB), which is slower than data channels.`,
      'Open the data channels between the machines: name their ports with --bulk-port, and leave --transport auto.',
    ),
  ];
}

/** Judges members of which the router reports in `/api/events` that it lost them, and that are no members now. */
export function lostFindings(events: readonly ReadEvent[], nodes: readonly NodeFacts[]): Finding[] {
  const present = new Set(nodes.map(({ name }) => name));
  const seen = new Set<string>();
  return events.flatMap(({ kind, node, text, at }) => {
    // Newest first, so later entries of one node are older.
    if (node === null || seen.has(node)) return [];
    seen.add(node);
    if (kind !== 'lost' || present.has(node)) return [];
    const when = new Date(at).toISOString();
    return [
      warning(
        'members',
        `${node} was lost at ${when}: ${text.replace(/\.$/, '')}.`,
        'Start it again, or continue it (kill -CONT) if it was stopped; its log has the reason.',
      ),
    ];
  });
}

/** Judges whether a connection to a server of `--bus` opens; `connect` is milliseconds, or the reason why none does. */
export function busServerFinding(server: string, connect: number | string): Finding {
  if (typeof connect === 'number') return ok('bus', `${server} accepts connections in ${msText(connect)}.`);
  return problem(
    'bus',
    `${server} accepts no connection: ${connect}.`,
    'Start the NATS server, or correct --bus and open its port.',
  );
}

/** One process of the cluster as JSON: a member, as of its last heartbeat, and the router itself. */
import type { Instance } from '../../../shared/placement/instance.ts';
import { poolFields, type PoolLoad } from '../../../shared/protocol/load_fields.ts';
import type { InstanceLoad, TierStats } from '../../../shared/protocol/membership.ts';
import type { LossCost, NodeView, TierView } from '../../../shared/protocol/router_api.ts';
import { nodeState } from './node_state.ts';

/** One moment on the router's clock and in time of day, both in milliseconds. */
export interface Moment {
  readonly nowMs: number;
  readonly wallMs: number;
}

/** Returns a member as a node of `/api/pool`; `loss` is what its loss would cost. */
export function nodeView(instance: Instance, { nowMs, wallMs }: Moment, loss: LossCost | null = null): NodeView {
  const { member, load, failures } = instance;
  // After the fetched bytes, where bodies of earlier versions have it.
  const { last_step_ms, ...plain } = loadView(load);
  return {
    name: member.name,
    role: member.role,
    ...identityOf(instance),
    state: nodeState(instance, nowMs),
    /** Why the node cannot be called at its address; null when no reason is known. */
    unreachable: instance.unreachable ?? null,
    heard_ms: Math.round(nowMs - instance.lastHeardMs),
    heartbeats: instance.heartbeats.count,
    joined_at: Math.round(wallMs - (nowMs - instance.joinedMs)),
    ...plain,
    fetched_bytes: load?.fetched ?? null,
    last_step_ms,
    failed_calls: failures.count,
    last_error: failures.count > 0 ? failures.last : null,
    /** Slots of the device for recurrent states; null for a model without recurrent layers. */
    state_slots: load?.states ?? null,
    tiers: Object.fromEntries(Object.entries(load?.tiers ?? {}).map(([tier, stats]) => [tier, tierView(stats)])),
    loss,
  };
}

function identityOf({ member: { address, pid, epoch }, model, registration: { engine } }: Instance) {
  return {
    model: model ?? null,
    address,
    pid,
    epoch,
    device: engine?.device ?? null,
    numerics_class: engine?.numericsClass ?? null,
  };
}

/** Returns the plain values of a load, and the stand-in of each that it does not have. */
function loadView(load: InstanceLoad | undefined): PoolLoad {
  return Object.fromEntries(poolFields.map(({ from, name, absent }) => [name, load?.[from] ?? absent])) as PoolLoad;
}

function tierView(stats: TierStats): TierView {
  const { blocks, bytes, hits, misses, evictions } = stats;
  return {
    blocks,
    bytes,
    capacity_bytes: stats.capacityBytes,
    hits,
    misses,
    evictions,
    dedup_factor: stats.dedupFactor,
    formats: stats.formats ?? null,
    fault: stats.fault ?? null,
  };
}

/** The router's process, as its own node shows it. */
export interface RouterProcess {
  readonly name: string;
  readonly epoch: string;
  readonly pid: number;
  readonly address: string;
  readonly startedMs: number;
  /** Largest delay of a timer within the last seconds, in ms: a router that is busy answers this late. */
  readonly loopDelayMs: number;
}

/** Returns the router as a node: prompts in flight as `running`, and memory, CPU time and delay of its process beyond the common fields. */
export function routerNode(
  router: RouterProcess,
  open: { readonly numRequests: number; readonly isDraining: boolean },
  { nowMs, wallMs }: Moment,
): NodeView {
  const { rss, heapUsed } = process.memoryUsage();
  const { user, system } = process.cpuUsage();
  return {
    name: router.name,
    role: 'router',
    model: null,
    address: router.address,
    pid: router.pid,
    epoch: router.epoch,
    device: null,
    numerics_class: null,
    state: open.isDraining ? 'draining' : 'alive',
    unreachable: null,
    heard_ms: 0,
    heartbeats: 0,
    joined_at: Math.round(wallMs - (nowMs - router.startedMs)),
    running: open.numRequests,
    waiting: 0,
    kv_usage: null,
    last_step_ms: 0,
    preemptions: 0,
    fetched_bytes: null,
    tiers: {},
    loss: null,
    memory_bytes: rss,
    heap_bytes: heapUsed,
    cpu_ms: Math.round((user + system) / 1_000),
    loop_delay_ms: Math.round(router.loopDelayMs),
  };
}

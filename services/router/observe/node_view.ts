/** One process of the cluster as JSON: a member, as of its last heartbeat, and the router itself. */
import type { Instance } from '../../../shared/placement/instance.ts';
import type { LossCost, NodeView } from '../../../shared/protocol/router_api.ts';
import { nodeState } from './node_state.ts';

/** One moment on the router's clock and in time of day, both in milliseconds. */
export interface Moment {
  readonly nowMs: number;
  readonly wallMs: number;
}

/** Returns a member as a node of `/api/pool`; `loss` is what its loss would cost. */
export function nodeView(instance: Instance, { nowMs, wallMs }: Moment, loss: LossCost | null = null): NodeView {
  const { member, model, load, registration, unreachable } = instance;
  const { engine } = registration;
  return {
    name: member.name,
    role: member.role,
    model: model ?? null,
    address: member.address,
    pid: member.pid,
    epoch: member.epoch,
    device: engine?.device ?? null,
    numerics_class: engine?.numericsClass ?? null,
    state: nodeState(instance, nowMs),
    /** Why the node cannot be called at its address; null when no reason is known. */
    unreachable: unreachable ?? null,
    heard_ms: Math.round(nowMs - instance.lastHeardMs),
    heartbeats: instance.heartbeats.count,
    joined_at: Math.round(wallMs - (nowMs - instance.joinedMs)),
    running: load?.running ?? 0,
    waiting: load?.waiting ?? 0,
    kv_usage: load?.kvUsage ?? null,
    open_streams: load?.openStreams ?? 0,
    arriving: load?.arriving ?? 0,
    lent: load?.lent ?? 0,
    preemptions: load?.preemptions ?? 0,
    divergent: load?.divergent ?? 0,
    fetched_bytes: load?.fetched ?? null,
    last_step_ms: load?.lastStepMs ?? 0,
    failed_calls: instance.failures.count,
    last_error: instance.failures.count > 0 ? instance.failures.last : null,
    /** Slots of the device for recurrent states; null for a model without recurrent layers. */
    state_slots: load?.states ?? null,
    tiers: Object.fromEntries(
      Object.entries(load?.tiers ?? {}).map(([tier, stats]) => [
        tier,
        {
          blocks: stats.blocks,
          bytes: stats.bytes,
          capacity_bytes: stats.capacityBytes,
          hits: stats.hits,
          misses: stats.misses,
          evictions: stats.evictions,
          dedup_factor: stats.dedupFactor,
          formats: stats.formats ?? null,
          fault: stats.fault ?? null,
        },
      ]),
    ),
    loss,
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
    ...{
      name: router.name,
      role: 'router',
      model: null,
      address: router.address,
      pid: router.pid,
      epoch: router.epoch,
    },
    ...{ device: null, numerics_class: null, state: open.isDraining ? 'draining' : 'alive', unreachable: null },
    ...{ heard_ms: 0, heartbeats: 0, joined_at: Math.round(wallMs - (nowMs - router.startedMs)) },
    ...{ running: open.numRequests, waiting: 0, kv_usage: null, last_step_ms: 0, preemptions: 0 },
    ...{ fetched_bytes: null, tiers: {}, loss: null },
    memory_bytes: rss,
    heap_bytes: heapUsed,
    cpu_ms: Math.round((user + system) / 1_000),
    loop_delay_ms: Math.round(router.loopDelayMs),
  };
}

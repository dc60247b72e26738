/** `/api/pool`: what every node of the cluster holds and does, as of its last heartbeat. */
import type { ClusterBus } from '../../../shared/bus/cluster_bus.ts';
import type { ClusterView } from './cluster_view.ts';
import type { Instance } from './instance.ts';
import type { Bodies } from '../openai/bodies.ts';
import type { Admission } from '../conductor/admission.ts';
import type { PrefixIndex } from './prefix_index.ts';

/** Returns the body of `/api/pool` as an object for JSON. */
export function poolView(
  { view, index, bus }: { readonly view: ClusterView; readonly index: PrefixIndex; readonly bus: ClusterBus },
  open: { readonly admission: Admission; readonly bodies: Bodies },
): Record<string, unknown> {
  return {
    model: view.model ? { ...view.model.format, digest: view.model.digest } : null,
    index_keys: index.size,
    bus: { name: bus.name, connected: bus.isConnected, unverified: bus.numUnverified },
    other_routers: view.otherRouters,
    // All of them are zero when nothing runs (R2).
    router: {
      requests: open.admission.numRequests,
      answers: open.admission.numAnswers,
      body_bytes: open.bodies.allBytes,
    },
    nodes: view.all().map(nodeView),
  };
}

function nodeView({ member, model, load, registration, isSuspect, unreachable }: Instance): Record<string, unknown> {
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
    state: unreachable !== undefined ? 'unreachable' : isSuspect ? 'suspect' : load?.isDraining ? 'draining' : 'alive',
    /** Why the node cannot be called at its address; null when no reason is known. */
    unreachable: unreachable ?? null,
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
  };
}

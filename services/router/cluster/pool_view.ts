/** `/api/pool`: what every node of the cluster holds and does, as of its last heartbeat. */
import type { ClusterBus } from '../../../shared/bus/cluster_bus.ts';
import type { ClusterView } from './cluster_view.ts';
import type { Instance } from './instance.ts';
import type { Bodies } from '../openai/bodies.ts';
import type { LinkSnapshot } from '../conductor/policy.ts';
import type { Admission } from '../conductor/admission.ts';
import type { PolicyInForce, PolicyState } from '../conductor/policy_in_force.ts';
import type { PrefixIndex } from './prefix_index.ts';

/** Upper bound of the listed links (P1). */
const MAX_LINKS = 256;

/** Returns the body of `/api/pool` as an object for JSON. */
export function poolView(
  {
    view,
    index,
    policy,
    bus,
  }: {
    readonly view: ClusterView;
    readonly index: PrefixIndex;
    readonly policy: PolicyInForce;
    readonly bus: ClusterBus;
  },
  open: { readonly admission: Admission; readonly bodies: Bodies; readonly numPromised: () => number },
  links: readonly LinkSnapshot[],
): Record<string, unknown> {
  return {
    model: view.model ? { ...view.model.format, digest: view.model.digest } : null,
    index_keys: index.size,
    bus: { name: bus.name, connected: bus.isConnected, unverified: bus.numUnverified },
    policy: policyView(policy.state),
    other_routers: view.otherRouters,
    // All of them are zero when nothing runs (R2).
    router: {
      requests: open.admission.numRequests,
      answers: open.admission.numAnswers,
      body_bytes: open.bodies.allBytes,
      promises: open.numPromised(),
    },
    nodes: view.all().map(nodeView),
    // The links between processes that were measured last, from the holder's address to the reader's id.
    links: links.slice(0, MAX_LINKS).map(({ from, to, bytesPerMs, latencyMs }) => ({
      ...{ from, to, bytes_per_second: Math.round(bytesPerMs * 1_000), latency_ms: latencyMs },
    })),
  };
}

function policyView({ name, placesBy, version, sinceMs, setBy }: PolicyState): Record<string, unknown> {
  return {
    name,
    places_by: placesBy,
    version,
    since: new Date(sinceMs).toISOString(),
    /** The router at which it was set; null: this router's own option. */
    set_by: setBy === '' ? null : setBy,
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
  };
}

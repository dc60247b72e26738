/** `/api/pool`: what every node of the cluster holds and does, as of its last heartbeat. */
import type { ClusterBus } from '../../../shared/bus/cluster_bus.ts';
import type { ClusterView } from '../cluster/cluster_view.ts';
import type { LinkSnapshot } from '../../../shared/placement/policy.ts';
import type { Admission } from '../conductor/admission.ts';
import type { PolicyInForce, PolicyState } from '../conductor/policy_in_force.ts';
import type { Health, LinkView, PolicyView, PoolBody } from '../../../shared/protocol/router_api.ts';
import { nodeView, routerNode, type Moment, type RouterProcess } from './node_view.ts';
import type { LossCosts } from './loss_cost.ts';
import type { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';

/** Upper bound of the listed links (P1). */
const MAX_LINKS = 256;

/** Returns the body of `/api/pool`. */
export function poolView(
  {
    view,
    index,
    policy,
    bus,
    losses,
  }: {
    readonly view: ClusterView;
    readonly index: PrefixIndex;
    readonly policy: PolicyInForce;
    readonly bus: ClusterBus;
    readonly losses: Pick<LossCosts, 'get'>;
  },
  open: {
    readonly admission: Admission;
    readonly bodies: { readonly allBytes: number };
    readonly numPromised: () => number;
  },
  links: readonly LinkSnapshot[],
  seen: {
    readonly now: Moment;
    readonly health: Health;
    readonly process: RouterProcess;
    readonly started_at: number;
    readonly flows: readonly LinkView[];
  },
): PoolBody {
  const { now, process, started_at } = seen;
  const costs = losses.get();
  return {
    as_of: now.wallMs,
    health: seen.health,
    model: view.model ? { ...view.model.format, digest: view.model.digest } : null,
    models: [...view.models.keys()],
    index_keys: index.size,
    index_bytes: index.bytes,
    bus: { name: bus.name, connected: bus.isConnected, unverified: bus.numUnverified, replayed: bus.numReplayed },
    policy: policyView(policy.state),
    other_routers: view.otherRouters,
    // All counts are zero when nothing runs (R2).
    router: {
      name: process.name,
      epoch: process.epoch,
      started_at,
      requests: open.admission.numRequests,
      answers: open.admission.numAnswers,
      body_bytes: open.bodies.allBytes,
      promises: open.numPromised(),
    },
    nodes: [
      ...view.all().map((instance) => nodeView(instance, now, costs.get(instance.id))),
      routerNode(process, open.admission, now),
    ],
    flows: seen.flows,
    links: links.slice(0, MAX_LINKS).map(measuredLink),
  };
}

/** Returns a link between two processes as it was measured last, from the holder's address to the reader's id. */
function measuredLink({ from, to, bytesPerMs, latencyMs }: LinkSnapshot): PoolBody['links'][number] {
  return { from, to, bytes_per_second: Math.round(bytesPerMs * 1_000), latency_ms: latencyMs };
}

function policyView({ name, placesBy, version, sinceMs, setBy }: PolicyState): PolicyView {
  return {
    name,
    places_by: placesBy,
    version,
    since: new Date(sinceMs).toISOString(),
    set_by: setBy === '' ? null : setBy,
  };
}

/** The router without its HTTP server: cluster members, the index of their blocks, and conductor and relay of each model. */
import type { Bus } from '../../shared/bus/bus.ts';
import type { Log } from '../../shared/base/log.ts';
import { DecodeStreams } from '../../shared/net/decode/decode_stream.ts';
import type { Network } from '../../shared/net/network.ts';
import type { RoleContext } from '../../shared/node/role.ts';
import { ClusterView, type ClusterViewOptions } from './cluster/cluster_view.ts';
import { ModelView } from './cluster/model_view.ts';
import type { AnnouncedLimits } from './cluster/presence.ts';
import { IndexFeed } from './cluster/index_feed.ts';
import { Conductor } from '../../shared/placement/conductor.ts';
import { OverloadPolicy } from '../../shared/placement/overload.ts';
import { MeanLengthPredictor } from './conductor/length_predictor.ts';
import { LimitShare, type LimitShareOptions } from './conductor/limit_share.ts';
import { PolicyInForce } from './conductor/policy_in_force.ts';
import { TenantLimits } from './conductor/tenant_limits.ts';
import { GoneKeys } from './record/gone_keys.ts';
import { LossCosts } from './observe/loss_cost.ts';
import { TreeKeeper } from './observe/tree_keeper.ts';
import { MissReasons } from './record/miss_reasons.ts';
import type { RouterConfig } from './options.ts';
import { PrefixIndex } from '../../shared/placement/prefix_index/prefix_index.ts';
import { Relay } from './relay/relay.ts';

/**
 * Exclusive upper bound of the random tie-break number of this router; larger than MAX_MEMBERS, so that several routers rarely have
 * equal numbers.
 */
const MAX_TIE_BREAK = 1 << 16;

/** Dependencies of {@link createCore} beyond the role context. */
export interface CoreOptions {
  readonly bus: Bus;
  readonly name: string;
  readonly admit: ClusterViewOptions['admit'];
  readonly signal: AbortSignal;
  readonly onEvent?: ClusterViewOptions['onEvent'];
  /** Called for each prompt with its model and the keys of its full blocks, two words each. */
  readonly onLookup?: (model: string, keys: Int32Array) => void;
}

/** View, conductor and relay of one model. */
interface ModelCore {
  readonly view: ModelView;
  readonly conductor: Conductor;
  readonly relay: Relay;
}

/** Limits of tenants at this router. */
interface RouterLimits extends AnnouncedLimits {
  readonly share: LimitShare;
  readonly tenants: TenantLimits;
}

/** Cluster state and request placement of a router, without HTTP. */
export interface RouterCore {
  readonly view: ClusterView;
  readonly index: PrefixIndex;
  /** The prefix tree, for those who look. */
  readonly blocks: TreeKeeper;
  /** Costs of the loss of each member. */
  readonly losses: LossCosts;
  /** Placement policy of all models. */
  readonly policy: PolicyInForce;
  /** Part of the limits of tenants that this router gives, and their counts; undefined for a router that asks for no keys. */
  readonly limits: RouterLimits | undefined;
  /** Creates the view, conductor and relay of a model. `onFailover` is called when a request moves to another decode instance. */
  readonly serve: (model: string, onFailover: () => void) => ModelCore;
  /** Removes the conductor of a model that is no longer served; lost instances are not reported to the conductor any more. */
  readonly drop: (conductor: Conductor) => void;
}

/**
 * Returns a core with the cluster view, the prefix index and the feed between them. Conductor and relay of a model are created by
 * `serve`.
 */
export function createCore(
  context: Pick<RoleContext<RouterConfig>, 'config' | 'network' | 'clock' | 'random' | 'log' | 'identity' | 'limits'>,
  { bus, name, admit, signal, onEvent, onLookup }: CoreOptions,
): RouterCore {
  const { config, network, clock, random, log, identity, limits } = context;
  const gone = new GoneKeys(clock);
  const index = new PrefixIndex(undefined, gone);
  const misses = new MissReasons(index, gone);
  const conductors = new Set<Conductor>();
  const feed = new IndexFeed(index, bus, network, clock, log);
  const own = { name, epoch: identity.epoch };
  const settings = { localPrefillTokens: config.local_prefill_tokens, strictRoles: config.strict_roles };
  const policy = new PolicyInForce({ bus, identity: own, clock, log, settings, initial: config.policy });
  const announce = (): void => {
    view.notice();
  };
  const limited = config.keys === '' ? undefined : limitsOf({ bus, identity: own, clock, signal, announce });
  const targeted = new OverloadPolicy(policy, { refusesHopeless: config.slo_refuse_hopeless });
  const view = new ClusterView({
    bus,
    identity: own,
    policy: () => policy.notice,
    limits: limited,
    usesAnyRole: () => policy.usesAnyRole,
    network,
    clock,
    log,
    admit,
    signal,
    onEvent,
    silenceMs: config.silence_ms,
    onJoined: feed.add.bind(feed),
    onHeard: feed.heard.bind(feed),
    onLost: (instance) => {
      feed.remove(instance);
      for (const conductor of conductors) conductor.forget(instance);
      const { address } = instance.member;
      if (!view.all().some(({ member }) => member.address === address)) network.forget(address);
    },
  });
  const blocks = new TreeKeeper({ feed, index, view, network, clock, log, signal });
  const tieBreak = random.below(MAX_TIE_BREAK);
  const decodes = streamsOf(network, log, signal);
  const host = { network, decodes, clock, random, misses, router: identity.epoch, keyBits: limits?.keyBits };
  const serve = (model: string, onFailover: () => void): ModelCore => {
    const modelView = new ModelView(view, model);
    const conductor = new Conductor({ view: modelView, index, clock, random, policy: targeted, tieBreak });
    conductors.add(conductor);
    const lengths = new MeanLengthPredictor();
    const looked = (keys: Int32Array): void => {
      blocks.use(keys);
      onLookup?.(model, keys);
    };
    const relay = new Relay({ ...host, lengths, view: modelView, conductor, onFailover, onLookup: looked });
    return { view: modelView, conductor, relay };
  };
  const drop = (conductor: Conductor): void => void conductors.delete(conductor);
  return { view, index, blocks, losses: new LossCosts(index, view, clock), policy, limits: limited, serve, drop };
}

/** Returns the streams to decode instances, which end when `signal` aborts. */
function streamsOf(network: Network, log: Log, signal: AbortSignal): DecodeStreams {
  const decodes = new DecodeStreams(network, (address, { message }) => {
    log.warn(
      { address, error: message },
      'an instance sent replies that cannot be right: its requests go on elsewhere',
    );
  });
  const close = (): void => {
    decodes.close();
  };
  signal.addEventListener('abort', close, { once: true });
  return decodes;
}

function limitsOf(options: LimitShareOptions): RouterLimits {
  const share = new LimitShare(options);
  const tenants = new TenantLimits(options.clock, share);
  return {
    share,
    tenants,
    notice: () => tenants.notice(),
    leave: () => {
      share.leave();
    },
  };
}

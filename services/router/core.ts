/** What a router knows and decides, without its HTTP face: members, the index of their blocks, the relay of requests. */
import type { Bus } from '../../shared/bus/bus.ts';
import type { RoleContext } from '../../shared/node/role.ts';
import { ClusterView } from './cluster/cluster_view.ts';
import { IndexFeed } from './cluster/index_feed.ts';
import { Conductor } from './conductor/conductor.ts';
import { LongestRun } from './conductor/longest_run.ts';
import type { RouterConfig } from './options.ts';
import { PrefixIndex } from './cluster/prefix_index.ts';
import { Relay } from './relay/relay.ts';

/** Instances among which routers take turns. */
const MAX_TURN = 1 << 16;

export interface CoreOptions {
  readonly bus: Bus;
  readonly name: string;
  /** Of the model that the router tokenises for. */
  readonly vocabSize: number;
  readonly modelConfig: string;
  readonly signal: AbortSignal;
  readonly onFailover: () => void;
}

export interface RouterCore {
  readonly view: ClusterView;
  readonly index: PrefixIndex;
  readonly conductor: Conductor;
  readonly relay: Relay;
}

export function createCore(
  {
    config,
    network,
    clock,
    random,
    log,
    identity,
  }: Pick<RoleContext<RouterConfig>, 'config' | 'network' | 'clock' | 'random' | 'log' | 'identity'>,
  { bus, name, vocabSize, modelConfig, signal, onFailover }: CoreOptions,
): RouterCore {
  const index = new PrefixIndex();
  const feed = new IndexFeed(index, bus, network, clock, log);
  const view = new ClusterView({
    bus,
    identity: { name, epoch: identity.epoch },
    ...{ clock, log, vocabSize, modelConfig, signal },
    silenceMs: config.silence_ms,
    onJoined: (instance) => {
      feed.add(instance);
    },
    onHeard: (instance, blocks) => {
      feed.heard(instance, blocks);
    },
    onLost: (instance) => {
      feed.remove(instance);
      conductor.forget(instance);
      const { address } = instance.member;
      if (!view.all().some(({ member }) => member.address === address)) network.forget(address);
    },
  });
  const policy = new LongestRun(config.local_prefill_tokens);
  const conductor = new Conductor({ view, index, clock, policy, turn: random.below(MAX_TURN) });
  const relay = new Relay({ ...{ view, conductor, network, clock, random, router: identity.epoch }, onFailover });
  return { view, index, conductor, relay };
}

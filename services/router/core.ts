/** What a router knows and decides, without its HTTP face: members, the index of their blocks, the relay of requests. */
import type { EmbeddedHub } from '../../shared/bus/embedded_hub.ts';
import type { RoleContext } from '../../shared/node/role.ts';
import { ClusterView } from './cluster/cluster_view.ts';
import { IndexFeed } from './cluster/index_feed.ts';
import { Conductor } from './conductor/conductor.ts';
import { LongestRun } from './conductor/longest_run.ts';
import type { RouterConfig } from './options.ts';
import { PrefixIndex } from './cluster/prefix_index.ts';
import { Relay } from './relay/relay.ts';

export interface CoreOptions {
  readonly hub: EmbeddedHub;
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
  }: Pick<RoleContext<RouterConfig>, 'config' | 'network' | 'clock' | 'random' | 'log'>,
  { hub, vocabSize, modelConfig, signal, onFailover }: CoreOptions,
): RouterCore {
  const index = new PrefixIndex();
  const feed = new IndexFeed(index, hub, network, clock, log);
  const view = new ClusterView({
    bus: hub,
    ...{ clock, log, vocabSize, modelConfig, signal },
    silenceMs: config.silence_ms,
    onJoined: (instance) => {
      feed.add(instance);
    },
    onRejoined: (instance) => {
      feed.add(instance);
    },
    onLost: (instance) => {
      feed.remove(instance);
      conductor.forget(instance);
      const { address } = instance.member;
      if (!view.all().some(({ member }) => member.address === address)) network.forget(address);
    },
  });
  const conductor = new Conductor({ view, index, clock, policy: new LongestRun(config.local_prefill_tokens) });
  const relay = new Relay({ ...{ view, conductor, network, clock, random }, onFailover });
  return { view, index, conductor, relay };
}

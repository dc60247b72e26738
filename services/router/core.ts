/** What a router knows and decides, without its HTTP face: members, the index of their blocks, the relay of requests. */
import type { EmbeddedHub } from '../../shared/bus/embedded_hub.ts';
import type { RoleContext } from '../../shared/instance/role.ts';
import { ClusterView } from './cluster_view.ts';
import { IndexFeed } from './index_feed.ts';
import { SimplePlacer } from './placement.ts';
import { PrefixIndex } from './prefix_index.ts';
import { Relay } from './relay.ts';

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
  readonly relay: Relay;
}

export function createCore(
  { config, network, clock, random, log }: Pick<RoleContext, 'config' | 'network' | 'clock' | 'random' | 'log'>,
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
      const { address } = instance.member;
      if (!view.all().some(({ member }) => member.address === address)) network.forget(address);
    },
  });
  const placer = new SimplePlacer(config.local_prefill_tokens);
  const relay = new Relay({ ...{ view, index, network, clock, random, placer }, onFailover });
  return { view, index, relay };
}

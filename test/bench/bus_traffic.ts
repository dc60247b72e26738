/**
 * Measures the bus traffic of a cluster in bytes per second: heartbeats, notices and block events of N members and two routers, idle and
 * busy, under simulated time. Reports the bytes sent once to a NATS server and the bytes that the server delivers.
 */
import { setMaxListeners } from 'node:events';
import { newBusEpoch } from '../../shared/base/identity.ts';
import { silentLog } from '../../shared/base/log.ts';
import type { Bus } from '../../shared/bus/bus.ts';
import { ClusterBus } from '../../shared/bus/cluster_bus.ts';
import { EmbeddedHub } from '../../shared/bus/embedded_hub.ts';
import type { BlockKey } from '../../shared/kv/block_key.ts';
import { type Format } from '../../shared/kv/format.ts';
import { LAYOUT_VERSION } from '../../shared/kv/kv_spec.ts';
import { answeringOnce } from '../../shared/net/network.ts';
import type { InstanceLoad, Member } from '../../shared/protocol/membership.ts';
import { ClusterView } from '../../services/router/cluster/cluster_view.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';
import { joinAsFake } from '../support/fake_member.ts';
import { playedNetwork } from '../support/played_network.ts';
import type { Figure } from './figures.ts';

export interface BusBenchOptions {
  readonly numMembers: readonly number[];
  readonly onFigure: (figure: Figure) => void;
}

const NUM_ROUTERS = 2;
const START_MS = 3_000;
const MEASURE_MS = 4_000;
/**
 * Load of a busy engine per second: 500 blocks stored (16,000 tokens at 32 per block), as many removed, and PLACED_PER_SECOND
 * requests.
 */
const BLOCKS_PER_SECOND = 500;
const PLACED_PER_SECOND = 10;

const format: Format = {
  model: 'ab'.repeat(32),
  weightFormat: 'f16',
  kvDtype: 'f16',
  layoutVersion: LAYOUT_VERSION,
  blockSize: 32,
  numerics: 'deterministic/cd34',
  kv: 'spec',
};
const tier = { blocks: 123_456, bytes: 1e11, capacityBytes: 2e11, hits: 1_234_567, misses: 234_567, evictions: 34_567 };
const load: InstanceLoad = {
  running: 12,
  waiting: 3,
  preemptions: 7,
  lastStepMs: 12.345678901234,
  kvUsage: 0.7123456789,
  openStreams: 4,
  arriving: 17,
  lent: 64,
  isDraining: false,
  tiers: { device: { ...tier, dedupFactor: 1.2345678 }, dram: { ...tier, dedupFactor: 1 } },
};

/** Counts what its ends publish, and what reaches others. */
class Counted implements Bus {
  readonly name = 'counted';
  readonly isConnected = true;
  static sentBytes = 0;
  static deliveredBytes = 0;
  readonly #hub: EmbeddedHub;

  constructor(hub: EmbeddedHub) {
    this.#hub = hub;
  }

  publish(subject: string, payload: Buffer): void {
    Counted.sentBytes += subject.length + payload.length;
    this.#hub.publish(subject, payload);
  }

  subscribe(subject: string, handler: (payload: Buffer) => void): () => void {
    return this.#hub.subscribe(subject, (payload) => {
      Counted.deliveredBytes += subject.length + payload.length;
      handler(payload);
    });
  }

  request(subject: string, payload: Buffer): Promise<Buffer> {
    return this.#hub.request(subject, payload);
  }

  serve(subject: string, handler: (payload: Buffer) => Buffer | Promise<Buffer>): () => void {
    return this.#hub.serve(subject, handler);
  }

  close(): void {
    // The hub lives on.
  }
}

export async function benchBus({ numMembers, onFigure }: BusBenchOptions): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const count of numMembers) {
    for (const isBusy of [false, true]) {
      const { sent, delivered } = await traffic(count, isBusy);
      const name = `bus/${count} instances/${isBusy ? 'busy' : 'idle'}`;
      for (const [what, value] of Object.entries({ sent, delivered })) {
        const figure = { name: `${name}/${what}`, value: value / 1_000, unit: 'kB/s' };
        figures.push(figure);
        onFigure(figure);
      }
    }
  }
  return figures;
}

async function traffic(count: number, isBusy: boolean): Promise<{ sent: number; delivered: number }> {
  const clock = new SimulatedClock();
  const hub = new EmbeddedHub(silentLog);
  const ended = new AbortController();
  setMaxListeners(0, ended.signal);
  const sealing = { cluster: 'default', token: 'a secret' };
  const open = (): ClusterBus =>
    new ClusterBus(new Counted(hub), { ...sealing, epoch: newBusEpoch(), clock, log: silentLog });
  for (let i = 0; i < NUM_ROUTERS; i++) {
    new ClusterView({
      bus: open(),
      identity: { name: `router-${i}`, epoch: `0123456789abcde${i}` },
      clock,
      log: silentLog,
      silenceMs: 3_000,
      signal: ended.signal,
      policy: () => undefined,
      network: playedNetwork({ check: answeringOnce<'check'>(() => ({ status: 1 })) }),
      admit: () => ({ model: 'c' }),
      onJoined: () => undefined,
      onHeard: () => undefined,
      onLost: () => undefined,
    });
  }
  const seen = Object.fromEntries(Array.from({ length: NUM_ROUTERS }, (_, i) => [`0123456789abcde${i}`, 12_345]));
  const members = Array.from({ length: count }, (_, i) => {
    const role = i % 8 === 7 ? 'store' : i % 2 === 0 ? 'decode' : 'prefill';
    const member: Member = {
      name: `${role}-${i}`,
      role,
      address: `10.0.0.1:${9_000 + i}`,
      pid: i,
      epoch: `${i}`.padStart(16, '0'),
    };
    const engine = {
      format,
      modelConfig: 'c',
      numericsClass: 'n',
      maxModelLen: 131_072,
      vocabSize: 128_256,
      device: 'a GPU',
    };
    return joinAsFake({
      openBus: (listener) => {
        void clock.sleep(i % 100).then(() => {
          listener.onConnected();
        });
        return open();
      },
      member,
      clock,
      load,
      signal: ended.signal,
      ...(role === 'store' ? {} : { engine, seen }),
    });
  });
  await clock.run(START_MS);
  const [sentBefore, deliveredBefore] = [Counted.sentBytes, Counted.deliveredBytes];
  let next = 1n;
  for (let ms = 0; ms < MEASURE_MS; ms += 100) {
    if (isBusy) {
      for (const { cluster, announcer } of members) {
        for (let i = 0; i < PLACED_PER_SECOND / 10; i++) void cluster.loadChanged();
        for (let i = 0; i < BLOCKS_PER_SECOND / 10; i++) {
          announcer.stored('device', { key: next as BlockKey, parent: (next - 1n) as BlockKey });
          announcer.removed('device', next as BlockKey);
          next++;
        }
      }
    }
    await clock.run(START_MS + ms + 100);
  }
  const seconds = MEASURE_MS / 1_000;
  const [sent, delivered] = [Counted.sentBytes - sentBefore, Counted.deliveredBytes - deliveredBefore];
  ended.abort();
  for (const { cluster } of members) cluster.leave();
  return { sent: sent / seconds, delivered: delivered / seconds };
}

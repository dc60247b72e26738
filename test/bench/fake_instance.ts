/** A decode instance without an engine, in a process of its own: it joins a cluster and serves `decode` with the handler of a benchmark. */
import { systemClock } from '../../shared/base/clock.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import type { Format } from '../../shared/kv/format.ts';
import { LAYOUT_VERSION } from '../../shared/kv/kv_spec.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import { shapeDigest } from '../../shared/model/model_shape.ts';
import { createFetchHandlers } from '../../shared/net/fetch/fetch_server.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import type { Handler } from '../../shared/net/network.ts';
import type { Announcer } from '../../shared/node/announcer.ts';
import type { Member } from '../../shared/protocol/membership.ts';
import { copySource } from '../support/borrowing.ts';
import { hubOf, idleLoad, joinAsFake, natsOf } from '../support/fake_member.ts';

const BLOCK_SIZE = 32;

/** Format of the blocks that the instance would have. */
export const FORMAT: Format = {
  model: 'none',
  weightFormat: 'none',
  kvDtype: 'f16',
  layoutVersion: LAYOUT_VERSION,
  blockSize: BLOCK_SIZE,
  numerics: 'none',
  kv: 'spec',
};

/** Joins a cluster, and sends `ready` to the parent process once it has. Returns the announcer of blocks. */
export async function joinWithDecode({
  hub,
  modelPath,
  name,
  decode,
  load = () => ({}),
}: {
  /** Address of the router's hub, or of a NATS server (`nats://…`). */
  readonly hub: string;
  readonly modelPath: string;
  readonly name: string;
  readonly decode: Handler<'decode'>;
  /** Returns what its heartbeats report besides the load of an idle instance. */
  readonly load?: () => Partial<typeof idleLoad>;
}): Promise<Announcer> {
  const folder = readModelFolder(modelPath);
  const network = new GrpcNetwork('', systemClock);
  const { fetch, snapshot } = createFetchHandlers(
    () => ({
      wanted: new WantedKeys(),
      ...copySource(() => Promise.resolve(undefined)),
      snapshot: () => announcer.snapshot(),
    }),
    { maxStreams: 64 },
  );
  const epoch = `e${process.pid}`;
  const { address } = await network.listen('127.0.0.1:0', { fetch, snapshot, decode }, epoch);
  const member: Member = { name, role: 'decode', address, pid: process.pid, epoch };
  const modelConfig = shapeDigest(shapeOf(folder));
  const { vocabSize } = folder.config;
  const { announcer } = joinAsFake({
    member,
    clock: systemClock,
    openBus: hub.startsWith('nats:') ? natsOf(hub, name, systemClock) : hubOf(hub, '', network, systemClock),
    engine: { format: FORMAT, modelConfig, numericsClass: 'none', maxModelLen: 131_072, vocabSize, device: 'none' },
    load: () => ({ ...idleLoad, ...load() }),
    onJoined: () => process.send?.('ready'),
  });
  return announcer;
}

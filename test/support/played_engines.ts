/** A router in this process whose instance is played: a test says what it generates. Real sockets. */
import { systemClock } from '../../shared/base/clock.ts';
import { readCommandLine } from '../../shared/base/options.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import type { Format } from '../../shared/kv/format.ts';
import { LAYOUT_VERSION } from '../../shared/kv/kv_spec.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import { shapeDigest } from '../../shared/model/model_shape.ts';
import { DecodeServer, type StartDecode } from '../../shared/net/decode/served_decodes.ts';
import { createFetchHandlers } from '../../shared/net/fetch/fetch_server.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import { loadTables } from '../../services/cli/tables.ts';
import { copySource } from './borrowing.ts';
import { hubOf, idleLoad, joinAsFake } from './fake_member.ts';
import { InProcessRole } from './in_process.ts';
import { aborted, NEVER_SILENT } from './until.ts';

const TOKEN = 'a-token-of-played-engines';
const BLOCK_SIZE = 32;

/** A router of one model, with one instance. */
export interface PlayedCluster {
  readonly url: string;
  close(): Promise<void>;
}

async function startRouter(folder: string, args: readonly string[]): Promise<InProcessRole> {
  const tables = await loadTables();
  const place = ['--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0', '--model', folder];
  // eslint-disable-next-line time/speed -- 0: a slow machine adds no comments to a stream
  const options = ['--policy', 'longest_prefix', '--sse-keep-alive-ms', '0', '--log-level', 'error', ...NEVER_SILENT];
  const { config } = readCommandLine(tables.router, { command: 'router', tables }, [...place, ...options, ...args], {});
  const router = new InProcessRole('router', 'router');
  await router.start({ ...(config as unknown as ProcessConfig), cluster_token: TOKEN }, (error) => {
    throw error;
  });
  return router;
}

/** Joins an instance of the model; resolves, when it is in the pool, with a function that ends it. */
async function joinPlayed(folder: string, hub: string, server: DecodeServer): Promise<() => Promise<void>> {
  const model = readModelFolder(folder);
  const network = new GrpcNetwork(TOKEN, systemClock);
  const { fetch, snapshot } = createFetchHandlers(
    () => ({
      wanted: new WantedKeys(),
      ...copySource(() => Promise.resolve(undefined)),
      snapshot: () => announcer.snapshot(),
    }),
    { maxStreams: 1 },
  );
  const epoch = `epoch of ${model.name}`;
  const listener = await network.listen('127.0.0.1:0', { fetch, snapshot, decode: server.handler }, epoch);
  const rest: Omit<Format, 'model' | 'blockSize'> = {
    weightFormat: 'none',
    kvDtype: 'f16',
    layoutVersion: LAYOUT_VERSION,
    numerics: 'none',
    kv: 'spec',
  };
  const format = { ...rest, model: model.name, blockSize: BLOCK_SIZE };
  const ended = new AbortController();
  const joined = new AbortController();
  const { cluster, announcer } = joinAsFake({
    member: { name: model.name, role: 'decode', address: listener.address, pid: process.pid, epoch },
    clock: systemClock,
    openBus: hubOf(hub, TOKEN, network, systemClock),
    engine: {
      format,
      modelName: model.name,
      modelConfig: shapeDigest(shapeOf(model)),
      numericsClass: 'none',
      maxModelLen: 2_048,
      vocabSize: model.config.vocabSize,
      device: 'none',
    },
    load: idleLoad,
    signal: ended.signal,
    onJoined: () => {
      joined.abort();
    },
  });
  await aborted(joined.signal);
  return async () => {
    cluster.leave();
    ended.abort();
    network.close();
    await listener.close(0);
  };
}

/** Starts a router of the model in `folder`, with these arguments. `session` is called with each Decode call. */
export async function startPlayed(
  folder: string,
  session: StartDecode,
  args: readonly string[],
): Promise<PlayedCluster> {
  const router = await startRouter(folder, args);
  const { url = '', address: hub } = router.ready;
  const server = new DecodeServer(systemClock, session);
  const leave = await joinPlayed(folder, hub, server);
  return {
    url,
    close: async () => {
      await router.drain();
      server.close();
      await leave();
    },
  };
}

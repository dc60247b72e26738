/**
 * A decode instance that answers at once: what is left of a request's time is the router's and the wire's. Started by router.ts with
 * the hub and the model's folder; says `ready` to its parent.
 */
import { systemClock } from '../../shared/base/clock.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { chainOf } from '../../shared/kv/block_key.ts';
import { formatDigest, type Format } from '../../shared/kv/format.ts';
import { LAYOUT_VERSION } from '../../shared/kv/kv_spec.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import { shapeDigest } from '../../shared/model/model_shape.ts';
import { createFetchHandlers } from '../../shared/net/fetch/fetch_server.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import type { Handler } from '../../shared/net/network.ts';
import type { Member } from '../../shared/protocol/membership.ts';
import { unpackTokens } from '../../shared/protocol/packing.ts';
import { hubOf, joinAsFake } from '../support/fake_member.ts';
import { copySource } from '../support/borrowing.ts';

const BLOCK_SIZE = 32;

const [hub = '', modelPath = ''] = process.argv.slice(2);
const folder = readModelFolder(modelPath);
const modelConfig = shapeDigest(shapeOf(folder));
const format: Format = {
  model: 'none',
  weightFormat: 'none',
  kvDtype: 'f16',
  layoutVersion: LAYOUT_VERSION,
  blockSize: BLOCK_SIZE,
  numerics: 'none',
  kv: 'spec',
};
/** Prompts whose blocks it has told of. */
const notified = new Set<string>();
const network = new GrpcNetwork('', systemClock);

const decode: Handler<'decode'> = async function* (requests) {
  for await (const { start } of requests) {
    if (!start) return;
    const { tokens } = start;
    const promptLength = start.request?.promptLength ?? 0;
    // Each prompt is announced once, because its blocks are known from then on.
    const last = start.lastDigest.toString('hex');
    if (!notified.has(last)) {
      notified.add(last);
      for (const hash of chainOf(formatDigest(format), BLOCK_SIZE, unpackTokens(tokens)))
        announcer.stored('device', hash);
    }
    const count = tokens.length / 4;
    const sampled = { token: 7, logprob: [], topTokens: [], topLogprobs: [], position: count };
    const report = {
      cachedTokens: promptLength - 1,
      fetchedTokens: 0,
      computedTokens: 1,
      fetchedBytes: 0,
      links: [],
      sources: null,
      queueMs: 0,
      loadMs: 0,
      computeMs: 0,
    };
    yield { sampled, report, finishReason: 'length', body: 'sampled' };
    return;
  }
};

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
const member: Member = { name: `instant-${process.pid}`, role: 'decode', address, pid: process.pid, epoch };
const { vocabSize } = folder.config;
const { announcer } = joinAsFake({
  member,
  clock: systemClock,
  openBus: hubOf(hub, '', network, systemClock),
  engine: { format, modelConfig, numericsClass: 'none', maxModelLen: 131_072, vocabSize, device: 'none' },
  onJoined: () => process.send?.('ready'),
});

/** Embeddings through the relay: where they run, and what happens when that fails. Real gRPC. Budget: 5 s. */
import assert from 'node:assert/strict';
import { afterEach, expect, test } from 'vitest';
import { systemClock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { Random } from '../../../shared/base/random.ts';
import type { Digest } from '../../../shared/kv/block_key.ts';
import { noScope } from '../../../shared/kv/format.ts';
import { DecodeStreams } from '../../../shared/net/decode/decode_stream.ts';
import { GrpcNetwork } from '../../../shared/net/grpc/grpc_network.ts';
import { answeringOnce, type Handlers, type Listener } from '../../../shared/net/network.ts';
import { Pooling, type EmbedRequest } from '../../../shared/protocol/messages.ts';
import { packFloats, unpackTokens } from '../../../shared/protocol/packing.ts';
import type { ClusterView } from '../../../services/router/cluster/cluster_view.ts';
import { Instance } from '../../../shared/placement/instance.ts';
import type { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import { Conductor } from '../../../shared/placement/conductor.ts';
import { MeanLengthPredictor } from '../../../services/router/conductor/length_predictor.ts';
import { LongestPrefixPolicy } from '../../../shared/placement/longest_prefix_policy.ts';
import { Relay } from '../../../services/router/relay/relay.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import type { RequestRecord } from '../../../services/router/record/request_record.ts';
import { aborted, PATIENCE_MS, turn } from '../../support/until.ts';
import { kindOf } from '../../support/request_kind.ts';

const NUM_TOKENS = 100;
const vector = Float32Array.of(0.6, -0.8);
const report = {
  cachedTokens: 64,
  fetchedTokens: 0,
  computedTokens: 36,
  queueMs: 1,
  loadMs: 2,
  computeMs: 3,
  fetchedBytes: 0,
  links: [],
  sources: null,
};
const embedded = { values: packFloats(vector), report };

let network: GrpcNetwork;
const listeners: Listener[] = [];
afterEach(async () => {
  network.close();
  await Promise.all(listeners.splice(0).map((listener) => listener.close(100)));
});

async function instanceOf(role: 'decode' | 'prefill' | 'store', handlers: Handlers): Promise<Instance> {
  const listener = await network.listen('127.0.0.1:0', handlers);
  listeners.push(listener);
  const member = { name: role, role, address: listener.address, pid: 1, epoch: 'e' };
  return new Instance({ member, protocolVersion: 2, engine: { maxModelLen: 1_000 } as never }, systemClock.nowMs());
}

interface Asked {
  readonly answer: Promise<Float32Array>;
  readonly record: RequestRecord;
  readonly leave: () => void;
  readonly numFailovers: () => number;
}

/** Asks for an embedding; `held` says which instance holds the first two blocks. */
function ask(
  instances: readonly Instance[],
  { held, pooling = Pooling.LAST }: { held?: Instance; pooling?: Pooling } = {},
): Asked {
  const view = {
    model: { digest: 'ab'.repeat(16) as Digest, format: { blockSize: 32 } },
    of: (role: string) => instances.filter(({ member }) => member.role === role),
    all: () => instances,
    generating: () => instances.filter(({ member }) => member.role === 'decode'),
    byHolder: (id: string) => instances.find((one) => one.id === id),
    decodeSeenMs: () => systemClock.nowMs(),
    otherRouters: [],
    changed: turn,
  } as unknown as ClusterView;
  const index = {
    ranges: (keys: Int32Array) =>
      held && keys.length > 0 ? [{ start: 0, end: 2, heldBy: [{ holder: held.id, tiers: 1 }] }] : [],
  } as unknown as PrefixIndex;
  const policy = new LongestPrefixPolicy(16);
  const conductor = new Conductor({ view, index, policy, clock: systemClock, random: new Random(1), tieBreak: 0 });
  let numFailovers = 0;
  const relay = new Relay({
    view,
    network,
    decodes: new DecodeStreams(network),
    clock: systemClock,
    random: new Random(1),
    conductor,
    router: 'r',
    lengths: new MeanLengthPredictor(),
    onFailover: () => numFailovers++,
  });
  const names = { clientId: undefined, traceId: undefined };
  const trace = new RequestLog(systemClock, [], 8).open('r', kindOf('/v1/embeddings'), names);
  trace.emit({ kind: 'read', facts: { promptTokens: NUM_TOKENS } });
  const promptTokens = Uint32Array.from({ length: NUM_TOKENS }, (_, i) => i + 1);
  const leaving = new AbortController();
  const answer = relay.embed(
    { promptTokens, pooling, scope: noScope, origin: { tenant: 'a tenant', priority: 3 } },
    trace,
    systemClock.nowMs() + PATIENCE_MS,
    leaving.signal,
  );
  return { answer, record: trace.record, leave: () => leaving.abort(), numFailovers: () => numFailovers };
}

test('a prefill instance gets the prompt, the sources of its blocks and whose it is; the trace says where each token came from', async () => {
  network = new GrpcNetwork('', systemClock);
  const received: EmbedRequest[] = [];
  const store = await instanceOf('store', {});
  const prefill = await instanceOf('prefill', {
    embed: answeringOnce<'embed'>((request) => {
      received.push(request);
      return embedded;
    }),
  });
  const decode = await instanceOf('decode', {});
  const { answer, record } = ask([decode, prefill, store], { held: store });
  assert.deepEqual(await answer, vector);
  const [request] = received;
  assert(request);
  assert.deepEqual([...unpackTokens(request.tokens)].at(-1), NUM_TOKENS);
  expect(request).toMatchObject({
    sources: [{ address: store.member.address, start: 0, end: 2, isComputing: false }],
    context: { requestId: 'r.1', tenant: 'a tenant', priority: 3, router: 'r', placement: 1 },
    pooling: Pooling.LAST,
  });
  expect(record.counts.tokens).toMatchObject({ cached: 64, computed: 36 });
  assert.equal(record.counts.attempts[0]?.outcome, 'finished');
  assert.equal(record.expected.heldTokens, 64);
  assert.equal(prefill.numPlaced, 0, 'the placement has ended');
});

test('a mean is placed without regard to held blocks, and is sent no sources', async () => {
  network = new GrpcNetwork('', systemClock);
  let received: EmbedRequest | undefined;
  const handlers: Handlers = {
    embed: answeringOnce<'embed'>((request) => {
      received = request;
      return embedded;
    }),
  };
  const [prefill, decode] = [await instanceOf('prefill', handlers), await instanceOf('decode', handlers)];
  const { answer, record } = ask([decode, prefill], { held: decode, pooling: Pooling.MEAN });
  await answer;
  assert.equal(record.counts.attempts[0]?.decode, 'prefill');
  assert.equal(record.expected.heldTokens, 0);
  assert.deepEqual([received?.sources, received?.pooling], [[], Pooling.MEAN]);
  // The chain is checked all the same.
  assert.equal(received?.lastDigest.length, 16);
});

test('a lost instance is replaced by one of the other role, a busy one is asked again', async () => {
  network = new GrpcNetwork('', systemClock);
  let numBusy = 0;
  const prefill = await instanceOf('prefill', {
    embed: answeringOnce<'embed'>(() => {
      throw new Failure('instance_lost', 'its device is gone');
    }),
  });
  const decode = await instanceOf('decode', {
    embed: answeringOnce<'embed'>(() => {
      if (++numBusy === 1) throw new Failure('overloaded', 'too many wait');
      return embedded;
    }),
  });
  const { answer, record, numFailovers } = ask([decode, prefill]);
  assert.deepEqual(await answer, vector);
  const names = record.counts.attempts.map(({ decode: name }) => name);
  assert.deepEqual([names[0], names.at(-1)], ['prefill', 'decode']);
  assert(numBusy === 2 && prefill.isSuspect && !decode.isSuspect);
  expect(numFailovers()).toBeGreaterThanOrEqual(1);
});

test('the loss of a holder ends the call that fetches from it; the instance is asked again, and not blamed', async () => {
  network = new GrpcNetwork('', systemClock);
  const store = await instanceOf('store', {});
  let numAsked = 0;
  let hasBegun: () => void = () => undefined;
  const begun = new Promise<void>((resolve) => (hasBegun = resolve));
  const prefill = await instanceOf('prefill', {
    async *embed(_requests, { signal }) {
      if (++numAsked === 1) {
        hasBegun();
        await aborted(signal);
      }
      yield embedded;
    },
  });
  const { answer, numFailovers } = ask([prefill, store], { held: store });
  await begun;
  store.lost.abort(new Failure('instance_lost', 'silent'));
  assert.deepEqual(await answer, vector);
  assert.deepEqual([numAsked, numFailovers(), prefill.isSuspect], [2, 0, false]);
});

test('a client that leaves cancels the call; what no other instance can mend is thrown', async () => {
  network = new GrpcNetwork('', systemClock);
  let hasLeft: () => void = () => undefined;
  const left = new Promise<void>((resolve) => (hasLeft = resolve));
  let hasBegun: () => void = () => undefined;
  const begun = new Promise<void>((resolve) => (hasBegun = resolve));
  const prefill = await instanceOf('prefill', {
    async *embed(_requests, { signal }) {
      hasBegun();
      await aborted(signal);
      hasLeft();
      yield embedded;
    },
  });
  const leaving = ask([prefill]);
  await begun;
  leaving.leave();
  await assert.rejects(leaving.answer, (error: unknown) => error instanceof Failure && error.code === 'cancelled');
  await left;
  assert.equal(leaving.record.counts.attempts[0]?.outcome, 'cancelled');
  const refusing = await instanceOf('prefill', {
    embed: answeringOnce<'embed'>(() => {
      throw new Failure('internal', 'the prompt has no embedding');
    }),
  });
  const { answer, record } = ask([refusing]);
  await assert.rejects(answer, /the prompt has no embedding/);
  assert.equal(record.counts.attempts.length, 1);
});

/** The relay against a decode instance whose connection always breaks. Real gRPC. Budget: 15 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { systemClock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { Random } from '../../../shared/base/random.ts';
import type { Digest } from '../../../shared/kv/block_key.ts';
import { DecodeStreams } from '../../../shared/net/decode/decode_stream.ts';
import { GrpcNetwork } from '../../../shared/net/grpc/grpc_network.ts';
import type { RequestContext } from '../../../shared/protocol/messages.ts';
import { neutralRequest } from '../../../shared/protocol/request.ts';
import type { ClusterView } from '../../../services/router/cluster/cluster_view.ts';
import { Instance } from '../../../shared/placement/instance.ts';
import { Conductor } from '../../../shared/placement/conductor.ts';
import { MeanLengthPredictor } from '../../../services/router/conductor/length_predictor.ts';
import { LongestPrefixPolicy } from '../../../shared/placement/longest_prefix_policy.ts';
import type { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import type { GeneratedToken } from '../../../services/router/relay/decode_attempt.ts';
import type { Generation } from '../../../services/router/relay/generation.ts';
import { Relay } from '../../../services/router/relay/relay.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import type { RequestRecord } from '../../../services/router/record/request_record.ts';
import { emptyReport } from '../../support/empty_report.ts';
import { playedDecode } from '../../support/played_decode.ts';
import { pulled } from '../../support/pulled.ts';
import { PATIENCE_MS, until, turn } from '../../support/until.ts';
import { opened } from '../../support/request_events.ts';

/** A relay to these, a request of so many tokens through it, and what people see of it. */
function asked(
  network: GrpcNetwork,
  instances: readonly Instance[],
  numTokens: number,
  onFailover: () => void,
): { tokens: AsyncGenerator<GeneratedToken>; record: RequestRecord } {
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
  const index = { ranges: () => [] } as unknown as PrefixIndex;
  const conductor = new Conductor({
    view,
    index,
    clock: systemClock,
    random: new Random(1),
    policy: new LongestPrefixPolicy(64),
    tieBreak: 0,
  });
  const relay = new Relay({
    view,
    network,
    decodes: new DecodeStreams(network),
    clock: systemClock,
    random: new Random(1),
    conductor,
    lengths: new MeanLengthPredictor(),
    router: 'r',
    onFailover,
  });
  const trace = opened(new RequestLog(systemClock, [], 8), 'r', { promptTokens: numTokens });
  const generation: Generation = {
    promptTokens: Uint32Array.from({ length: numTokens }, (_, i) => i + 1),
    request: neutralRequest(numTokens, numTokens + 5),
    isPromptOnly: false,
    isOpenEnded: false,
    origin: { tenant: 'a tenant', priority: 3 },
    ownStopTokenIds: [],
    stopTexts: new Map(),
    promptLogprobs: undefined,
    text: { stops: [], isStopIncluded: false, isSkippingSpecial: true },
  };
  const bounds = { untilMs: systemClock.nowMs() + PATIENCE_MS, signal: new AbortController().signal };
  const tokens = pulled<GeneratedToken>((take) => relay.generate(generation, trace, bounds, take));
  return { tokens, record: trace.record };
}

function instanceAt(role: 'decode' | 'prefill', address: string, name: string = role, numericsClass = 'n'): Instance {
  const member = { name, role, address, pid: 1, epoch: 'e' };
  const engine = { maxModelLen: 1_000, numericsClass } as never;
  return new Instance({ member, protocolVersion: 2, engine }, systemClock.nowMs());
}

test('a broken connection is tried again there, and given up after 64 tries without a token (P1)', async () => {
  let numAsked = 0;
  const network = new GrpcNetwork('', systemClock);
  const listener = await network.listen('127.0.0.1:0', {
    async *decode() {
      numAsked++;
      throw new Failure('session_broken', 'Received RST_STREAM with code 2');
    },
  });
  const instance = instanceAt('decode', listener.address);
  const { tokens } = asked(network, [instance], 3, () => assert.fail('nobody was lost'));
  await assert.rejects(
    tokens.next(),
    ({ code, told }: Failure) => code === 'session_broken' && !told.includes(listener.address),
  );
  assert.equal(numAsked, 64);
  assert(!instance.isSuspect, 'nothing is held against the instance');
  network.close();
  await listener.close(100);
});

test('an instance that cannot do the work now is left for another one, and nothing is held against it', async () => {
  const numAsked = [0, 0];
  let numFailovers = 0;
  const network = new GrpcNetwork('', systemClock);
  const listeners = await Promise.all(
    numAsked.map((_, i) =>
      network.listen('127.0.0.1:0', {
        decode: playedDecode(async function* () {
          numAsked[i] = (numAsked[i] ?? 0) + 1;
          if (numAsked.reduce((sum, one) => sum + one) === 1)
            throw new Failure('unavailable', 'the grammar could not be followed');
          yield {
            sampled: { token: 7, logprob: [], topTokens: [], topLogprobs: [], position: 3 },
            report: emptyReport,
            finish: 'stop',
          };
        }),
      }),
    ),
  );
  const instances = listeners.map(({ address }, i) => instanceAt('decode', address, `decode-${i}`));
  const { tokens } = asked(network, instances, 3, () => numFailovers++);
  const seen: number[] = [];
  for await (const { sampled } of tokens) seen.push(sampled.token);
  assert.deepEqual([seen, numAsked, numFailovers], [[7], [1, 1], 1]);
  for (const instance of instances) assert(!instance.isSuspect);
  network.close();
  for (const listener of listeners) await listener.close(100);
});

test('an answer that has begun goes on in its numerics class, also where another class would be chosen first (E2)', async () => {
  const ran: string[] = [];
  const network = new GrpcNetwork('', systemClock);
  const listen = (name: string, position: number): ReturnType<typeof network.listen> =>
    network.listen('127.0.0.1:0', {
      decode: playedDecode(async function* () {
        ran.push(name);
        const sampled = { token: 7, logprob: [], topTokens: [], topLogprobs: [], position };
        yield { sampled, report: emptyReport, finish: position > 3 ? 'stop' : undefined };
        if (position === 3) throw new Failure('unavailable', 'the device was lost');
      }),
    });
  const listeners = [await listen('a', 3), await listen('b', 4), await listen('c', 4)] as const;
  // Without output the first would be chosen first, then the second.
  const instances = listeners.map(({ address }, i) =>
    instanceAt('decode', address, `decode-${i}`, i === 1 ? 'other' : 'n'),
  );
  const { tokens } = asked(network, instances, 3, () => undefined);
  const seen: number[] = [];
  for await (const { sampled } of tokens) seen.push(sampled.position);
  assert.deepEqual(
    [seen, ran],
    [
      [3, 4],
      ['a', 'c'],
    ],
  );
  network.close();
  for (const listener of listeners) await listener.close(100);
});

test('every instance that works for a request is told whose it is, and how it ranks', async () => {
  const origins: unknown[] = [];
  const network = new GrpcNetwork('', systemClock);
  const note = (context: RequestContext | null | undefined): never => {
    origins.push([context?.tenant, context?.priority]);
    throw new Failure('internal', 'that was all');
  };
  const listener = await network.listen('127.0.0.1:0', {
    decode: playedDecode(async function* (requests) {
      for await (const { start } of requests) note(start?.context);
    }),
  });
  const { tokens } = asked(network, [instanceAt('decode', listener.address)], 3, () => undefined);
  await assert.rejects(tokens.next());
  assert.deepEqual(origins[0], ['a tenant', 3]);
  network.close();
  await listener.close(100);
});

test.each([
  ['whose blocks have all come ends by itself and is counted', 192, 'finished', 200],
  ['that nobody waits for is cut off', 160, 'cancelled', 40],
])(
  'an answer that ends before its prefill does has its last token at once: one %s',
  async (_name, fetchedTokens, outcome, computed) => {
    const network = new GrpcNetwork('', systemClock);
    let hasBegun: () => void = () => undefined;
    const begun = new Promise<void>((resolve) => {
      hasBegun = resolve;
    });
    let isRead: () => void = () => undefined;
    const read = new Promise<void>((resolve) => {
      isRead = resolve;
    });
    const listener = await network.listen('127.0.0.1:0', {
      decode: playedDecode(
        async function* () {
          await begun;
          yield {
            sampled: { token: 7, logprob: [], topTokens: [], topLogprobs: [], position: 200 },
            report: { ...emptyReport, fetchedTokens, computedTokens: 200 - fetchedTokens },
            finish: 'stop',
          };
        },
        async function* () {
          hasBegun();
          await read;
          yield { numReady: 192, numRun: 192, report: { ...emptyReport, computedTokens: 192 } };
        },
      ),
    });
    const instances = [instanceAt('decode', listener.address), instanceAt('prefill', listener.address)];
    const { tokens, record } = asked(network, instances, 200, () => assert.fail('nobody was lost'));
    for await (const { sampled } of tokens) {
      assert.equal(sampled.token, 7);
      assert.equal(record.counts.isPrefilling, outcome === 'finished', 'no token waits for it');
    }
    isRead();
    await until('the prefill has ended', () => !record.counts.isPrefilling);
    assert.equal(record.counts.tokens.computed, computed);
    await until('the prefill has its outcome', () => record.counts.attempts[0]?.prefills[0]?.outcome !== 'running');
    assert.equal(record.counts.attempts[0]?.prefills[0]?.outcome, outcome);
    network.close();
    await listener.close(100);
  },
);

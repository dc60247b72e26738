/** The relay against a decode instance whose connection always breaks. Real gRPC. Budget: 15 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { systemClock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { Random } from '../../../shared/base/random.ts';
import type { Digest } from '../../../shared/kv/block_key.ts';
import { noScope } from '../../../shared/kv/format.ts';
import { GrpcNetwork } from '../../../shared/net/grpc/grpc_network.ts';
import { neutralSampling } from '../../../shared/engine/sampler.ts';
import type { ClusterView } from '../../../services/router/cluster/cluster_view.ts';
import { Instance } from '../../../services/router/cluster/instance.ts';
import { Conductor } from '../../../services/router/conductor/conductor.ts';
import { LongestRun } from '../../../services/router/conductor/longest_run.ts';
import type { PrefixIndex } from '../../../services/router/cluster/prefix_index.ts';
import { Relay } from '../../../services/router/relay/relay.ts';
import { RequestLog } from '../../../services/router/relay/request_log.ts';

const plain = {
  ...{ presencePenalty: 0, frequencyPenalty: 0, biasTokens: [], biasValues: [] },
  ...{ seed: 0, numLogprobs: -1, minTokens: 0 },
};

test('a broken connection is tried again there, and given up after 64 tries without a token (P1)', async () => {
  let numAsked = 0;
  const network = new GrpcNetwork('', systemClock);
  const listener = await network.listen('127.0.0.1:0', {
    async *decode() {
      numAsked++;
      throw new Failure('session_broken', 'Received RST_STREAM with code 2');
    },
  });
  const member = { name: 'd1', role: 'decode' as const, address: listener.address, pid: 1, epoch: 'e' };
  const engine = { maxModelLen: 64 } as never;
  const instance = new Instance({ member, protocolVersion: 2, engine }, systemClock.nowMs());
  const view = {
    model: { digest: 'ab'.repeat(16) as Digest, format: { blockSize: 32 } },
    of: (role: string) => (role === 'decode' ? [instance] : []),
    all: () => [instance],
    byHolder: (id: string) => (id === instance.id ? instance : undefined),
    decodeSeenMs: () => systemClock.nowMs(),
    otherRouters: [],
    changed: () => systemClock.sleep(10),
  } as unknown as ClusterView;
  const index = { ranges: () => [] } as unknown as PrefixIndex;
  const conductor = new Conductor({ view, index, clock: systemClock, policy: new LongestRun(64), turn: 0 });
  const relay = new Relay({
    ...{ view, network, clock: systemClock, random: new Random(1), conductor },
    router: 'r',
    onFailover: () => assert.fail('nobody was lost'),
  });
  const record = new RequestLog(systemClock, () => undefined).open('r', '/v1/completions', {
    clientId: undefined,
    traceId: undefined,
  });
  const { temperature, topP, topK, minP, repetitionPenalty } = neutralSampling;
  const tokens = relay.generate(
    {
      ...{
        promptTokens: Uint32Array.of(1, 2, 3),
        maxLength: 8,
        isPromptOnly: false,
        isOpenEnded: false,
        stopTokenIds: [],
        ownStopTokenIds: [],
      },
      promptLogprobs: undefined,
      sampling: { ...plain, temperature, topP, topK, minP, repetitionPenalty },
      scope: noScope,
      text: { stops: [], isStopIncluded: false, isSkippingSpecial: true },
    },
    record,
    systemClock.nowMs() + 60_000,
    new AbortController().signal,
  );
  await assert.rejects(tokens.next(), (error: unknown) => error instanceof Failure && error.code === 'session_broken');
  assert.equal(numAsked, 64);
  assert(!instance.isSuspect, 'nothing is held against the instance');
  network.close();
  await listener.close(100);
}, 20_000);

/** One Embed call against an engine and a fetcher that the test plays. The engine itself is in test/engine. Budget: 3 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Failure } from '../../shared/base/failure.ts';
import type { SequenceEvent } from '../../shared/engine/engine_events.ts';
import type { SequenceRequest } from '../../shared/engine/sequence_request.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { chainRoot, noScope } from '../../shared/kv/format.ts';
import { createEmbedHandler } from '../../shared/instance/embed_call.ts';
import type { EngineInstance } from '../../shared/instance/engine_instance.ts';
import { Pooling, type EmbedReply, type EmbedRequest, type Source } from '../../shared/protocol/messages.ts';
import { packDigest, packTokens, unpackFloats } from '../../shared/protocol/packing.ts';
import { PATIENCE_MS, turn } from '../support/until.ts';

const [BLOCK_SIZE, CONTEXT, VOCAB] = [4, 64, 100];
const format = 'ab'.repeat(16) as Digest;
const tokensOf = (count: number): number[] => Array.from({ length: count }, (_, i) => i + 1);
const hashesOf = (list: readonly number[]): ReturnType<typeof chainOf> =>
  chainOf(
    chainRoot(format, noScope),
    BLOCK_SIZE,
    list.slice(0, BLOCK_SIZE * Math.floor((list.length - 1) / BLOCK_SIZE)),
  );
const sources: Source[] = [{ start: 0, end: 3, address: 'h:1', isComputing: false }];
const report = {
  cachedTokens: 4,
  fetchedTokens: 8,
  computedTokens: 1,
  queueMs: 4,
  loadMs: 5,
  computeMs: 6,
  sources: { device: 4, dram: 0, instance: 8, storeDram: 0, storeDisk: 0, handoff: 0 },
};

function requestOf(count: number, changes: Partial<EmbedRequest> = {}): EmbedRequest {
  const tokens = tokensOf(count);
  const lastDigest = hashesOf(tokens).at(-1)?.digest;
  return {
    context: {
      requestId: 'r',
      tenant: '',
      priority: 0,
      timeoutMs: PATIENCE_MS,
      traceId: '',
      router: 'router',
      placement: 1,
      expectedTokens: 0,
    },
    format: packDigest(format),
    tokens: packTokens(tokens),
    scope: null,
    sources: [],
    pooling: Pooling.LAST,
    lastDigest: lastDigest ? packDigest(lastDigest) : Buffer.alloc(0),
    ...changes,
  };
}

/** A call to an instance that holds `numLocal` blocks in its device. */
function callOf(request: EmbedRequest, numLocal = 0) {
  const log: string[] = [];
  let emit: (event: SequenceEvent) => void = () => assert.fail('no sequence was submitted');
  let submitted: Omit<SequenceRequest, 'id'> | undefined;
  let endFetch: (fetchedBytes: number) => void = () => assert.fail('nothing is fetched');
  const instance = {
    info: { layout: { format, spec: { blockSize: BLOCK_SIZE } }, maxModelLen: CONTEXT, vocabSize: VOCAB },
    isDraining: false,
    chainOf: (_root: Digest, list: Uint32Array) => Promise.resolve({ hashes: hashesOf([...list]), keyBits: undefined }),
    saw: () => log.push('saw'),
    numLocal: () => numLocal,
    numUsable: () => numLocal,
    submit: (one: Omit<SequenceRequest, 'id'>, listener: typeof emit) => {
      [submitted, emit] = [one, listener];
      return 7;
    },
    proceed: () => log.push('proceed'),
    cancel: () => log.push('cancel'),
    fetcher: {
      run: ({ from, hasOtherSources }: { readonly from: number; readonly hasOtherSources: boolean }) => {
        log.push(`fetch from ${from}${hasOtherSources ? ', and ask again' : ''}`);
        return new Promise((resolve) => {
          endFetch = (fetchedBytes) => resolve({ reached: 1, fetchedBytes, links: [], reason: 'h has no more' });
        });
      },
    },
  };
  const left = new AbortController();
  const { embed } = createEmbedHandler(instance as unknown as EngineInstance);
  assert(embed);
  async function* only(): AsyncGenerator<EmbedRequest> {
    yield await Promise.resolve(request);
  }
  const replies = embed(only(), { signal: left.signal, caller: 'test' })[Symbol.asyncIterator]();
  const reply = replies.next().then((result): EmbedReply | undefined => (result.done ? undefined : result.value));
  reply.catch(() => undefined);
  return {
    log,
    reply,
    emit: (event: SequenceEvent) => emit(event),
    submitted: () => submitted,
    endFetch: (bytes: number) => endFetch(bytes),
    leave: () => left.abort(),
  };
}

const embedded: SequenceEvent = { kind: 'embedded', id: 7, values: Float32Array.of(0.6, 0.8), report };

test('blocks that others hold are fetched; what does not come is computed, and nobody is asked for other sources', async () => {
  const call = callOf(requestOf(13, { sources }), 1);
  await turn();
  assert.equal(call.submitted()?.isFetching, true);
  assert.deepEqual(call.log, ['saw', 'fetch from 1']);
  call.endFetch(900);
  await turn();
  assert.equal(call.log.at(-1), 'proceed');
  call.emit(embedded);
  const reply = await call.reply;
  assert(reply);
  assert.deepEqual(unpackFloats(reply.values), Float32Array.of(0.6, 0.8));
  assert.deepEqual(reply.report, { ...report, fetchedBytes: 900, links: [] });
});

test('with its blocks in the device, and for a mean, the sequence is computed at once', async () => {
  for (const [pooling, numLocal] of [
    [Pooling.LAST, 3],
    [Pooling.MEAN, 0],
  ] as const) {
    const call = callOf(requestOf(13, { sources, pooling }), numLocal);
    await turn();
    assert.deepEqual([call.submitted()?.isFetching, call.submitted()?.pooling], [false, pooling]);
    call.emit(embedded);
    assert.equal((await call.reply)?.report?.fetchedBytes, 0);
  }
});

test('a prompt may fill the context, and not more; other models and chains are refused', async () => {
  const whole = callOf(requestOf(CONTEXT));
  await turn();
  whole.emit(embedded);
  assert((await whole.reply) !== undefined);
  for (const [request, code] of [
    [requestOf(CONTEXT + 1), 'context_too_long'],
    [requestOf(13, { format: packDigest('cd'.repeat(16) as Digest) }), 'cluster_mismatch'],
    [requestOf(13, { lastDigest: packDigest('cd'.repeat(16) as Digest) }), 'internal'],
    [requestOf(13, { tokens: packTokens([VOCAB]) }), 'invalid_request'],
  ] as const)
    await assert.rejects(callOf(request).reply, (error: unknown) => error instanceof Failure && error.code === code);
});

test('a caller that leaves cancels the sequence (R2); a refusal of the engine is the call’s', async () => {
  const call = callOf(requestOf(13));
  await turn();
  call.leave();
  await assert.rejects(call.reply, (error: unknown) => error instanceof Failure && error.code === 'cancelled');
  assert.equal(call.log.at(-1), 'cancel');
  const refused = callOf(requestOf(13));
  await turn();
  refused.emit({ kind: 'refused', id: 7, code: 'overloaded', message: '2 sequences wait already' });
  await assert.rejects(refused.reply, /2 sequences wait already/);
});

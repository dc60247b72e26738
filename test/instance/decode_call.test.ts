/**
 * One Decode call against an engine and a fetcher that the test plays: what is refused, how rounds of missing blocks go, and what is left
 * when the caller leaves. The engine itself is in test/engine, real calls are in test/e2e. Budget: 5 s.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { systemClock, type Clock } from '../../shared/base/clock.ts';
import { Failure } from '../../shared/base/failure.ts';
import type { Log } from '../../shared/base/log.ts';
import type { Tracing } from '../../shared/base/tracing/tracing.ts';
import { AsyncQueue } from '../../shared/base/async_queue.ts';
import type { SequenceEvent } from '../../shared/engine/engine_events.ts';
import type { SequenceRequest } from '../../shared/engine/sequence_request.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { chainRoot, noScope } from '../../shared/kv/format.ts';
import type { FetchOutcome } from '../../shared/instance/block_fetcher.ts';
import { startDecode } from '../../shared/instance/decode_call.ts';
import type { EngineInstance } from '../../shared/instance/engine_instance.ts';
import { DecodeServer } from '../../shared/net/decode/served_decodes.ts';
import type { DecodeStart, SampledMessage, Source } from '../../shared/protocol/messages.ts';
import { packDigest, packTokens } from '../../shared/protocol/packing.ts';
import { neutralRequest, neutralSampling } from '../../shared/protocol/request.ts';
import { callDecode, type PlayedCall, type PlayedReply } from '../support/played_decode.ts';
import { playedNetwork } from '../support/played_network.ts';
import { SpanRecorder } from '../support/span_recorder.ts';
import { PATIENCE_MS, turn, until } from '../support/until.ts';

const BLOCK_SIZE = 4;
const NUM_TOKENS = 13;
const CONTEXT = 64;
const VOCAB = 100;
const format = 'ab'.repeat(16) as Digest;
const tokens = Array.from({ length: NUM_TOKENS }, (_, i) => i + 1);
const hashesOf = (list: readonly number[]): ReturnType<typeof chainOf> =>
  chainOf(
    chainRoot(format, noScope),
    BLOCK_SIZE,
    list.slice(0, BLOCK_SIZE * Math.floor((list.length - 1) / BLOCK_SIZE)),
  );
const hashes = hashesOf(tokens);
const silent = { debug: () => undefined } as unknown as Log;

function startOf(changes: Partial<DecodeStart> = {}): DecodeStart {
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
    lastDigest: packDigest(hashes.at(-1)!.digest),
    request: neutralRequest(NUM_TOKENS, NUM_TOKENS + 3),
    sources: [],
    maxSelfCompute: CONTEXT,
    promptLogprobsFrom: 0,
    group: null,
    ...changes,
  };
}

const sourceOf = (start: number, end: number): Source => ({ start, end, address: 'h:1', isComputing: false });
const sampled = (position: number): SampledMessage => ({
  position,
  token: position,
  logprob: [],
  topTokens: [],
  topLogprobs: [],
});
const report = {
  cachedTokens: 1,
  fetchedTokens: 2,
  computedTokens: 3,
  queueMs: 4,
  loadMs: 5,
  computeMs: 6,
  sources: { device: 1, dram: 0, instance: 2, storeDram: 0, storeDisk: 0, handoff: 0 },
};

/** A fetch that was asked for; the test says how far it comes. */
interface Round {
  readonly from: number;
  readonly sources: readonly Source[];
  readonly signal: AbortSignal;
  readonly end: (outcome: Partial<FetchOutcome>) => void;
}

interface RestoreJob {
  readonly from: number;
  readonly hashes: readonly unknown[];
  readonly isAdmitted: () => boolean;
  readonly signal: AbortSignal;
}

/** An instance that holds `numLocal` blocks in its device, and a call to it. */
function callOf({
  numLocal = 0,
  clock = systemClock,
  tracing,
}: { numLocal?: number; clock?: Clock; tracing?: Tracing } = {}) {
  const log: string[] = [];
  const rounds = new AsyncQueue<Round>();
  let emit: (event: SequenceEvent) => void = () => assert.fail('no sequence was submitted');
  let submitted: unknown;
  let endRestore: () => void = () => assert.fail('no blocks come back');
  const instance = {
    info: { layout: { format, spec: { blockSize: BLOCK_SIZE } }, maxModelLen: CONTEXT, vocabSize: VOCAB },
    isDraining: false,
    chainOf: (_root: Digest, list: Uint32Array) => Promise.resolve({ hashes: hashesOf([...list]), keyBits: undefined }),
    saw: () => log.push('saw'),
    numLocal: () => numLocal,
    numUsable: () => numLocal,
    submit: (request: unknown, listener: typeof emit) => {
      log.push('submit');
      [submitted, emit] = [request, listener];
      return 7;
    },
    proceed: (id: number, admission?: number) => log.push(['proceed', id, admission].join(' ').trim()),
    cancel: (id: number) => log.push(`cancel ${id}`),
    fetcher: {
      // Resolves when the test, or an abort, ends it.
      restore: ({ from, hashes, isAdmitted, signal }: RestoreJob) => {
        log.push(`restore ${from} to ${hashes.length}${isAdmitted() ? '' : ' before it is admitted'}`);
        return new Promise<void>((resolve) => {
          endRestore = resolve;
          signal.addEventListener('abort', () => {
            log.push('given up');
            resolve();
          });
        });
      },
      run: ({ from, sources, signal }: Pick<Round, 'from' | 'sources' | 'signal'>) =>
        new Promise<FetchOutcome>((resolve) => {
          const end = (outcome: Partial<FetchOutcome>): void =>
            resolve({
              reached: from,
              hasState: true,
              missing: outcome.reached ?? from,
              fetchedBytes: 0,
              links: [],
              reason: '',
              ...outcome,
            });
          signal.addEventListener('abort', () => end({ reason: 'given up' }), { once: true });
          rounds.push({ from, sources, signal, end });
        }),
    },
  };
  const { handler } = new DecodeServer(
    clock,
    startDecode(instance as unknown as EngineInstance, { log: silent, clock, tracing }),
  );
  const network = playedNetwork({ decode: handler });
  let call: PlayedCall | undefined;
  const start = (changes: Partial<DecodeStart> = {}): void => {
    call = callDecode(network, 'h:1', startOf(changes));
  };
  const next = async (): Promise<PlayedReply | undefined> => {
    const result = await call?.replies.next();
    return result?.done === false ? result.value : undefined;
  };
  const round = async (): Promise<Round> => {
    const { value } = (await rounds.next()) as { value: Round };
    return value;
  };
  return {
    instance,
    start,
    say: (): PlayedCall => call ?? assert.fail('no call was started'),
    log,
    next,
    round,
    emit: (event: SequenceEvent) => emit(event),
    request: () => submitted as Pick<SequenceRequest, 'isFetching' | 'kind' | 'promptLogprobsFrom' | 'priority'>,
    leave: () => call?.leave(),
    endRestore: () => endRestore(),
  };
}

const tokenAt = (position: number, finish?: 'stop'): SequenceEvent =>
  ({ kind: 'token', id: 7, sampled: sampled(position), report, finish }) as unknown as SequenceEvent;

test('the priority of the request goes to the queue of the engine', async () => {
  for (const priority of [-7, 0, 3]) {
    const call = callOf({ numLocal: 3 });
    const { context } = startOf();
    assert(context);
    call.start({ context: { ...context, priority } });
    call.next().catch(() => undefined);
    await turn();
    assert.equal(call.request().priority, priority);
    call.leave();
  }
});

test('without anything to fetch the sequence is computed at once, and the call ends after its last token', async () => {
  const call = callOf({ numLocal: 3 });
  call.start();
  const first = call.next();
  await turn();
  assert.deepEqual([call.request().isFetching, call.request().kind], [false, 'decode']);
  call.emit(tokenAt(13));
  call.emit(tokenAt(14, 'stop'));
  assert.deepEqual(await first, {
    sampled: sampled(13),
    report: { ...report, fetchedBytes: 0, links: [] },
    finish: undefined,
  });
  assert.equal((await call.next())?.finish, 'stop');
  assert.equal(await call.next(), undefined);
  assert.deepEqual([...new Set(call.log)], ['saw', 'submit', 'cancel 7']);
});

test.each([
  ['that is answered has its tokens', tokenAt(13, 'stop'), undefined, 1],
  [
    'that the engine refuses says why',
    { kind: 'refused', id: 7, code: 'overloaded', message: 'no seat' },
    'no seat',
    0,
  ],
] as const)('the span of a call %s', async (_name, event, error, numTokens) => {
  const tracing = new SpanRecorder();
  const call = callOf({ numLocal: 3, tracing });
  const { context } = startOf();
  assert(context);
  call.start({ context: { ...context, traceId: 'a'.repeat(32), parentSpan: 'b'.repeat(16), traceFlags: 1 } });
  const first = call.next().catch(() => undefined);
  await turn();
  call.emit(event);
  await first;
  await until('it is recorded', () => tracing.spans.length > 0);
  const [span] = tracing.spans;
  assert.deepEqual([span?.name, span?.error], ['decode', error]);
  assert.equal(span?.attributes['gen_ai.usage.output_tokens'], numTokens);
});

describe('a preempted sequence', () => {
  const admitted = (admission: number, from: number): SequenceEvent => ({
    kind: 'admitted',
    id: 7,
    restore: { admission, from, hashes },
  });

  test('gets the blocks back that it lost, and proceeds when they have come', async () => {
    const call = callOf({ numLocal: 3 });
    call.start();
    const first = call.next();
    await turn();
    call.emit({ kind: 'admitted', id: 7 });
    call.emit({ kind: 'preempted', id: 7 });
    call.emit(admitted(2, 1));
    await turn();
    assert.deepEqual(call.log, ['saw', 'submit', `restore 1 to ${hashes.length}`]);
    call.endRestore();
    await turn();
    assert.equal(call.log.at(-1), 'proceed 7 2');
    call.emit(tokenAt(13, 'stop'));
    assert.equal((await first)?.sampled?.position, 13);
  });

  test('gives up what comes back when it is preempted again, or its caller leaves', async () => {
    const call = callOf({ numLocal: 3 });
    call.start();
    const first = call.next();
    await turn();
    call.emit(admitted(2, 0));
    call.emit({ kind: 'preempted', id: 7 });
    await turn();
    // The engine ignores what is said of an admission that is over.
    assert.deepEqual(call.log.slice(-2), ['given up', 'proceed 7 2']);
    call.emit(admitted(3, 0));
    call.leave();
    await assert.rejects(first);
    await turn();
    assert.deepEqual(call.log.filter((line) => line === 'given up').length, 2);
  });
});

describe('rounds of blocks', () => {
  test('all blocks come: the sequence proceeds, and the report says how many bytes', async () => {
    const call = callOf();
    call.start({ sources: [sourceOf(0, 3)], maxSelfCompute: 0 });
    const first = call.next();
    const { from, sources, end } = await call.round();
    assert.deepEqual([from, sources, call.request().isFetching], [0, [sourceOf(0, 3)], true]);
    end({ reached: 3, fetchedBytes: 900 });
    await turn();
    assert.equal(call.log.at(-1), 'proceed 7');
    call.emit(tokenAt(13, 'stop'));
    assert.equal((await first)?.report?.fetchedBytes, 900);
  });

  test('the links of all rounds are reported, one for each source and way', async () => {
    const call = callOf();
    call.start({ sources: [sourceOf(0, 3)], maxSelfCompute: 0 });
    const first = call.next();
    const socket = { address: 'h', way: 'socket', bytes: 600, movingMs: 3, latencyMs: -1 };
    (await call.round()).end({ reached: 1, links: [socket] });
    await first;
    call.say().more({ sources: [sourceOf(1, 3)], maxSelfCompute: 0 });
    const over = { ...socket, way: 'call', bytes: 50, latencyMs: 7 };
    (await call.round()).end({ reached: 3, links: [{ ...socket, bytes: 300, latencyMs: 2 }, over] });
    await turn();
    const next = call.next();
    call.emit(tokenAt(13, 'stop'));
    assert.deepEqual((await next)?.report?.links, [{ ...socket, bytes: 900, movingMs: 6, latencyMs: 2 }, over]);
  });

  test('some are missing: it says from where, waits for other sources, and goes on there', async () => {
    const call = callOf();
    call.start({ sources: [sourceOf(0, 3)], maxSelfCompute: 4 });
    const first = call.next();
    (await call.round()).end({ reached: 1, reason: 'h has no more' });
    assert.deepEqual((await first)?.missing, { block: 1, reason: 'h has no more' });
    call.say().more({ sources: [sourceOf(1, 3)], maxSelfCompute: 4 });
    const second = await call.round();
    assert.deepEqual([second.from, second.sources], [1, [sourceOf(1, 3)]]);
    // Five tokens are left of the two blocks and the tail: more than four.
    second.end({ reached: 2 });
    assert.equal((await call.next())?.missing?.block, 2);
    call.say().more({ sources: [], maxSelfCompute: NUM_TOKENS });
    await turn();
    assert.equal(call.log.at(-1), 'proceed 7');
  });

  test('what is left is little enough: nobody is asked', async () => {
    const call = callOf();
    call.start({ sources: [sourceOf(0, 3)], maxSelfCompute: 9 });
    const first = call.next();
    (await call.round()).end({ reached: 1 });
    await turn();
    assert.equal(call.log.at(-1), 'proceed 7');
    call.emit(tokenAt(13, 'stop'));
    assert.equal((await first)?.sampled?.position, 13);
  });

  test('a round that is given up ends its fetch at once; another round’s is left alone', async () => {
    const call = callOf();
    call.start({ sources: [sourceOf(0, 3)], maxSelfCompute: 0 });
    const first = call.next();
    const { signal } = await call.round();
    call.say().giveUp(1);
    await turn();
    assert(!signal.aborted);
    call.say().giveUp(0);
    assert.deepEqual((await first)?.missing, { block: 0, reason: 'given up' });
  });

  test('with prompt log-probabilities nothing is fetched: cached blocks have no logits', async () => {
    const call = callOf();
    const request = { ...neutralRequest(NUM_TOKENS, NUM_TOKENS + 1), promptLogprobs: 2 };
    call.start({ request, sources: [sourceOf(0, 3)], maxSelfCompute: 0 });
    void call.next();
    await turn();
    assert.deepEqual([call.request().isFetching, call.request().promptLogprobsFrom], [false, 1]);
  });

  test('P1: a router that does not answer for half a minute has lost the request', async () => {
    // A wait of half a minute ends at once.
    const clock: Clock = {
      ...systemClock,
      nowMs: () => systemClock.nowMs(),
      turn: () => systemClock.turn(),
      // eslint-disable-next-line time/speed -- the clock itself
      sleep: (ms, signal) => (ms >= 30_000 ? Promise.resolve() : systemClock.sleep(ms, signal)),
    };
    const call = callOf({ clock });
    const { context } = startOf();
    assert(context);
    call.start({ context: { ...context, timeoutMs: 0 }, sources: [sourceOf(0, 3)], maxSelfCompute: 0 });
    const first = call.next();
    (await call.round()).end({ reached: 0 });
    assert.equal((await first)?.missing?.block, 0);
    await assert.rejects(call.next(), (error) => error instanceof Failure && error.code === 'deadline_exceeded');
    assert.equal(call.log.at(-1), 'cancel 7');
  });
});

describe('R2: nothing is left', () => {
  test('when the caller leaves while blocks are fetched', async () => {
    const call = callOf();
    call.start({ sources: [sourceOf(0, 3)], maxSelfCompute: 0 });
    const first = call.next();
    const { signal } = await call.round();
    call.leave();
    await assert.rejects(first, /the test left/);
    await turn();
    assert(signal.aborted, 'the fetch is given up');
    assert(call.log.includes('cancel 7') && !call.log.includes('proceed 7'));
  });

  test('when the caller stops reading between tokens', async () => {
    const call = callOf({ numLocal: 3 });
    call.start();
    const first = call.next();
    await turn();
    call.emit(tokenAt(13));
    await first;
    call.leave();
    await turn();
    assert(call.log.includes('cancel 7'));
  });

  test('when the engine refuses the sequence, whose fetch is not waited for', async () => {
    const call = callOf();
    call.start({ sources: [sourceOf(0, 3)], maxSelfCompute: 0 });
    const first = call.next();
    const { signal } = await call.round();
    call.emit({ kind: 'refused', id: 7, code: 'overloaded', message: 'all seats are taken' });
    await assert.rejects(first, (error) => error instanceof Failure && error.code === 'overloaded');
    assert(signal.aborted);
  });
});

describe('a call is refused, in words,', () => {
  const request = neutralRequest(NUM_TOKENS, NUM_TOKENS + 3);
  const cases: readonly [string, Partial<DecodeStart>, RegExp][] = [
    ['without a request', { request: null }, /carries a request/],
    ['without a context', { context: null }, /no request context/],
    ['for another format (K1)', { format: packDigest('cd'.repeat(16) as Digest) }, /another model/],
    ['with another block chain', { lastDigest: packDigest('cd'.repeat(16) as Digest) }, /different block chains/],
    ['without tokens', { tokens: packTokens([]) }, /at least one token/],
    ['with a token outside the vocabulary', { tokens: packTokens([1, VOCAB]) }, /outside the vocabulary of 100/],
    ['that fills the context', { tokens: packTokens(new Array<number>(CONTEXT).fill(1)) }, /leave no room/],
    ['with an empty prompt', { request: { ...request, promptLength: 0 } }, /does not hold/],
    ['with a prompt longer than its tokens', { request: { ...request, promptLength: 14 } }, /does not hold/],
    ['for no token at all', { request: { ...request, maxLength: NUM_TOKENS } }, /does not hold/],
    ['for more than the context', { request: { ...request, maxLength: CONTEXT + 1 } }, /exceeds the context of 64/],
    ['for an adapter', { request: { ...request, scope: { ...noScope, adapter: 'a' } } }, /serves no adapter a/],
    [
      'for more alternatives than a device has',
      { request: { ...request, sampling: { ...neutralSampling, numLogprobs: 10_000 } } },
      /10000 alternatives/,
    ],
  ];
  test.each(cases)('%s', async (_name, changes, message) => {
    const call = callOf();
    call.start(changes);
    await assert.rejects(call.next(), message);
    assert(!call.log.includes('submit'));
  });

  test('by an instance that drains', async () => {
    const call = callOf();
    call.instance.isDraining = true;
    call.start();
    await assert.rejects(call.next(), /draining/);
  });
});

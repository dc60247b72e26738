/**
 * One decode attempt against a decode and a prefill instance that the test plays: what is sent, what is yielded, and what is left when it
 * ends. Which instance comes next is the relay's (relay.test.ts); real connections are in e2e/failures. Budget: 5 s.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { Backoff } from '../../../shared/base/backoff.ts';
import { systemClock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { ENOUGH, type Taken } from '../../../shared/base/handover.ts';
import { Random } from '../../../shared/base/random.ts';
import { TokenList } from '../../../shared/base/token_list.ts';
import { chainOf, type Digest } from '../../../shared/kv/block_key.ts';
import { DecodeStreams } from '../../../shared/net/decode/decode_stream.ts';
import type { Finish } from '../../../shared/protocol/decode_replies.ts';
import type { PrefillRequest, SampledMessage, Source } from '../../../shared/protocol/messages.ts';
import { keyWords, unpackTokens } from '../../../shared/protocol/packing.ts';
import { neutralRequest } from '../../../shared/protocol/request.ts';
import { Instance } from '../../../shared/placement/instance.ts';
import { NO_WORK } from '../../../shared/placement/open_placements.ts';
import type { MembersView } from '../../../shared/placement/members_view.ts';
import type { Asked, Chosen, Conductor, Outcome } from '../../../shared/placement/conductor.ts';
import { MeanLengthPredictor } from '../../../services/router/conductor/length_predictor.ts';
import { DecodeAttempt, type GeneratedToken, type TakeToken } from '../../../services/router/relay/decode_attempt.ts';
import { Exclusions } from '../../../services/router/relay/exclusions.ts';
import type { InFlightRequest } from '../../../services/router/relay/in_flight_request.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import { playedDecode, type PlayedReply, type PlayedRequest, type PrefillPlay } from '../../support/played_decode.ts';
import { emptyReport } from '../../support/empty_report.ts';
import { pulled } from '../../support/pulled.ts';
import { playedNetwork } from '../../support/played_network.ts';
import { aborted, PATIENCE_MS, staysSo, turn, until } from '../../support/until.ts';
import { opened } from '../../support/request_events.ts';

const BLOCK_SIZE = 4;
const NUM_TOKENS = 11;
const CONTEXT = 64;
const VOCAB = 200;
const digest = 'ab'.repeat(16) as Digest;
const prompt = Uint32Array.from({ length: NUM_TOKENS }, (_, i) => i + 1);
const hashes = chainOf(digest, BLOCK_SIZE, [...prompt.subarray(0, 8)]);

function instanceOf(role: 'decode' | 'prefill' | 'store', name = role as string): Instance {
  const member = { name, role, address: `${name}:1`, pid: 1, epoch: name };
  return new Instance(
    { member, protocolVersion: 1, engine: { maxModelLen: CONTEXT, vocabSize: VOCAB } as never },
    systemClock.nowMs(),
  );
}

const sampled = (position: number): SampledMessage => ({
  position,
  token: 100 + position,
  logprob: [],
  topTokens: [],
  topLogprobs: [],
});
const token = (position: number, finish?: Finish): PlayedReply => ({ sampled: sampled(position), finish });
const missing = (block: number): PlayedReply => ({ missing: { block, reason: 'the test has none' } });

/** The messages of the router to the decode instance, one after the other; undefined when it has ended the call. */
type Inbox = () => Promise<PlayedRequest | undefined>;
type DecodePlay = (inbox: Inbox, signal: AbortSignal) => AsyncGenerator<PlayedReply>;

interface WorldOptions {
  readonly decode: DecodePlay;
  readonly prefill?: PrefillPlay;
  readonly chosen?: Partial<Chosen>;
  /** Answers of the conductor when blocks are missing, in order. */
  readonly outcomes?: readonly Partial<Chosen>[];
  readonly promptLogprobs?: SampledMessage[];
  /** Whether the request's deadline has not come. */
  readonly hasTime?: boolean;
}

function worldOf({
  decode: play,
  prefill: playPrefill,
  chosen: more,
  outcomes = [],
  promptLogprobs,
  hasTime = true,
}: WorldOptions) {
  const [decode, prefill, holder] = [instanceOf('decode'), instanceOf('prefill'), instanceOf('store', 'holder')];
  const asked: Asked[] = [];
  const promised = new Set<{ readonly name: string; readonly numBlocks: number; readonly heldTokens: number }>();
  const fetching = new Set<{ readonly name: string; readonly sources: readonly Source[] }>();
  const chosenOf = (part: Partial<Chosen>): Chosen => ({
    decode,
    prefill: undefined,
    decodeSources: [],
    prefillSources: [],
    heldTokens: 0,
    maxSelfCompute: 0,
    reason: 'the test says so',
    work: { decode: NO_WORK, prefill: NO_WORK },
    explanation: undefined,
    ...part,
  });
  const conductor = {
    decide: (question: Asked): Outcome => {
      asked.push(question);
      return { kind: 'place', chosen: chosenOf(outcomes[asked.length - 1] ?? {}) };
    },
    learn: () => undefined,
    promise: ({ member }: Instance, keys: Int32Array, heldTokens: number) => {
      const promise = { name: member.name, numBlocks: keys.length / 2, heldTokens };
      promised.add(promise);
      return () => promised.delete(promise);
    },
    fetch: ({ member }: Instance, sources: readonly Source[]) => {
      const fetch = { name: member.name, sources };
      fetching.add(fetch);
      return () => fetching.delete(fetch);
    },
  } as unknown as Conductor;
  const view = {
    model: { digest, format: { blockSize: BLOCK_SIZE } },
    all: () => [decode, prefill, holder],
  } as unknown as MembersView;
  const handlers = {
    decode: playedDecode(
      (requests, signal) =>
        play(async () => {
          const result = await requests.next();
          return result.done ? undefined : result.value;
        }, signal),
      playPrefill,
    ),
  };
  const random = new Random(1);
  const excluded = new Exclusions(systemClock, random);
  const trace = opened(new RequestLog(systemClock, [], 8), 'r', { promptTokens: NUM_TOKENS });
  const left = new AbortController();
  const inFlight: InFlightRequest = {
    generation: {
      origin: { tenant: '', priority: 0 },
      promptTokens: prompt,
      request: neutralRequest(NUM_TOKENS, 2 * CONTEXT),
      isPromptOnly: false,
      isOpenEnded: false,
      ownStopTokenIds: [],
      stopTexts: new Map(),
      promptLogprobs,
      text: { stops: [], isStopIncluded: false, isSkippingSpecial: true },
    },
    trace,
    excluded,
    tokens: new TokenList(prompt),
    chain: { keys: new Int32Array(0) } as never,
    ranked: { priority: 0, sinceMs: 0 },
    untilMs: hasTime ? systemClock.nowMs() + PATIENCE_MS : 0,
    signal: left.signal,
    last: undefined,
    backoff: new Backoff({ clock: systemClock, random, firstMs: 1, mostMs: 1 }),
    numAttempts: 1,
    numRefused: 0,
  };
  const network = playedNetwork(handlers);
  const attempt = new DecodeAttempt(
    {
      router: 'router',
      view,
      conductor,
      network,
      decodes: new DecodeStreams(network),
      clock: systemClock,
      random,
      lengths: new MeanLengthPredictor(),
    },
    inFlight,
    {
      chosen: chosenOf(more ?? {}),
      blocks: { keys: keyWords(hashes.map(({ key }) => key)), hashes, lastDigest: hashes.at(-1)?.digest },
      numTokens: NUM_TOKENS,
    },
  );
  const start = (take: TakeToken): Promise<void> => attempt.run(left.signal, take);
  const run = (): AsyncGenerator<GeneratedToken> => pulled(start);
  return {
    run,
    start,
    asked,
    promised,
    fetching,
    decode,
    prefill,
    holder,
    excluded,
    record: trace.record,
    leave: () => left.abort(),
  };
}

const positionsOf = async (tokens: AsyncIterable<GeneratedToken>): Promise<number[]> => {
  const positions: number[] = [];
  for await (const { sampled: one } of tokens) positions.push(one.position);
  return positions;
};

const nextPosition = async (tokens: AsyncGenerator<GeneratedToken>): Promise<number | undefined> => {
  const result = await tokens.next();
  return result.done ? undefined : result.value.sampled.position;
};

/** Rejects as a call does whose signal aborts. */
const cut = (signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => {
    const end = (): void => reject(signal.reason as Error);
    if (signal.aborted) end();
    else signal.addEventListener('abort', end, { once: true });
  });

const sourceOf = (start: number, end: number, address = 'holder:1'): Source => ({
  start,
  end,
  address,
  isComputing: false,
});

describe('tokens', () => {
  test('R1: each is given once and in order', async () => {
    const world = worldOf({
      async *decode() {
        for (const position of [11, 12]) yield token(position);
        yield token(13, 'stop');
      },
    });
    assert.deepEqual(await positionsOf(world.run()), [11, 12, 13]);
    assert.equal(world.record.counts.attempts[0]?.outcome, 'finished');
    assert.equal(world.record.counts.outputTokens, 3);
  });

  test.each([
    ['comes twice', token(11), /token 11 came when 12 was next/],
    ['comes too early', token(13), /token 13 came when 12 was next/],
    ['is outside the vocabulary', { sampled: { ...sampled(12), token: VOCAB } }, /token id 200 is outside/],
  ])('R1: one that %s ends the attempt, and another instance may go on', async (_name, wrong, message) => {
    const world = worldOf({
      async *decode() {
        yield token(11);
        yield wrong;
        yield token(12, 'stop');
      },
    });
    const tokens = world.run();
    assert.equal(await nextPosition(tokens), 11);
    await assert.rejects(tokens.next(), (error) => {
      assert(error instanceof Failure);
      assert.match(error.message, message);
      return error.retry === 'elsewhere';
    });
    assert.equal(world.record.counts.outputTokens, 1);
  });

  test.each<[string, () => Taken, number[], string]>([
    ['that keeps up has all tokens at once', () => undefined, [11, 12, 13], 'finished'],
    ['that has enough has no more', () => ENOUGH, [11], 'stopped'],
  ])('a taker %s', async (_name, answer, positions, outcome) => {
    const world = worldOf({
      async *decode(_inbox, signal) {
        for (const position of [11, 12]) yield token(position);
        if (outcome === 'finished') yield token(13, 'stop');
        else await cut(signal);
      },
    });
    const taken: number[] = [];
    await world.start(({ sampled: one }) => {
      taken.push(one.position);
      return answer();
    });
    assert.deepEqual(taken, positions);
    assert.equal(world.record.counts.attempts[0]?.outcome, outcome);
    assert.equal(world.record.counts.outputTokens, positions.length);
  });

  test('R1: of the prompt, each log-probability is kept once and in order', async () => {
    const known: SampledMessage[] = [];
    const world = worldOf({
      promptLogprobs: known,
      async *decode() {
        for (const positions of [[1, 2], [2, 3], [5], [4]]) yield { prompt: positions.map(sampled) };
        yield token(11, 'length');
      },
    });
    await positionsOf(world.run());
    assert.deepEqual(
      known.map(({ position }) => position),
      [1, 2, 3, 4],
    );
  });

  test('a call that fails before its last token is recorded as such, after the tokens that came', async () => {
    const world = worldOf({
      async *decode() {
        yield token(11);
        throw new Failure('unavailable', 'the card is full');
      },
    });
    const tokens = world.run();
    assert.equal(await nextPosition(tokens), 11);
    await assert.rejects(tokens.next(), /decode:1: the card is full/);
    assert.equal(world.record.counts.attempts[0]?.outcome, 'decode:1: the card is full');
  });

  test('the deadline of the request ends the attempt', async () => {
    const world = worldOf({
      hasTime: false,
      async *decode(_inbox, signal) {
        await cut(signal);
      },
    });
    await assert.rejects(
      positionsOf(world.run()),
      (error) => error instanceof Failure && error.code === 'deadline_exceeded',
    );
    assert.equal(world.decode.numPlaced, 0);
  });
});

test('the start carries tokens, chain, context and sources, and asks for no more than the instance has room for', async () => {
  let first: PlayedRequest | undefined;
  const world = worldOf({
    chosen: { decodeSources: [sourceOf(0, 1)], maxSelfCompute: 7 },
    async *decode(inbox) {
      first = await inbox();
      yield token(11, 'stop');
    },
  });
  await positionsOf(world.run());
  const start = first?.start;
  assert(start);
  assert.deepEqual([...unpackTokens(start.tokens)], [...prompt]);
  assert.equal(start.lastDigest.toString('hex'), hashes.at(-1)?.digest);
  assert.equal(start.request?.maxLength, CONTEXT);
  assert.deepEqual([start.sources, start.maxSelfCompute], [[sourceOf(0, 1)], 7]);
  assert.deepEqual([start.context?.requestId, start.context?.router], ['r.1', 'router']);
  // While nothing is known about answers, all that the request allows is expected, up to 256 tokens.
  assert.equal(start.context?.expectedTokens, 2 * CONTEXT - NUM_TOKENS);
});

describe('missing blocks', () => {
  test('the conductor is asked for this decode instance and what it holds; the answer goes back as new sources', async () => {
    const sources = [sourceOf(1, 2, 'prefill:1')];
    let answer: PlayedRequest | undefined;
    let numPrefills = 0;
    const world = worldOf({
      chosen: { decodeSources: [sourceOf(0, 2)] },
      outcomes: [{ decodeSources: sources, maxSelfCompute: 5 }],
      async *decode(inbox) {
        await inbox();
        yield missing(1);
        answer = await inbox();
        yield token(11, 'stop');
      },
      async *prefill() {
        numPrefills++;
      },
    });
    await positionsOf(world.run());
    assert.deepEqual(
      world.asked.map(({ numTokens, decode }) => [numTokens, decode?.instance === world.decode, decode?.from]),
      [[NUM_TOKENS, true, 1]],
    );
    // Without a prefill to wait for, the decode instance computes what it does not find there.
    assert.deepEqual(answer?.more, { sources, maxSelfCompute: NUM_TOKENS });
    assert.equal(numPrefills, 0);
    assert(!world.excluded.isHolder(world.holder), 'the holder that did not deliver is not asked again');
    assert(world.excluded.isHolder(world.decode));
  });

  test('a placement with a prefill begins one, and ends the one before it', async () => {
    const signals: AbortSignal[] = [];
    const answers: (PlayedRequest | undefined)[] = [];
    let world: ReturnType<typeof worldOf> | undefined;
    const placed = { maxSelfCompute: 3, decodeSources: [sourceOf(0, 2, 'prefill:1')] };
    const outcomes = [placed, placed].map((one) => ({
      ...one,
      get prefill() {
        return world?.prefill;
      },
    }));
    world = worldOf({
      outcomes,
      async *decode(inbox) {
        await inbox();
        for (let round = 0; round < 2; round++) {
          yield missing(0);
          answers.push(await inbox());
        }
        assert.deepEqual([signals[0]?.aborted, signals[1]?.aborted], [true, false]);
        assert.equal(world?.record.phase, 'prefilling');
        yield token(11, 'stop');
      },
      async *prefill(_request, { signal }) {
        signals.push(signal);
        yield { numReady: 4, numRun: 4, report: null };
        await cut(signal);
      },
    });
    await positionsOf(world.run());
    assert.deepEqual(
      answers.map((one) => one?.more),
      [placed, placed].map(({ decodeSources: sources, maxSelfCompute }) => ({ sources, maxSelfCompute })),
    );
    const { prefills = [] } = world.record.counts.attempts[0] ?? {};
    assert.deepEqual(
      prefills.map(({ readyTokens }) => readyTokens),
      [4, 4],
    );
    assert.equal(prefills[0]?.outcome, 'cancelled', 'the router ended it: nothing is held against its instance');
    assert(!world.excluded.has(world.prefill));
  });

  test('P1: after four prefills the decode instance computes what is left, and the conductor is not asked again', async () => {
    let world: ReturnType<typeof worldOf> | undefined;
    let last: PlayedRequest | undefined;
    const outcomes = Array.from({ length: 8 }, () => ({
      get prefill() {
        return world?.prefill;
      },
    }));
    world = worldOf({
      outcomes,
      async *decode(inbox) {
        await inbox();
        for (let round = 0; round < 6; round++) {
          yield missing(0);
          last = await inbox();
        }
        yield token(11, 'stop');
      },
      async *prefill(_request, { signal }) {
        await cut(signal);
      },
    });
    await positionsOf(world.run());
    assert.equal(world.asked.length, 4);
    assert.deepEqual(last?.more, { sources: [], maxSelfCompute: NUM_TOKENS });
  });
});

describe('a pipeline', () => {
  const chunkOf = (start: number, end: number, address: string): Source => ({
    ...sourceOf(start, end, address),
    isComputing: true,
  });
  const [ofFirst, ofSecond] = [[chunkOf(0, 1, 'second:1')], [sourceOf(0, 0), chunkOf(1, 2, 'prefill:1')]];
  const pipeline = (prefill: Instance, second: Instance): Partial<Chosen> => ({
    prefill,
    decodeSources: [chunkOf(0, 2, 'prefill:1')],
    prefillSources: ofFirst,
    second: { instance: second, sources: ofSecond, tokens: 4, patienceMs: 70 },
  });

  test('both prefills get their sources and how long to wait, are promised its blocks, and count their own tokens', async () => {
    const requests: PrefillRequest[] = [];
    const [prefill, second] = [instanceOf('prefill'), instanceOf('prefill', 'second')];
    const ended = new AbortController();
    const world = worldOf({
      chosen: pipeline(prefill, second),
      async *decode(inbox) {
        await inbox();
        await until('both are called', () => requests.length === 2);
        assert.deepEqual([...world.promised].map(({ name }) => name).sort(), ['prefill', 'second']);
        assert.deepEqual(
          [...world.fetching].map(({ name }) => name),
          ['decode'],
        );
        assert.deepEqual([prefill.queueLength, second.queueLength], [1, 1]);
        ended.abort();
        yield token(11, 'stop');
      },
      async *prefill(request) {
        requests.push(request);
        await aborted(ended.signal);
        yield { numReady: 8, numRun: 4, report: emptyReport };
      },
    });
    await positionsOf(world.run());
    assert.deepEqual(
      requests.map(({ sources, pipelinePatienceMs }) => [sources, pipelinePatienceMs]),
      [
        [ofSecond, 70],
        [ofFirst, 70],
      ],
    );
    const { prefills = [] } = world.record.counts.attempts[0] ?? {};
    assert.deepEqual(
      prefills.map(({ name, expectedTokens }) => [name, expectedTokens]),
      [
        ['second', 4],
        ['prefill', 4],
      ],
    );
    await turn();
    assert.equal(world.promised.size, 0);
    assert.deepEqual([prefill.queueLength, second.queueLength], [0, 0]);
  });

  test('the second one fails: it is excluded, and nothing else happens, because the other one computes all', async () => {
    const messages: (PlayedRequest | undefined)[] = [];
    const [prefill, second] = [instanceOf('prefill'), instanceOf('prefill', 'second')];
    const ended = new AbortController();
    const world = worldOf({
      chosen: pipeline(prefill, second),
      async *decode(inbox) {
        await inbox();
        await until('it is excluded', () => world.excluded.has(second));
        void inbox().then((message) => messages.push(message));
        await staysSo('nobody says anything', () => messages.length === 0);
        ended.abort();
        yield token(11, 'stop');
      },
      async *prefill({ sources }) {
        if (sources.length > 1) throw new Failure('instance_lost', 'the card fell out');
        await aborted(ended.signal);
        yield { numReady: 8, numRun: 8, report: emptyReport };
      },
    });
    await positionsOf(world.run());
    assert(!world.excluded.has(prefill));
    const { prefills = [] } = world.record.counts.attempts[0] ?? {};
    assert.match(prefills[0]?.outcome ?? '', /failed: .*: the card fell out/);
    assert.equal(world.asked.length, 0, 'nobody else is placed');
  });

  test('the first one fails: the decode instance is told, and the second one ends with the round', async () => {
    let message: PlayedRequest | undefined;
    let isCancelled = false;
    const [prefill, second] = [instanceOf('prefill'), instanceOf('prefill', 'second')];
    const world = worldOf({
      chosen: pipeline(prefill, second),
      async *decode(inbox) {
        await inbox();
        message = await inbox();
        yield missing(0);
        await inbox();
        await until('the other one is cancelled', () => isCancelled);
        yield token(11, 'stop');
      },
      async *prefill({ sources }, { signal }) {
        if (sources.length === 1) throw new Failure('instance_lost', 'the card fell out');
        await aborted(signal);
        isCancelled = true;
      },
    });
    await positionsOf(world.run());
    assert.deepEqual(message?.giveUp, { round: 0 });
    assert(world.excluded.has(prefill) && !world.excluded.has(second));
    assert.equal(world.asked.length, 1);
  });
});

describe('what is lost', () => {
  test('a prefill that fails excludes its instance, and the decode instance is told to give this round up', async () => {
    let message: PlayedRequest | undefined;
    const failing = instanceOf('prefill');
    const world = worldOf({
      chosen: { prefill: failing },
      async *decode(inbox) {
        await inbox();
        message = await inbox();
        yield token(11, 'stop');
      },
      async *prefill() {
        throw new Failure('instance_lost', 'the card fell out');
      },
    });
    await positionsOf(world.run());
    assert.deepEqual(message?.giveUp, { round: 0 });
    assert(world.excluded.has(failing) && failing.isSuspect);
    const [prefill] = world.record.counts.attempts[0]?.prefills ?? [];
    assert.match(prefill?.outcome ?? '', /failed: .*: the card fell out/);
    assert(world.record.notes.some((note) => JSON.stringify(note).includes('the card fell out')));
  });

  test('a prefill whose connection broke has failed, also when the blocks are reported missing before it is called again', async () => {
    const failing = instanceOf('prefill');
    let numCalls = 0;
    const world = worldOf({
      chosen: { prefill: failing },
      async *decode(inbox) {
        await inbox();
        await until('it is called', () => numCalls > 0);
        yield missing(0);
        await inbox();
        yield token(11, 'stop');
      },
      async *prefill() {
        numCalls++;
        throw new Failure('session_broken', 'the connection broke');
      },
    });
    await positionsOf(world.run());
    const [prefill] = world.record.counts.attempts[0]?.prefills ?? [];
    assert.match(prefill?.outcome ?? '', /failed: .*: the connection broke/);
    assert(world.excluded.has(failing));
    assert.equal(numCalls, 1);
  });

  test('a holder that is lost while blocks are fetched from it is given up at once', async () => {
    let message: PlayedRequest | undefined;
    const world = worldOf({
      chosen: { decodeSources: [sourceOf(0, 2)] },
      async *decode(inbox) {
        await inbox();
        yield token(11);
        message = await inbox();
        yield token(12, 'stop');
      },
    });
    const tokens = world.run();
    await tokens.next();
    world.holder.lost.abort(new Failure('instance_lost', 'silent'));
    assert.deepEqual(await positionsOf(tokens), [12]);
    assert.deepEqual(message?.giveUp, { round: 0 });
  });

  test('a prefill that fetches from a holder that is lost ends at once, also while the decode instance says nothing', async () => {
    let message: PlayedRequest | undefined;
    let isCancelled = false;
    const ended = new AbortController();
    const prefill = instanceOf('prefill');
    const world = worldOf({
      chosen: { prefill, decodeSources: [sourceOf(0, 2, 'prefill:1')], prefillSources: [sourceOf(0, 1)] },
      async *decode(inbox) {
        await inbox();
        yield token(11);
        message = await inbox();
        await aborted(ended.signal);
        yield token(12, 'stop');
      },
      async *prefill(_request, { signal }) {
        await aborted(signal);
        isCancelled = true;
        ended.abort();
      },
    });
    const tokens = world.run();
    await tokens.next();
    world.holder.lost.abort(new Failure('instance_lost', 'silent'));
    assert.deepEqual(await positionsOf(tokens), [12]);
    assert.deepEqual([message?.giveUp, isCancelled], [{ round: 0 }, true]);
    assert(!world.excluded.has(prefill), 'it is not the one that failed');
  });

  test('the decode instance: the attempt ends with the reason of its loss', async () => {
    const world = worldOf({
      async *decode(_inbox, signal) {
        yield token(11);
        await cut(signal);
      },
    });
    const tokens = world.run();
    await tokens.next();
    world.decode.lost.abort(new Failure('instance_lost', 'it was silent for 3 s'));
    await assert.rejects(tokens.next(), /it was silent for 3 s/);
    assert.equal(world.record.counts.attempts[0]?.outcome, 'it was silent for 3 s');
    assert.equal(world.decode.numPlaced, 0);
  });
});

describe('blocks are promised', () => {
  test('at the decode instance that computes the prompt, until the first token', async () => {
    const world = worldOf({
      async *decode(inbox) {
        await inbox();
        await turn();
        yield token(11);
        yield token(12, 'stop');
      },
    });
    const tokens = world.run();
    const first = tokens.next();
    assert.deepEqual([...world.promised], [{ name: 'decode', numBlocks: 2, heldTokens: 0 }]);
    await first;
    assert.equal(world.promised.size, 0);
    await positionsOf(tokens);
  });

  test('at the prefill instance until the prefill has ended, and then at a decode instance that must compute them', async () => {
    const seen: string[][] = [];
    const prefill = instanceOf('prefill');
    const begun = new AbortController();
    const note = (): void => void seen.push([...world.promised].map(({ name }) => name));
    const world = worldOf({
      chosen: { prefill },
      outcomes: [{}],
      async *decode(inbox) {
        await inbox();
        note();
        begun.abort();
        await inbox();
        note();
        yield missing(0);
        await inbox();
        note();
        yield token(11, 'stop');
      },
      async *prefill() {
        await aborted(begun.signal);
        throw new Failure('instance_lost', 'the card fell out');
      },
    });
    await positionsOf(world.run());
    assert.deepEqual(seen, [['prefill'], [], ['decode']]);
    assert.equal(world.promised.size, 0);
  });

  test('no longer than the call lasts', async () => {
    const world = worldOf({
      async *decode(inbox) {
        await inbox();
        throw new Failure('session_broken', 'the connection broke');
      },
    });
    await assert.rejects(positionsOf(world.run()), /the connection broke/);
    assert.equal(world.promised.size, 0);
  });
});

describe('R2: nothing is left', () => {
  /** A request with a prefill under way, of which one token was read. */
  async function underWay() {
    let hasEnded = false;
    let prefillSignal: AbortSignal | undefined;
    const play: WorldOptions = {
      async *decode(inbox, signal) {
        await inbox();
        void inbox().then((message) => {
          hasEnded = message === undefined;
        });
        yield token(11);
        await cut(signal);
      },
      async *prefill(_request, { signal }) {
        prefillSignal = signal;
        await cut(signal);
      },
    };
    const prefill = instanceOf('prefill');
    const world = worldOf({ ...play, chosen: { prefill } });
    const tokens = world.run();
    await tokens.next();
    assert.deepEqual([world.decode.numPlaced, prefill.numPlaced, world.promised.size], [1, 1, 1]);
    assert.equal(world.fetching.size, 0, 'the first token says that the blocks have come');
    const check = async (outcome: string): Promise<void> => {
      const isOver = (): boolean => hasEnded && prefill.numPlaced === 0 && world.promised.size === 0;
      await until('nothing of it is left', isOver);
      assert(prefillSignal?.aborted, 'the prefill is cancelled');
      assert.deepEqual([world.decode.numPlaced, prefill.numPlaced, world.promised.size], [0, 0, 0]);
      assert.equal(world.fetching.size, 0);
      const outcomes = world.record.counts.attempts.map((one) => [
        one.outcome,
        ...one.prefills.map((own) => own.outcome),
      ]);
      assert.deepEqual(outcomes, [[outcome, 'cancelled']]);
    };
    return { world, tokens, check };
  }

  test('when the consumer stops reading', async () => {
    const { tokens, check } = await underWay();
    await tokens.return(undefined);
    await check('stopped');
  });

  test('when the client disconnects', async () => {
    const { world, tokens, check } = await underWay();
    world.leave();
    await assert.rejects(tokens.next());
    await check('cancelled');
  });
});

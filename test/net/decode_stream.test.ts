/**
 * The stream that carries Decode and Prefill calls, both of its sides over a network that hands messages on: whose token is whose, what ends a call or
 * all of them, and what is said to a peer that speaks wrongly. Budget: 5 s.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { AsyncQueue } from '../../shared/base/async_queue.ts';
import { systemClock, type Clock } from '../../shared/base/clock.ts';
import { Failure, type FailureCode } from '../../shared/base/failure.ts';
import {
  DecodeStreams,
  type DecodeCall,
  type DecodePeer,
  type StartedCall,
} from '../../shared/net/decode/decode_stream.ts';
import { DecodeServer, type DecodeOutput, type PrefillOutput } from '../../shared/net/decode/served_decodes.ts';
import type { Handler } from '../../shared/net/network.ts';
import { ReplyReader, ReplyWriter, MAX_SLOTS, type ReplyListener } from '../../shared/protocol/decode_replies.ts';
import type {
  DecodeReplies,
  DecodeRequest,
  DecodeStart,
  PrefillRequest,
  SampledMessage,
} from '../../shared/protocol/messages.ts';
import { packTokens, unpackTokens } from '../../shared/protocol/packing.ts';
import { neutralRequest } from '../../shared/protocol/request.ts';
import { emptyReport } from '../support/empty_report.ts';
import { playedNetwork } from '../support/played_network.ts';
import { PATIENCE_MS, turn, until } from '../support/until.ts';

const sampled = (position: number, token = position): SampledMessage => ({
  position,
  token,
  logprob: [],
  topTokens: [],
  topLogprobs: [],
});
const startOf = (name: string): DecodeStart =>
  ({
    context: { requestId: name },
    tokens: Buffer.alloc(4),
    sources: [],
    request: neutralRequest(1, 2),
  }) as unknown as DecodeStart;

const promptOf = (name: string): PrefillRequest =>
  ({ context: { requestId: name }, tokens: Buffer.alloc(4), sources: [] }) as unknown as PrefillRequest;

/** A served Prefill call. */
interface ServedPrefill {
  readonly output: PrefillOutput;
  readonly signal: AbortSignal;
}

/** A served Decode call, as its session has it. */
interface Session {
  readonly name: string;
  readonly output: DecodeOutput;
  readonly signal: AbortSignal;
  readonly messages: DecodeRequest[];
}

/** An instance whose sessions the test plays, and a router that calls it. */
function worldOf() {
  const sessions: Session[] = [];
  const streams: DecodeRequest[][] = [];
  const messages: DecodeReplies[] = [];
  const prefills: ServedPrefill[] = [];
  const server = new DecodeServer(
    systemClock,
    (start, { signal }, output) => {
      const session: Session = { name: start.context?.requestId ?? '', output, signal, messages: [] };
      sessions.push(session);
      return { take: (message) => session.messages.push(message) };
    },
    (_request, { signal }, output) => prefills.push({ output, signal }),
  );
  const decode: Handler<'decode'> = async function* (requests, call) {
    const seen: DecodeRequest[] = [];
    streams.push(seen);
    async function* noted(): AsyncGenerator<DecodeRequest> {
      for await (const request of requests) {
        seen.push(request);
        yield request;
      }
    }
    for await (const replies of server.handler(noted(), call)) {
      messages.push(replies);
      yield replies;
    }
  };
  const peer = { member: { address: 'h:1' }, lost: new AbortController() };
  const malformed: string[] = [];
  const router = new DecodeStreams(playedNetwork({ decode }), (_address, { message }) => malformed.push(message));
  const call = (name: string): Told => new Told(router, peer, name);
  const prefill = (name: string): ToldPrefill => new ToldPrefill(router, peer, name);
  return { sessions, prefills, streams, messages, server, peer, router, call, prefill, malformed };
}

/** A Prefill call, and what its caller was told: rows that are ready, with its report `done`, a code. */
class ToldPrefill {
  readonly heard: (string | number)[] = [];
  readonly call: StartedCall;
  failure: Failure | undefined;

  constructor(router: DecodeStreams, peer: DecodePeer, name: string, changes: Partial<PrefillRequest> = {}) {
    this.call = router.prefill(
      peer,
      { ...promptOf(name), ...changes },
      {
        onPrefill: ({ numReady, report }) => {
          this.heard.push(numReady);
          if (report) this.heard.push('done');
        },
        onFailure: (failure) => {
          this.heard.push(failure.code);
          this.failure = failure;
        },
      },
    );
  }
}

/** A call, and what its caller was told. */
class Told {
  readonly heard: (string | number)[] = [];
  failure: Failure | undefined;
  readonly call: DecodeCall;

  constructor(router: DecodeStreams, peer: DecodePeer, name: string, changes: Partial<DecodeStart> = {}) {
    this.call = router.start(
      peer,
      { ...startOf(name), ...changes },
      {
        onMissing: ({ block }) => this.heard.push(`missing ${block}`),
        onPrompt: (tokens) => this.heard.push(`prompt ${tokens.length}`),
        onToken: (token, finish) => {
          this.heard.push(token.position);
          if (finish) this.heard.push(finish);
        },
        onFailure: (failure) => {
          this.heard.push(failure.code);
          this.failure = failure;
        },
      },
    );
  }
}

/** A stream of which the test reads the messages. */
function servedOf(clock: Clock = systemClock) {
  const requests = new AsyncQueue<DecodeRequest>();
  const outputs: DecodeOutput[] = [];
  const signals: AbortSignal[] = [];
  const server = new DecodeServer(clock, (_start, { signal }, output) => {
    outputs.push(output);
    signals.push(signal);
    return { take: () => undefined };
  });
  const call = { signal: new AbortController().signal, caller: 'test' };
  const replies = server.handler(requests, call)[Symbol.asyncIterator]();
  // The server reads requests from the first read of its replies on.
  const first = replies.next();
  let isFirst = true;
  const next = (): ReturnType<typeof replies.next> => {
    if (!isFirst) return replies.next();
    isFirst = false;
    return first;
  };
  return { requests, outputs, signals, server, replies: next };
}

async function nextOf(next: ReturnType<typeof servedOf>['replies']): Promise<DecodeReplies | undefined> {
  const result = await next();
  return result.done ? undefined : result.value;
}

describe('calls of one stream', () => {
  test('each hears its own tokens, and those of one step come in one message', async () => {
    const { sessions, messages, streams, call } = worldOf();
    const calls = ['a', 'b', 'c'].map(call);
    await until('all are served', () => sessions.length === 3);
    for (let step = 0; step < 3; step++) {
      for (const { output } of sessions) output.token(sampled(10 + step), step === 2 ? 'stop' : undefined, undefined);
      await turn();
    }
    for (const { heard } of calls) assert.deepEqual(heard, [10, 11, 12, 'stop']);
    assert.equal(streams.length, 1);
    assert.deepEqual(
      messages.map(({ number, finishes }) => [number, finishes.length]),
      [
        [0, 3],
        [1, 3],
        [2, 3],
      ],
    );
  });

  test('replies that wait while a message is not read become one message', async () => {
    const { requests, replies, outputs } = servedOf();
    requests.push({ slot: 4, start: startOf('a') });
    await until('it is served', () => outputs.length === 1);
    const position = (at: number): void => outputs[0]?.token(sampled(at), undefined, undefined);
    position(0);
    assert.equal((await nextOf(replies))?.finishes.length, 1);
    for (let at = 1; at < 6; at++) {
      position(at);
      await turn();
    }
    const next = await nextOf(replies);
    assert.deepEqual([next?.number, [...unpackTokens(next?.positions ?? Buffer.alloc(0))]], [1, [1, 2, 3, 4, 5]]);
    requests.end();
  });

  test('P1: while messages wait to be read no request is, however many calls a router starts and cancels', async () => {
    const { requests, replies, outputs } = servedOf();
    const long = 'x'.repeat(1 << 19);
    for (let i = 0; i < 50; i++) {
      requests.push({ slot: 0, start: startOf('a') });
      await turn();
      outputs.at(-1)?.fail(new Failure('unavailable', long));
      await turn();
    }
    const numBefore = outputs.length;
    assert(numBefore < 50, `${numBefore} were started`);
    while (outputs.length === numBefore) {
      await nextOf(replies);
      await turn();
    }
    requests.end();
  });

  test('messages reach the session of their slot, and those about a call that has ended reach nobody', async () => {
    const { sessions, call } = worldOf();
    const [a, b] = [call('a'), call('b')];
    await until('both are served', () => sessions.length === 2);
    b.call.giveUp(3);
    a.call.more({ sources: [], maxSelfCompute: 7 });
    await turn();
    assert.deepEqual(
      sessions.map(({ messages }) => messages.map(({ more, giveUp }) => more?.maxSelfCompute ?? giveUp?.round)),
      [[7], [3]],
    );
    sessions[0]?.output.token(sampled(1), 'length', undefined);
    await turn();
    a.call.more({ sources: [], maxSelfCompute: 8 });
    a.call.leave();
    await turn();
    assert.equal(sessions[0]?.messages.length, 1);
  });

  test('a slot is used again when its call has ended, and not before: a cancelled call keeps it until the instance says so', async () => {
    const { sessions, streams, call } = worldOf();
    const a = call('a');
    await until('it is served', () => sessions.length === 1);
    a.call.leave();
    const b = call('b');
    await until('the other is served', () => sessions.length === 2);
    assert(sessions[0]?.signal.aborted, 'R2: its session is told');
    sessions[0].output.token(sampled(9), undefined, undefined);
    await turn();
    const c = call('c');
    await until('the third is served', () => sessions.length === 3);
    const slots = (streams[0] ?? []).filter(({ start }) => start).map(({ slot }) => slot);
    assert.deepEqual(slots, [0, 1, 0]);
    for (const { output } of sessions) output.token(sampled(1), 'stop', undefined);
    await turn();
    assert.deepEqual([a.heard, b.heard, c.heard], [[], [1, 'stop'], [1, 'stop']]);
  });

  test('a failure of one is its own, by its code, and clients are told no address', async () => {
    const { sessions, call } = worldOf();
    const [a, b] = [call('a'), call('b')];
    await until('both are served', () => sessions.length === 2);
    sessions[0]?.output.fail(new Failure('overloaded', 'all seats are taken'));
    sessions[1]?.output.token(sampled(1), 'stop', undefined);
    await turn();
    assert.deepEqual(
      [a.failure?.code, a.failure?.message, a.failure?.told],
      ['overloaded', 'h:1: all seats are taken', 'all seats are taken'],
    );
    assert.deepEqual(b.heard, [1, 'stop']);
  });

  test('one that is too large for a message is refused, and the others go on', async () => {
    const { sessions, peer, router, call } = worldOf();
    const a = call('a');
    await until('it is served', () => sessions.length === 1);
    const large: Partial<DecodeStart>[] = [
      { tokens: Buffer.alloc(16 << 20) },
      { request: { ...neutralRequest(1, 2), stopTokenIds: new Array<number>(4 << 20).fill(1) } },
      {
        request: {
          ...neutralRequest(1, 2),
          constraint: { grammar: 'é'.repeat(8 << 20), endTokens: [], allowedTokens: Buffer.alloc(0), forbidden: [] },
        },
      },
    ];
    for (const changes of large) {
      const b = new Told(router, peer, 'b', changes);
      assert.equal(b.failure?.code, 'invalid_request');
      assert.match(b.failure.told, /^the request takes \d+ bytes on its way to an instance/);
    }
    sessions[0]?.output.token(sampled(1), 'stop', undefined);
    await turn();
    assert.deepEqual(a.heard, [1, 'stop']);
  });

  test('all end with the loss of their instance, whose sessions end too (R2)', async () => {
    const { sessions, peer, call } = worldOf();
    const calls = ['a', 'b'].map(call);
    await until('both are served', () => sessions.length === 2);
    peer.lost.abort(new Failure('instance_lost', 'silent for 3 s'));
    assert.deepEqual(
      calls.map(({ failure }) => failure?.message),
      ['silent for 3 s', 'silent for 3 s'],
    );
    await until('the sessions end', () => sessions.every(({ signal }) => signal.aborted));
    const late = call('late');
    await turn();
    assert.equal(late.failure?.code, 'instance_lost');
  });
});

describe('a Prefill call', () => {
  test('has a slot of the same stream, and what its step has computed is in the message of the tokens', async () => {
    const { sessions, prefills, streams, messages, call, prefill } = worldOf();
    const [decode, one, other] = [call('a'), prefill('b'), prefill('c')];
    await until('all are served', () => sessions.length === 1 && prefills.length === 2);
    for (let step = 1; step < 3; step++) {
      const report = step === 2 ? emptyReport : null;
      for (const { output } of prefills) output.prefill({ numReady: 32 * step, numRun: 32 * step, report });
      sessions[0]?.output.token(sampled(step), undefined, undefined);
      await turn();
    }
    assert.deepEqual(
      [one.heard, other.heard, decode.heard],
      [
        [32, 64, 'done'],
        [32, 64, 'done'],
        [1, 2],
      ],
    );
    assert.equal(streams.length, 1);
    assert.deepEqual(
      messages.map(({ events, finishes }) => [events.length, finishes.length]),
      [
        [2, 1],
        [2, 1],
      ],
    );
    prefill('d');
    await until('it is served', () => prefills.length === 3);
    assert.equal(streams[0]?.at(-1)?.slot, 2, 'the report of a call frees its slot');
  });

  test('that is cancelled tells its instance (R2), hears nothing more, and has its slot until the instance ends it', async () => {
    const { prefills, streams, prefill } = worldOf();
    const told = prefill('a');
    await until('it is served', () => prefills.length === 1);
    told.call.leave();
    prefills[0]?.output.prefill({ numReady: 32, numRun: 32, report: null });
    prefill('b');
    await until('it is told', () => prefills[0]?.signal.aborted);
    prefills[0]?.output.prefill({ numReady: 64, numRun: 64, report: emptyReport });
    await turn();
    prefill('c');
    await until('all are served', () => prefills.length === 3);
    assert.deepEqual(
      streams[0]?.filter(({ cancel }) => !cancel).map(({ slot }) => slot),
      [0, 1, 0],
    );
    assert.deepEqual(told.heard, []);
  });

  test('ends with its failure, and with the loss of its instance (R2)', async () => {
    const { prefills, peer, prefill } = worldOf();
    const [one, other] = [prefill('a'), prefill('b')];
    await until('both are served', () => prefills.length === 2);
    prefills[0]?.output.fail(new Failure('overloaded', 'all seats are taken'));
    await turn();
    assert.deepEqual([one.failure?.message, other.failure], ['h:1: all seats are taken', undefined]);
    peer.lost.abort(new Failure('instance_lost', 'silent for 3 s'));
    await until('its instance is told', () => prefills[1]?.signal.aborted);
    assert.deepEqual([one.heard, other.heard], [['overloaded'], ['instance_lost']]);
  });

  test('that is too large for a message is refused', () => {
    const { router, peer } = worldOf();
    const { failure } = new ToldPrefill(router, peer, 'a', { tokens: Buffer.alloc(16 << 20) });
    assert.equal(failure?.code, 'invalid_request');
  });

  test('is refused where none is served, and the stream goes on', async () => {
    const { requests, replies, outputs } = servedOf();
    requests.push({ slot: 0, prefill: promptOf('a') });
    const [event] = (await nextOf(replies))?.events ?? [];
    assert.equal(event?.failure?.code, 'invalid_request');
    requests.push({ slot: 0, start: startOf('b') });
    await until('the next one is served', () => outputs.length === 1);
    requests.end();
  });

  const ends: readonly [string, DecodeReplies['events']][] = [
    ['a reply of a slot without a call', [{ slot: 9, prefill: { numReady: 32, numRun: 32, report: null } }]],
    [
      'its report a second time',
      Array(2).fill({ slot: 0, prefill: { numReady: 32, numRun: 32, report: emptyReport } }),
    ],
    ['a reply of a slot with a Decode call', [{ slot: 1, prefill: { numReady: 32, numRun: 32, report: null } }]],
    ['missing blocks of its slot', [{ slot: 0, missing: { block: 1, reason: '' } }]],
  ];
  test.each(ends)('%s ends the stream, and the calls may go on elsewhere', async (_name, events) => {
    const none = Buffer.alloc(0);
    const decode: Handler<'decode'> = async function* (requests) {
      const said = { number: 0, slots: none, tokens: none, positions: none, finishes: none, details: [], events };
      for await (const { slot } of requests) if (slot === 1) yield said;
    };
    const router = new DecodeStreams(playedNetwork({ decode }));
    const peer = { member: { address: 'h:1' }, lost: new AbortController() };
    const calls = [new ToldPrefill(router, peer, 'a'), new Told(router, peer, 'b')];
    await until('the stream has ended', () => calls[1]?.failure !== undefined);
    assert.deepEqual([calls[1]?.failure?.code, calls[1]?.failure?.retry], ['unavailable', 'elsewhere']);
    assert(['unavailable', 'done'].includes(String(calls[0]?.heard.at(-1))));
  });
});

describe('a router that gets malformed replies', () => {
  const said: DecodeReplies = {
    number: 0,
    slots: packTokens([0]),
    tokens: packTokens([5]),
    positions: packTokens([3]),
    finishes: Buffer.from([0]),
    details: [],
    events: [],
  };
  const detail = { row: 1, report: null, logprob: [], topTokens: [], topLogprobs: [] };
  const cases: readonly [string, Partial<DecodeReplies>, RegExp][] = [
    ['of a slot without a call', { slots: packTokens([7]) }, /slot 7 has no call/],
    ['of a slot far beyond', { slots: packTokens([1 << 20]) }, /slot 1048576 has no call/],
    ['about a slot without a call', { events: [{ slot: 9, missing: { block: 1, reason: '' } }] }, /slot 9 has no call/],
    ['with columns of different lengths', { tokens: packTokens([5, 6]) }, /its columns have 1, 2, 1 and 1 rows/],
    ['with half a number', { positions: Buffer.alloc(3) }, /its columns have 1, 1, 0.75 and 1 rows/],
    ['with an end that there is not', { finishes: Buffer.from([9]) }, /no finish has the number 9/],
    ['with details of no token', { details: [detail] }, /details of row 1/],
    [
      'with alternatives without log-probabilities',
      { details: [{ ...detail, row: 0, topTokens: [1] }] },
      /1 alternatives/,
    ],
    ['whose predecessor is missing', { number: 2 }, /message 2 came when 0 was next/],
  ];
  test.each(cases)('%s ends the stream, and its calls may go on elsewhere', async (_name, changes, message) => {
    let why: unknown;
    const decode: Handler<'decode'> = async function* (requests, { signal }) {
      signal.addEventListener('abort', () => {
        why = signal.reason;
      });
      for await (const { slot } of requests) if (slot === 1) yield { ...said, ...changes };
    };
    const router = new DecodeStreams(playedNetwork({ decode }));
    const peer = { member: { address: 'h:1' }, lost: new AbortController() };
    const calls = ['a', 'b'].map((name) => new Told(router, peer, name));
    await until('both have ended', () => calls.every(({ failure }) => failure));
    for (const { heard, failure } of calls) {
      assert.deepEqual([heard, failure?.retry], [['unavailable'], 'elsewhere']);
      assert.match(failure?.message ?? '', message);
      assert.equal(failure?.told, 'an instance failed: try again');
    }
    assert(why instanceof Failure && why.code === 'internal');
    assert(!peer.lost.signal.aborted, 'nothing else notices');
  });

  test('with a last token that its listener refuses ends the call of that token too', async () => {
    const decode: Handler<'decode'> = async function* (requests) {
      for await (const request of requests) if (request.start) yield { ...said, finishes: Buffer.from([1]) };
    };
    const heard: FailureCode[] = [];
    const peer = { member: { address: 'h:1' }, lost: new AbortController() };
    new DecodeStreams(playedNetwork({ decode })).start(peer, startOf('a'), {
      onMissing: () => undefined,
      onPrompt: () => undefined,
      onToken: () => {
        throw new Failure('internal', 'no such token');
      },
      onFailure: ({ code }) => heard.push(code),
    });
    await until('it has ended', () => heard.length > 0);
    assert.deepEqual(heard, ['unavailable']);
  });

  test('a second time drops it (R1)', async () => {
    const decode: Handler<'decode'> = async function* (requests) {
      for await (const request of requests) {
        if (!request.start) continue;
        yield said;
        yield said;
        yield { ...said, number: 1, positions: packTokens([4]), finishes: Buffer.from([2]) };
      }
    };
    const peer = { member: { address: 'h:1' }, lost: new AbortController() };
    const told = new Told(new DecodeStreams(playedNetwork({ decode })), peer, 'a');
    await until('it has ended', () => told.heard.includes('length'));
    assert.deepEqual(told.heard, [3, 4, 'length']);
  });
});

describe('an instance that gets a malformed message', () => {
  const cases: readonly [string, DecodeRequest, RegExp][] = [
    ['of a slot beyond the last', { slot: MAX_SLOTS, start: startOf('b') }, /slot 65536 of a call is not below 65536/],
    ['of 2^20 slots', { slot: 1 << 20, start: startOf('b') }, /slot 1048576/],
    [
      'that starts a call in a slot which has one',
      { slot: 0, start: startOf('b') },
      /slot 0 has a call, which has not ended yet/,
    ],
  ];
  test.each(cases)('%s ends the stream with `invalid_request`, and its sessions (R2)', async (_name, message, why) => {
    const { requests, replies, signals } = servedOf();
    requests.push({ slot: 0, start: startOf('a') });
    requests.push(message);
    await assert.rejects(
      replies(),
      (error) => error instanceof Failure && error.code === 'invalid_request' && why.test(error.message),
    );
    assert.deepEqual(
      signals.map(({ aborted }) => aborted),
      [true],
    );
  });

  test('about a slot without a call ignores it: it has crossed the end of the call', async () => {
    const { requests, replies, outputs } = servedOf();
    for (const slot of [0, 5, 1 << 20]) {
      requests.push({ slot, cancel: {} });
      requests.push({ slot, giveUp: { round: 1 } });
    }
    requests.push({ slot: 1, start: startOf('a') });
    await until('a call that follows is served', () => outputs.length === 1);
    requests.end();
    assert((await replies()).done);
  });
});

describe('a call ends', () => {
  test('at its deadline, also when its router does not end it', async () => {
    // The deadline has come at once.
    const { requests, replies, signals } = servedOf({ ...systemClock, sleep: () => Promise.resolve() });
    const start = startOf('a');
    requests.push({ slot: 0, start: { ...start, context: { ...start.context, timeoutMs: PATIENCE_MS } as never } });
    const [event] = (await nextOf(replies))?.events ?? [];
    assert.deepEqual([event?.slot, event?.failure?.code], [0, 'deadline_exceeded']);
    assert(signals[0]?.aborted);
    requests.end();
  });

  test('with the stream that its router closes', async () => {
    const { sessions, router, call } = worldOf();
    const told = call('a');
    await until('it is served', () => sessions.length === 1);
    router.close();
    await until('it has ended', () => told.failure !== undefined && sessions[0]?.signal.aborted === true);
    assert.equal(told.failure?.code, 'instance_lost');
  });

  test('by itself where its instance drains, whose stream ends after it; a later stream ends when its call does', async () => {
    const { requests, replies, outputs, server } = servedOf();
    requests.push({ slot: 0, start: startOf('a') });
    await until('it is served', () => outputs.length === 1);
    server.close();
    outputs[0]?.token(sampled(1), 'stop', undefined);
    assert.equal((await nextOf(replies))?.finishes.length, 1);
    assert((await replies()).done);
    const world = worldOf();
    world.server.close();
    const told = world.call('late');
    await until('it has ended', () => told.failure !== undefined);
    assert.equal(told.failure?.retry, 'elsewhere');
  });
});

test('messages carry log-probabilities and reports of their tokens, also over the greatest number of values', () => {
  const report = { cachedTokens: 3, links: [] } as never;
  const writer = new ReplyWriter();
  const rich: SampledMessage = {
    token: 8,
    position: 1,
    logprob: [-0.5],
    topTokens: Array.from({ length: 20 }, (_, i) => i),
    topLogprobs: Array.from({ length: 20 }, (_, i) => -i),
  };
  const numTokens = 10_000;
  for (let slot = 0; slot < numTokens; slot++)
    writer.onToken(slot, slot % 2 === 0 ? rich : sampled(1), undefined, report);
  const heard: number[] = [];
  const listener: ReplyListener = {
    onMissing: () => assert.fail(),
    onPrompt: () => assert.fail(),
    onPrefill: () => assert.fail(),
    onFailure: () => assert.fail(),
    onToken: (slot, token, finish, told) => {
      assert.deepEqual([token, finish, told], [slot % 2 === 0 ? rich : sampled(1), undefined, report]);
      heard.push(slot);
    },
  };
  const reader = new ReplyReader(listener);
  let numMessages = 0;
  for (let replies = writer.take(); replies; replies = writer.take()) {
    assert(unpackTokens(replies.slots).length > 0);
    reader.read(replies);
    numMessages++;
  }
  assert(numMessages > 1, `${numMessages} messages`);
  assert.deepEqual(
    heard,
    Array.from({ length: numTokens }, (_, slot) => slot),
  );
});

/** One fetch as a state machine: every state of a block, and every event in it. Budget: 5 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { Failure } from '../../shared/base/failure.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { FRAME_HEADER_BYTES } from '../../shared/kv/kv_spec.ts';
import type { Arrived, FetchAction, FetchEvent } from '../../shared/net/fetch/fetch_events.ts';
import { FetchMachine } from '../../shared/net/fetch/fetch_machine.ts';
import { readyOf, fetchAheadOf } from '../../shared/net/fetch/transfer_bounds.ts';
import { frameIdOf } from '../../shared/net/transfer_thread/channel_messages.ts';
import { noFrame, type FetchReply } from '../../shared/protocol/messages.ts';
import { evenSpec } from '../support/kv.ts';

const spec = evenSpec({ numLayers: 3, blockSize: 4, payloadBytes: 300_000 });
const BYTES = spec.slotBytes;
const NUM_FRAMES = spec.frames.length;
const NUM_BLOCKS = 8;
const hashes = chainOf(
  'cd'.repeat(16) as Digest,
  4,
  Array.from({ length: 4 * NUM_BLOCKS }, (_, i) => i),
);

function machine({ ahead = 4, hasChannel = true, wanted = [...spec.frames.keys()] } = {}): FetchMachine {
  return new FetchMachine({
    address: 'holder:1',
    hashes,
    slotBytes: BYTES,
    frames: spec.frames,
    wanted,
    hasChannel,
    ahead: () => ahead,
  });
}

const NOTHING = Buffer.alloc(0);

/** Records [index, index + numReady) lie ready. */
function ready(index: number, numReady = 1, totalBytes = BYTES): FetchEvent {
  return { kind: 'reply', reply: { index, offset: 0, totalBytes, data: NOTHING, numReady, ...noFrame } };
}

function slice(index: number, offset: number, bytes: number, totalBytes = BYTES): FetchEvent {
  return {
    kind: 'reply',
    reply: { index, offset, totalBytes, data: Buffer.alloc(bytes), numReady: 0, ...noFrame },
  };
}

/** Frame `frame` of records [index, index + count). */
function frameOf(index: number, frame: number, count = 1, more: Partial<FetchReply> = {}): FetchEvent {
  const frameHeaders = Buffer.alloc(count * FRAME_HEADER_BYTES);
  const reply = {
    index,
    offset: 0,
    totalBytes: BYTES,
    data: NOTHING,
    numReady: count,
    frame: frame + 1,
    frameHeaders,
    numFromDisk: 0,
  };
  return { kind: 'reply', reply: { ...reply, ...more } };
}

function slots(...some: number[]): FetchEvent {
  return { kind: 'slots', slots: some };
}

function arrived(...indices: number[]): FetchEvent {
  return { kind: 'arrived', indices, faults: indices.map(() => undefined), way: 'socket' };
}

const lost = new Failure('session_broken', 'the data channel is lost');
const broken: FetchEvent = { kind: 'broken', error: lost };
const ended: FetchEvent = { kind: 'ended' };

/** Describes each request of the actions: the way, the records and the slots, or a slice's offset and length. */
function asks(actions: readonly FetchAction[]): unknown[] {
  return actions.map((action) => {
    if (action.kind === 'slice') return ['slice', action.offset, action.data.length];
    return [action.over, action.records.indices, action.records.slots];
  });
}

/** Reads everything that has arrived. */
function readAll(one: FetchMachine): Arrived[] {
  const all: Arrived[] = [];
  for (let next = one.read(); next; next = one.read()) all.push(next);
  return all;
}

/**
 * Returns the effect of one event on block 0: the new state ('·' when unchanged) with the actions, `refused` for a Failure, or `never`
 * for an assertion.
 */
function after(to: readonly FetchEvent[], numRead: number, event: FetchEvent | 'read'): string {
  const one = machine();
  for (const step of to) one.on(step);
  for (let i = 0; i < numRead; i++) one.read();
  const before = one.stateOf(0);
  try {
    const read = event === 'read' ? one.read() : undefined;
    const actions = event === 'read' ? [] : one.on(event);
    const done = actions.map((action) => (action.kind === 'slice' ? 'copies' : `asks over the ${action.over}`));
    if (read) done.push('hands it on');
    const now = one.stateOf(0);
    return [now === before ? '·' : now, ...done].join(' ');
  } catch (error) {
    if (error instanceof Failure) return 'refused';
    assert(error instanceof assert.AssertionError);
    return 'never';
  }
}

describe('every event in every state of a block', () => {
  const first = frameIdOf(0, 0);
  const last = frameIdOf(0, NUM_FRAMES - 1);
  const events = {
    ready: ready(0),
    nextReady: ready(1),
    overNextReady: ready(2),
    firstFrame: frameOf(0, 0),
    secondFrame: frameOf(0, 1),
    firstSlice: slice(0, 0, 100),
    nextSlice: slice(0, 100, 50),
    slot: slots(128),
    comes: arrived(0),
    firstFrameComes: arrived(first),
    lastFrameComes: arrived(last),
    anotherComes: arrived(5),
    callEnds: ended,
    channelBreaks: broken,
    read: 'read',
  } as const;
  type Row = Partial<Record<keyof typeof events, string>>;
  /** Events that a holder must not send in this state. */
  const refused: Row = {
    ready: 'refused',
    nextReady: 'refused',
    overNextReady: 'refused',
    firstFrame: 'refused',
    secondFrame: 'refused',
    firstSlice: 'refused',
    nextSlice: 'refused',
    slot: 'never',
  };
  const wholeRecord = [ready(0), slots(64)];
  const framed = [frameOf(0, 0), slots(64)];
  /** Expected effect of each event, by state; an event without an entry leaves the state unchanged. */
  const table: Record<string, { to: readonly FetchEvent[]; numRead?: number; row: Row }> = {
    asked: {
      to: [],
      row: {
        ...refused,
        ready: 'promised',
        firstFrame: 'promised',
        firstSlice: 'promised copies',
        channelBreaks: 'lost',
      },
    },
    'asked, its call over': { to: [ended], row: refused },
    promised: {
      to: [ready(0)],
      row: { ...refused, nextReady: '·', slot: 'arriving asks over the channel', channelBreaks: 'lost' },
    },
    'promised, over the call': {
      to: [slice(0, 0, BYTES)],
      row: { ...refused, nextReady: '·', slot: 'arriving asks over the call', channelBreaks: 'lost' },
    },
    arriving: { to: wholeRecord, row: { ...refused, nextReady: '·', comes: 'received', channelBreaks: 'lost' } },
    'arriving over the call': {
      to: [slice(0, 0, BYTES), slots(64)],
      row: { ...refused, nextReady: '·', comes: 'received', channelBreaks: 'lost' },
    },
    'arriving over the call, the first of it here': {
      to: [slice(0, 0, 100), slots(64)],
      row: { ...refused, nextSlice: '· copies', comes: 'received', callEnds: 'lost', channelBreaks: 'lost' },
    },
    'arriving in frames': {
      to: framed,
      row: { ...refused, secondFrame: '· asks over the channel', callEnds: 'lost', channelBreaks: 'lost' },
    },
    'arriving in frames, one of them here': {
      to: [...framed, arrived(first)],
      row: {
        ...refused,

        secondFrame: '· asks over the channel',
        callEnds: 'lost',
        channelBreaks: 'lost',
        read: '· hands it on',
      },
    },
    'arriving in frames, all but the last read': {
      to: [...framed, frameOf(0, 1), frameOf(0, 2), arrived(first, frameIdOf(0, 1))],
      numRead: 2,
      row: { ...refused, nextReady: '·', lastFrameComes: 'received', channelBreaks: 'lost' },
    },
    received: { to: [...wholeRecord, arrived(0)], row: { ...refused, nextReady: '·', read: 'delivered hands it on' } },
    delivered: { to: [...wholeRecord, arrived(0)], numRead: 1, row: { ...refused, nextReady: '·' } },
    // A broken fetch ignores all further events.
    lost: { to: [...wholeRecord, broken], row: {} },
  };
  const cases = Object.entries(table).flatMap(([state, { to, numRead = 0, row }]) =>
    Object.entries(events).map(([name, event]) => ({
      state,
      name,
      to,
      numRead,
      event,
      want: new Map(Object.entries(row)).get(name) ?? '·',
    })),
  );
  test.each(cases)('$state, $name: $want', ({ to, numRead, event, want }) => {
    assert.equal(after(to, numRead, event), want);
  });
});

test('records that lie ready are asked for together, with the slots that there are at once', () => {
  const one = machine();
  assert.deepEqual(one.on(ready(0, 6)), []);
  assert.equal(one.numWanted, 4);
  assert(!one.isReading, 'whoever has no slot keeps the call from being read');
  assert.deepEqual(asks(one.on(slots(0, 64, 128))), [['channel', [0, 1, 2], [0, 64, 128]]]);
  assert.deepEqual(asks(one.on(slots(192))), [['channel', [3], [192]]]);
  assert.equal(one.numWanted, 0, 'the window is full');
  one.on(arrived(0, 1));
  one.read();
  assert.equal(one.numWanted, 0, 'it is filled again when half of it was read');
  one.read();
  assert.equal(one.numWanted, 2);
  one.on(slots(0, 64));
  assert(one.isReading);
  one.on(arrived(2, 3, 4, 5));
  one.on(ended);
  assert.deepEqual(
    readAll(one).map(({ index }) => index),
    [2, 3, 4, 5],
  );
  assert.equal(one.front, 'over');
});

test('frames of blocks that grow: whoever has a slot goes on, one that gets it later has all that are there by then', () => {
  const one = machine({ ahead: 1 });
  assert.deepEqual(asks(one.on(frameOf(0, 0, 2))), []);
  assert(one.isReading, 'nothing waits for slots');
  assert.deepEqual(asks(one.on(slots(0))), [['channel', [frameIdOf(0, 0)], [0]]]);
  assert.deepEqual(asks(one.on(frameOf(0, 1, 2))), [['channel', [frameIdOf(0, 1)], [0]]]);
  assert.deepEqual(asks(one.on(slots(64))), [
    ['channel', [frameIdOf(1, 0)], [64]],
    ['channel', [frameIdOf(1, 1)], [64]],
  ]);
  assert.deepEqual(asks(one.on(frameOf(0, 2, 2))), [['channel', [frameIdOf(0, 2), frameIdOf(1, 2)], [0, 64]]]);
  // Frames may come in any order; a block is complete with the last of them.
  for (const frame of [2, 1, 0]) one.on(arrived(frameIdOf(0, frame)));
  assert.deepEqual([one.stateOf(0), one.stateOf(1)], ['received', 'arriving']);
  assert.deepEqual(
    [one.read(), one.read()].map((read) => [read?.frame, read?.isLast]),
    [
      [0, false],
      [1, false],
    ],
  );
  assert.equal(one.front, 'coming', 'block 1 was asked for before the last frame of block 0');
  for (const frame of [0, 1, 2]) one.on(arrived(frameIdOf(1, frame)));
  one.on(ended);
  assert.deepEqual(
    readAll(one).map(({ index, frame, isLast }) => [index, frame, isLast]),
    [
      [1, 0, false],
      [1, 1, false],
      [0, 2, true],
      [1, 2, true],
    ],
  );
  assert.equal(one.front, 'over');
});

test('what is there before it breaks is read, and the slots of the rest are given back', () => {
  const one = machine();
  one.on(ready(0, 3));
  one.on(slots(0, 64, 128));
  one.on(arrived(0, 2));
  one.on(broken);
  assert.equal(one.read()?.index, 0);
  assert.throws(() => one.front, lost);
  assert.deepEqual(
    [0, 1, 2, 3].map((index) => one.stateOf(index)),
    ['delivered', 'lost', 'received', 'lost'],
  );
  assert.equal(one.numWanted, 0);
  assert.deepEqual(one.on(arrived(1)), [], 'what comes later is nobody’s');
  assert.deepEqual(one.leave(), [64, 128]);
  assert.deepEqual(one.leave(), []);
});

test('a call that ends in the middle of a block or of a record has broken', () => {
  for (const [begun, what] of [
    [frameOf(0, 0), /in the middle of a block/],
    [slice(0, 0, 100), /in the middle of a record/],
  ] as const) {
    const one = machine();
    one.on(begun);
    one.on(ended);
    assert.throws(() => one.front, what);
  }
});

test.each([
  ['more records than may lie ready', ready(0, readyOf(BYTES) + 1)],
  ['more records than were asked for', ready(0, NUM_BLOCKS + 1)],
  ['a record that no slot has room for', ready(0, 1, BYTES + 1)],
  ['an empty record', ready(0, 1, 0)],
  ['a slice after the end of its record', slice(0, 0, BYTES + 1)],
  ['an empty slice', slice(0, 0, 0)],
  ['a slice of a record that no slot has room for', slice(0, 0, 10, BYTES + 1)],
  ['frames of no block', frameOf(0, 0, 0)],
  ['frames of more blocks than may grow', frameOf(0, 0, fetchAheadOf(BYTES) + 1)],
  ['a frame that no record has', frameOf(0, NUM_FRAMES)],
  ['a frame with half a header', frameOf(0, 0, 1, { frameHeaders: Buffer.alloc(FRAME_HEADER_BYTES / 2) })],
])('%s is refused', (_what, event) => {
  assert.throws(() => machine().on(event), /holder:1 sent .* not the next one/);
});

test('without a data channel nothing lies ready, and records come in slices', () => {
  const one = machine({ hasChannel: false });
  assert.throws(() => one.on(ready(0)), Failure);
  assert.throws(() => one.on(frameOf(0, 0)), Failure);
  assert.deepEqual(asks(one.on(slice(0, 0, 100))), [['slice', 0, 100]]);
  assert(!one.isReading);
  assert.deepEqual(asks(one.on(slots(64))), [['call', [0], [64]]]);
  assert(one.isReading);
  assert.deepEqual(asks(one.on(slice(0, 100, BYTES - 100))), [['slice', 100, BYTES - 100]]);
  one.on(arrived(0));
  assert.equal(one.read()?.isLast, true);
});

test('what breaks after the last block is no failure, and what was told before is kept', () => {
  const one = machine();
  one.on(ready(0, NUM_BLOCKS));
  while (one.numWanted > 0) {
    const given = Array.from({ length: one.numWanted }, (_, i) => 64 * i);
    one.on(slots(...given));
    one.on(arrived(...hashes.keys()));
    readAll(one);
  }
  assert.equal(one.front, 'waiting');
  one.on(broken);
  assert.equal(one.front, 'over');
  const short = machine();
  short.on(ready(0));
  short.on(slots(0));
  short.on(arrived(0));
  short.on(ended);
  short.on(broken);
  assert.equal(short.read()?.index, 0);
  assert.equal(short.front, 'over', 'its holder has no more, and has said so');
});

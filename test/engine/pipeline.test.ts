/**
 * One prompt whose chunks two engines compute by turns, each step after the other's frames as they come: the blocks of both are bit for bit
 * those of an engine by itself (E2). The loops of two engines on the wasm device, a model of three layers, a frame each. Budget: 20 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Executable, RunOptions } from '../../kernels/device.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { Random } from '../../shared/base/random.ts';
import type { BlockRange } from '../../shared/engine/awaited_ranges.ts';
import { EngineLoop } from '../../shared/engine/engine_loop.ts';
import type { LoopEvent, ToEngine } from '../../shared/engine/engine_messages.ts';
import { loadModel, type LoadedModel } from '../../shared/engine/load_model.ts';
import { chainOf, type AnchoredHash, type BlockKey } from '../../shared/kv/block_key.ts';
import { Slab, slotBytes, slotLength } from '../../shared/kv/slab.ts';
import { goldenFolder } from '../support/golden.ts';
import { generate, greedy, loadDefaults } from '../support/reference_loop.ts';
import { sequenceRequest, type TestSequence } from '../support/request.ts';
import { turn, until } from '../support/until.ts';

const BLOCK_SIZE = 32;
/** Blocks of a chunk, which is one step, and chunks of the prompt; its tail has seven tokens. */
const [CHUNK, NUM_CHUNKS, TAIL] = [2, 7, 7];
const NUM_BLOCKS = CHUNK * NUM_CHUNKS;
const NUM_NEW = 4;
const NUM_SLOTS = 64;
const prompt = Array.from({ length: NUM_BLOCKS * BLOCK_SIZE + TAIL }, (_, i) => 3 + ((i * 37) % 200));

/** Two engines, each with the memory of a device of its own. */
let models: readonly [LoadedModel, LoadedModel];
let want: readonly number[];
let hashes: readonly AnchoredHash[];
/** Every block's payload, as an engine by itself computes it. */
let payloads: Uint8Array[];

beforeAll(async () => {
  const load = (): Promise<LoadedModel> =>
    loadModel({
      ...loadDefaults,
      modelPath: goldenFolder('llama-odd'),
      numBlocks: 40,
      blockSize: BLOCK_SIZE,
      minFrameBytes: 1,
    });
  models = [await load(), await load()];
  const [{ executable, layout }] = models;
  want = (await generate(executable, prompt, greedy, NUM_NEW)).map(({ token }) => token);
  hashes = chainOf(layout.format, BLOCK_SIZE, prompt);
  const alone = new Member(models[0]);
  alone.submit({});
  await until('it is computed', () => alone.of('prefilled').length === 1);
  payloads = await alone.blocks();
  await alone.close();
});
afterAll(async () => {
  for (const { executable } of models) await executable.close();
});

/** Chunks [0, n) that are those of the first, the second engine by turns, as ranges of blocks. */
const chunksOf = (first: number, step = 2): BlockRange[] =>
  Array.from({ length: NUM_CHUNKS }, (_, i) => ({ start: i * CHUNK, end: (i + 1) * CHUNK })).filter(
    (_, i) => i % step === first,
  );

/** Blocks, by frame or whole, that are on their way to a reader, which gets them when and in which order the test says. */
interface OnItsWay {
  readonly block: number;
  readonly frame: number | undefined;
  readonly bytes: Uint8Array;
}

/** An engine's loop, its host memory, and what it did. */
class Member {
  readonly loop: EngineLoop;
  readonly events: LoopEvent[] = [];
  readonly sections: RunOptions['section'][] = [];
  readonly rows: number[] = [];
  /** The device is not done with a step before; called with the number of steps begun. */
  held: (numRuns: number) => Promise<void> | undefined = () => undefined;
  /** Called with each frame and record that leaves. */
  onLeft: (sent: OnItsWay) => void = () => undefined;
  readonly #model: LoadedModel;
  readonly #slab: Slab;
  readonly #free: number[];
  readonly #early = new Set<BlockKey>();
  readonly #ended: Promise<void>;

  constructor(model: LoadedModel, numPoolBlocks = 40) {
    this.#model = model;
    const { executable, layout } = model;
    const bytes = layout.spec.slotBytes;
    this.#slab = new Slab(NUM_SLOTS * slotLength(bytes));
    this.#free = Array.from({ length: NUM_SLOTS }, () => this.#slab.allocate(bytes)!);
    const spied: Executable = Object.create(executable, {
      run: {
        value: async (...[batch, options]: Parameters<Executable['run']>) => {
          this.sections.push(options?.section);
          for (const { tokens } of batch) this.rows.push(tokens.length);
          const results = await executable.run(batch, options);
          await this.held(this.sections.length);
          return results;
        },
      },
    }) as Executable;
    for (const name of ['exportBlocks', 'importBlocks', 'copyBlocks', 'writeSamplerPage', 'rowSampler'] as const)
      Object.defineProperty(spied, name, { value: executable[name].bind(executable) });
    for (const name of ['sampling', 'blockBytes', 'hiddenWidth', 'numAhead', 'maxRowsNow', 'numExportable'] as const)
      Object.defineProperty(spied, name, { get: () => executable[name] });
    this.loop = new EngineLoop({
      executable: spied,
      layout,
      numBlocks: numPoolBlocks,
      maxWaiting: 8,
      chunkTokens: CHUNK * BLOCK_SIZE,
      maxNumSeqs: 4,
      stepMs: 0,
      clock: systemClock,
      heartbeat: new Int32Array(2),
      emit: (message) => {
        if (message.kind === 'events') for (const event of message.events) this.#receive(event);
      },
    });
    this.send({ kind: 'attach', slab: this.#slab.memory });
    this.send({ kind: 'grant', slots: this.#free.splice(0, 16) });
    this.#ended = this.loop.run();
  }

  send(message: ToEngine): void {
    this.loop.receive(message);
  }

  of<K extends LoopEvent['kind']>(kind: K): Extract<LoopEvent, { kind: K }>[] {
    return this.events.filter((event): event is never => event.kind === kind);
  }

  #payload(slot: number, frame?: number): Uint8Array {
    const { preambleBytes, payloadBytes, frames } = this.#model.layout.spec;
    const { offset, rawBytes } = frame === undefined ? { offset: 0, rawBytes: payloadBytes } : frames[frame]!;
    return slotBytes(this.#slab.memory, slot + preambleBytes + offset, rawBytes);
  }

  #receive(event: LoopEvent): void {
    this.events.push(event);
    const blockOf = ({ key }: { readonly key: BlockKey }): number => hashes.findIndex((hash) => hash.key === key);
    if (event.kind === 'consumed') this.#free.push(event.slot);
    if (event.kind === 'frame') {
      for (const { hash, slot } of event.blocks) {
        this.#early.add(hash.key);
        const bytes = Uint8Array.from(this.#payload(slot, event.frame));
        this.onLeft({ block: blockOf(hash), frame: event.frame, bytes });
      }
    }
    if (event.kind === 'exported') {
      const { hash, slot } = event;
      if (!this.#early.delete(hash.key))
        this.onLeft({ block: blockOf(hash), frame: undefined, bytes: Uint8Array.from(this.#payload(slot)) });
      this.send({ kind: 'grant', slots: [slot] });
    }
  }

  /** Puts a frame or a record into host memory, for the sequence `id`. */
  deliver({ block, frame, bytes }: OnItsWay, id = 1): void {
    const slot = this.#free.pop();
    assert(slot !== undefined, 'a slot is free');
    this.#payload(slot, frame).set(bytes);
    this.send({ kind: 'deliver', id, blockIndex: block, slot, frame, origin: 'handoff', isEarly: false });
  }

  submit(more: Partial<TestSequence>): void {
    const { format: root } = this.#model.layout;
    const kind = more.kind ?? 'prefill';
    const maxLength = prompt.length + (kind === 'prefill' ? 0 : NUM_NEW);
    this.loop.submit(sequenceRequest({ id: 1, kind, root, tokens: prompt, maxLength, ...more }));
  }

  /** Resolves when no more happens. */
  async isIdle(): Promise<void> {
    let seen = -1;
    await until('nothing happens', () => {
      const isSame = seen === this.events.length + this.sections.length;
      seen = this.events.length + this.sections.length;
      return isSame;
    });
  }

  /** Returns the payload of every block of the prompt that the device has under its hash. */
  async blocks(): Promise<Uint8Array[]> {
    const outs = hashes.map(() => new Uint8Array(this.#model.layout.spec.payloadBytes));
    const isHeld = await this.loop.engine.exportTo(hashes.map((hash, i) => ({ hash, out: outs[i]! })));
    assert(isHeld.every(Boolean), `blocks ${isHeld.flatMap((held, i) => (held ? [] : [i])).join()} are not there`);
    return outs;
  }

  async close(): Promise<void> {
    this.send({ kind: 'stop' });
    await this.#ended;
    this.loop.engine.pool.checkIntegrity();
  }
}

async function expectSame(member: Member): Promise<void> {
  (await member.blocks()).forEach((payload, block) => {
    expect(Buffer.compare(payload, payloads[block]!), `block ${block}`).toBe(0);
  });
}

/** Delivers what leaves `from` for the awaited ranges of `to`, in random order and late. Returns what ends that. */
function connect(from: Member, to: Member, awaited: readonly BlockRange[], random: Random): () => void {
  const inRange = (block: number): BlockRange | undefined =>
    awaited.find(({ start, end }) => start <= block && block < end);
  const own = hashes.filter((_, block) => inRange(block));
  from.send({ kind: 'await', keys: own.map(({ key }) => key), isOn: true });
  const missing = new Map(awaited.map((range) => [range, (range.end - range.start) * 3]));
  const waiting: OnItsWay[] = [];
  let isOpen = true;
  const pump = (): void => {
    if (!isOpen) return;
    for (let i = random.below(4); i > 0 && waiting.length > 0; i--) {
      const [sent] = waiting.splice(random.below(waiting.length), 1);
      const range = inRange(sent!.block)!;
      to.deliver(sent!);
      missing.set(range, missing.get(range)! - (sent!.frame === undefined ? 3 : 1));
      if (missing.get(range) === 0) to.send({ kind: 'arrived', id: 1, ...range });
    }
    // eslint-disable-next-line time/speed -- the order of what comes is drawn, whatever time it takes
    setTimeout(pump, random.below(4));
  };
  from.onLeft = (sent) => {
    if (inRange(sent.block)) waiting.push(sent);
  };
  pump();
  return () => {
    isOpen = false;
  };
}

/** Frames of a block as they are sent, of an engine by itself. */
function framesOf(block: number): OnItsWay[] {
  return models[0].layout.spec.frames.map(({ offset, rawBytes }, frame) => {
    return { block, frame, bytes: payloads[block]!.subarray(offset, offset + rawBytes) };
  });
}

const blocksOf = ({ start, end }: BlockRange): number[] => Array.from({ length: end - start }, (_, i) => start + i);

test('chunks of two engines by turns, whose frames come in any order and late: both have the blocks of one', async () => {
  for (let seed = 1; seed <= 12; seed++) {
    const random = new Random(seed);
    const [a, b] = [new Member(models[0]), new Member(models[1])];
    const [ofA, ofB] = [chunksOf(0), chunksOf(1)];
    const ends = [connect(a, b, ofA, random), connect(b, a, ofB, random)];
    const submit = [
      (): void => a.submit({ isFetching: true, awaited: ofB }),
      (): void => b.submit({ isFetching: true, awaited: ofA }),
    ];
    for (const one of seed % 2 === 0 ? submit : submit.reverse()) one();
    await until('both are computed', () => [a, b].every((one) => one.of('prefilled').length === 1));
    for (const end of ends) end();
    const [numA, numB] = [ofA, ofB].map((own) => own.length * CHUNK * BLOCK_SIZE);
    const reports = [a, b].map((one) => one.of('prefilled')[0]!.report);
    expect(reports.map(({ computedTokens, fetchedTokens }) => [computedTokens, fetchedTokens])).toEqual([
      [numA, numB],
      [numB, numA],
    ]);
    for (const one of [a, b]) await expectSame(one);
    a.submit({ id: 2, kind: 'decode' });
    await until('it has ended', () => a.of('token').length === NUM_NEW);
    expect(a.of('token').map(({ sampled }) => sampled.token)).toEqual(want);
    expect(a.rows.slice(-NUM_NEW)[0], 'the prompt is there').toBe(TAIL);
    for (const one of [a, b]) await one.close();
  }
});

test('every step of a range is computed layer by layer, as frames of the range before it come', async () => {
  const b = new Member(models[1]);
  const ofA = chunksOf(0);
  b.submit({ isFetching: true, awaited: ofA });
  await until('it is admitted', () => b.of('admitted').length === 1);
  for (const range of ofA) {
    b.sections.length = 0;
    const frames = blocksOf(range).map(framesOf);
    for (const of of frames) b.deliver(of[0]!);
    await b.isIdle();
    const isLast = range.end === NUM_BLOCKS;
    assert.deepEqual(b.sections, isLast ? [] : [{ from: undefined, until: 1 }], 'layers after the first frame');
    // A later range's frames may come before this one's: they wait.
    for (const of of frames) b.deliver(of[2]!);
    await b.isIdle();
    assert.equal(b.sections.length, isLast ? 0 : 1);
    for (const of of frames) b.deliver(of[1]!);
    await b.isIdle();
    assert.deepEqual(b.sections.slice(1), isLast ? [] : [{ from: 1, until: undefined }]);
  }
  assert.equal(b.of('prefilled').length, 1, 'its last block is another’s');
  await expectSame(b);
  await b.close();
});

test('the other one dies midway: the rest is computed here', async () => {
  for (const numArrived of [0, 1, 5, 8, 13, 20]) {
    const b = new Member(models[1]);
    const ofA = chunksOf(0);
    b.submit({ isFetching: true, awaited: ofA });
    await until('it is admitted', () => b.of('admitted').length === 1);
    const frames = ofA.flatMap(blocksOf).flatMap(framesOf).slice(0, numArrived);
    for (const frame of frames) b.deliver(frame);
    await b.isIdle();
    assert.equal(b.of('prefilled').length, 0);
    b.send({ kind: 'proceed', id: 1 });
    await until('it is computed', () => b.of('prefilled').length === 1);
    const numWhole = Math.floor(numArrived / 3);
    const { computedTokens, fetchedTokens } = b.of('prefilled')[0]!.report;
    expect([computedTokens, fetchedTokens]).toEqual([(NUM_BLOCKS - numWhole) * BLOCK_SIZE, numWhole * BLOCK_SIZE]);
    await expectSame(b);
    await b.close();
  }
});

test('a block that a range came without is computed, and later ranges are awaited as before', async () => {
  const b = new Member(models[1]);
  const [first, ...others] = chunksOf(0);
  b.submit({ isFetching: true, awaited: [first!, ...others] });
  await until('it is admitted', () => b.of('admitted').length === 1);
  for (const frame of framesOf(0)) b.deliver(frame);
  b.send({ kind: 'arrived', id: 1, ...first! });
  await b.isIdle();
  // The second block of the first chunk, and the second chunk.
  expect(b.rows).toEqual([(1 + CHUNK) * BLOCK_SIZE].flatMap((rows) => [CHUNK * BLOCK_SIZE, rows - CHUNK * BLOCK_SIZE]));
  for (const range of others) {
    for (const frame of blocksOf(range).flatMap(framesOf)) b.deliver(frame);
    b.send({ kind: 'arrived', id: 1, ...range });
    await b.isIdle();
  }
  await until('it is computed', () => b.of('prefilled').length === 1);
  await expectSame(b);
  await b.close();
});

test('blocks that come while a step runs count when it has ended', async () => {
  const b = new Member(models[1]);
  const range = { start: 2 * CHUNK, end: NUM_BLOCKS };
  const release: (() => void)[] = [];
  b.held = () => new Promise((resolve) => release.push(resolve));
  b.submit({ isFetching: true, awaited: [range] });
  await until('its first step runs', () => release.length === 1);
  for (const block of blocksOf(range)) b.deliver({ block, frame: undefined, bytes: payloads[block]! });
  release[0]!();
  await until('its second step runs', () => release.length === 2);
  await until('all is in the device', () => b.loop.engine.pool.numKeyed === CHUNK + range.end - range.start);
  release[1]!();
  await until('it is computed', () => b.of('prefilled').length === 1);
  await expectSame(b);
  await b.close();
});

test('with others that compute, a range is one step like any other, when all before it is there', async () => {
  const b = new Member(models[1]);
  const other = prompt.slice(40, 50);
  b.submit({ id: 2, kind: 'decode', tokens: other, promptLength: other.length, maxLength: other.length + 120 });
  const ofA = chunksOf(0);
  b.submit({ isFetching: true, awaited: ofA });
  for (const range of ofA) {
    await until('it is admitted', () => b.of('admitted').length === 2);
    for (const frame of blocksOf(range).flatMap(framesOf)) b.deliver(frame);
    await turn();
  }
  await until('both have ended', () => b.of('prefilled').length === 1 && b.of('token').length === 120);
  await expectSame(b);
  await b.close();
});

test('one that is preempted leaves the pipeline: what comes afterwards is not taken, and all is computed', async () => {
  const b = new Member(models[1], 20);
  const ofA = chunksOf(0);
  const other = prompt.slice(40, 50);
  b.submit({ id: 2, kind: 'decode', tokens: other, promptLength: other.length, maxLength: other.length + 250 });
  b.submit({ isFetching: true, awaited: ofA });
  await until('it is admitted', () => b.of('admitted').length === 2);
  for (const frame of blocksOf(ofA[0]!).flatMap(framesOf)) b.deliver(frame);
  await until('it is preempted', () => b.of('preempted').length === 1);
  await until('it is admitted again', () => b.of('admitted').length === 3);
  for (const frame of blocksOf(ofA[1]!).flatMap(framesOf)) b.deliver(frame);
  await until('it is computed', () => b.of('prefilled').length === 1);
  const numDelivered = 2 * CHUNK * 3;
  await until('every slot came back', () => b.of('consumed').length === numDelivered);
  await expectSame(b);
  await b.close();
});

test('one that is cancelled while it waits for a frame leaves no block used and no slot behind', async () => {
  const b = new Member(models[1]);
  b.submit({ isFetching: true, awaited: chunksOf(0) });
  await until('it is admitted', () => b.of('admitted').length === 1);
  for (const block of [0, 1]) b.deliver(framesOf(block)[0]!);
  await b.isIdle();
  b.send({ kind: 'cancel', id: 1 });
  b.deliver(framesOf(0)[1]!);
  await until('every slot came back', () => b.of('consumed').length === 3);
  const { pool } = b.loop.engine;
  expect(Array.from({ length: 40 }, (_, block) => pool.isUsed(block)).some(Boolean)).toBe(false);
  await b.close();
});

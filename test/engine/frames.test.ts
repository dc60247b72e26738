/**
 * Blocks leave layer by layer while a step computes them, and come so: the loop of the engine on the wasm device, a model of three layers,
 * a frame each. Budget: 10 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import type { Executable, RunOptions } from '../../kernels/device.ts';
import { systemClock } from '../../shared/base/clock.ts';
import type { LoopEvent, ToEngine } from '../../shared/engine/engine_messages.ts';
import { EngineLoop } from '../../shared/engine/engine_loop.ts';
import { loadModel, type LoadedModel } from '../../shared/engine/load_model.ts';
import { chainOf, type AnchoredHash } from '../../shared/kv/block_key.ts';
import { Slab, slotBytes, slotLength } from '../../shared/kv/slab.ts';
import { goldenFolder } from '../support/golden.ts';
import { generate, greedy, loadDefaults } from '../support/reference_loop.ts';
import { sequenceRequest, type TestSequence } from '../support/request.ts';
import { until } from '../support/until.ts';

const BLOCK_SIZE = 32;
const NUM_BLOCKS = 6;
const NUM_LAYERS = 3;
const NUM_NEW = 5;
/** Blocks before the tail, and a tail of seven. */
const prompt = Array.from({ length: NUM_BLOCKS * BLOCK_SIZE + 7 }, (_, i) => 3 + ((i * 37) % 200));

let model: LoadedModel;
let want: readonly number[];
let hashes: readonly AnchoredHash[];

beforeAll(async () => {
  model = await loadModel({
    ...loadDefaults,
    modelPath: goldenFolder('llama-odd'),
    numBlocks: 32,
    blockSize: BLOCK_SIZE,
    minFrameBytes: 1,
  });
  assert.equal(model.layout.spec.frames.length, NUM_LAYERS);
  want = (await generate(model.executable, prompt, greedy, NUM_NEW)).map(({ token }) => token);
  hashes = chainOf(model.layout.format, BLOCK_SIZE, prompt);
});
afterAll(async () => {
  await model.executable.close();
});

interface Emitted {
  readonly event: LoopEvent;
  /** Number of the loop's message that had the event; `numRuns` counts the steps begun by then. */
  readonly message: number;
  readonly numRuns: number;
}

/** A loop, its slab, and what it did. */
class Running {
  readonly notified: Emitted[] = [];
  readonly sections: RunOptions['section'][] = [];
  /** The device is not done with a step before. */
  held: Promise<void> | undefined;
  readonly slab: Slab;
  readonly slots: readonly number[];
  readonly loop: EngineLoop;
  readonly #ended: Promise<void>;
  #numMessages = 0;

  constructor(chunkTokens: number, numExportable = Infinity, numPoolBlocks = 32) {
    const { layout } = model;
    const bytes = layout.spec.slotBytes;
    this.slab = new Slab(16 * slotLength(bytes));
    this.slots = Array.from({ length: 16 }, () => this.slab.allocate(bytes)!);
    const { executable } = model;
    const { blockBytes, numBlocks, numAhead, maxRowsNow, sampling, hiddenWidth } = executable;
    const spied: Executable = {
      blockBytes,
      numBlocks,
      numAhead,
      maxRowsNow,
      sampling,
      hiddenWidth,
      numExportable,
      run: async (batch, options) => {
        this.sections.push(options?.section);
        const results = await executable.run(batch, options);
        await this.held;
        return results;
      },
      exportBlocks: (...of) => executable.exportBlocks(...of),
      importBlocks: (...of) => executable.importBlocks(...of),
      copyBlocks: (...of) => {
        executable.copyBlocks(...of);
      },
      numStateSlots: executable.numStateSlots,
      exportStates: (...of) => executable.exportStates(...of),
      importStates: (...of) => executable.importStates(...of),
      copyStates: (...of) => {
        executable.copyStates(...of);
      },
      writeSamplerPage: (...of) => {
        executable.writeSamplerPage(...of);
      },
      rowSampler: () => executable.rowSampler(),
      write: (...of) => executable.write(...of),
      read: (...of) => executable.read(...of),
      close: () => executable.close(),
    };
    this.loop = new EngineLoop({
      executable: spied,
      layout,
      numBlocks: numPoolBlocks,
      maxWaiting: 8,
      chunkTokens,
      maxNumSeqs: 4,
      stepMs: 0,
      clock: systemClock,
      heartbeat: new Int32Array(2),
      emit: (message) => {
        if (message.kind !== 'events') return;
        this.#numMessages++;
        for (const event of message.events)
          this.notified.push({ event, message: this.#numMessages, numRuns: this.sections.length });
      },
    });
    this.send({ kind: 'attach', slab: this.slab.memory });
    this.#ended = this.loop.run();
  }

  send(message: ToEngine): void {
    this.loop.receive(message);
  }

  submit(more: Partial<TestSequence> = {}): void {
    const maxLength = (more.tokens ?? prompt).length + NUM_NEW;
    this.loop.submit(sequenceRequest({ id: 1, root: model.layout.format, tokens: prompt, maxLength, ...more }));
  }

  of<K extends LoopEvent['kind']>(kind: K): (Emitted & { readonly event: Extract<LoopEvent, { kind: K }> })[] {
    return this.notified.filter((one): one is never => one.event.kind === kind);
  }

  payload(slot: number): Uint8Array {
    return slotBytes(this.slab.memory, slot + model.layout.spec.preambleBytes, model.layout.spec.payloadBytes);
  }

  tokens(id = 1): number[] {
    return this.of('token').flatMap(({ event }) => (event.id === id ? [event.sampled.token] : []));
  }

  async isIdle(): Promise<void> {
    let seen = -1;
    await until('nothing happens', () => {
      const isSame = seen === this.notified.length + this.sections.length;
      seen = this.notified.length + this.sections.length;
      return isSame;
    });
  }

  async close(): Promise<void> {
    this.send({ kind: 'stop' });
    await this.#ended;
  }
}

let source: Running;
/** Every block's payload, as an engine that waits for nobody exports it. */
let payloads: Uint8Array[];

beforeEach(async () => {
  source = new Running(64);
  source.send({ kind: 'grant', slots: source.slots });
  source.submit({ kind: 'prefill', maxLength: prompt.length });
  await until('all is exported', () => source.of('exported').length === NUM_BLOCKS);
  payloads = hashes.map(({ key }) => {
    const { event } = source.of('exported').find((one) => one.event.hash.key === key)!;
    return Uint8Array.from(source.payload(event.slot));
  });
  assert.equal(source.of('frame').length, 0, 'nobody waits');
  await source.close();
});

test('blocks that somebody waits for leave frame by frame, before the step that computes them is done', async () => {
  const engine = new Running(64);
  engine.send({ kind: 'await', keys: hashes.map(({ key }) => key), isOn: true });
  engine.send({ kind: 'grant', slots: engine.slots });
  engine.submit({ kind: 'prefill', maxLength: prompt.length });
  await until('all is exported', () => engine.of('exported').length === NUM_BLOCKS);
  const frames = engine.of('frame');
  assert.equal(frames.length, (NUM_BLOCKS / 2) * NUM_LAYERS, 'two blocks a step');
  frames.forEach(({ event, numRuns }, i) => {
    assert.equal(event.frame, i % NUM_LAYERS);
    assert.equal(numRuns, 1 + Math.floor(i / NUM_LAYERS), 'of the step that runs');
    assert.equal(event.blocks.length, 2);
  });
  assert.equal(new Set(frames.map(({ message }) => message)).size, frames.length, 'each is told at once');
  for (const { message, event } of engine.of('exported')) {
    const own = frames.filter((one) => one.event.blocks.some(({ slot }) => slot === event.slot));
    assert.equal(own.length, NUM_LAYERS);
    assert(own.every((one) => one.message < message));
    const stored = engine.of('stored').find((one) => one.event.hash.key === event.hash.key);
    assert(stored && engine.notified.indexOf(stored) < engine.notified.findIndex((one) => one.event === event));
    const block = hashes.findIndex(({ key }) => key === event.hash.key);
    expect(Buffer.compare(engine.payload(event.slot), payloads[block]!)).toBe(0);
    assert(event.anchor !== undefined, 'it is offered to its home store too');
  }
  await engine.isIdle();
  assert.equal(engine.of('exported').length, NUM_BLOCKS, 'none leaves twice');
  await engine.close();
});

test('what no slot is free for, and what a device cannot export at the same time, leaves when the step is done', async () => {
  for (const [slots, numExportable, numEarly] of [
    [1, Infinity, 1],
    [16, 1, NUM_BLOCKS / 2],
    [16, 0, 0],
  ] as const) {
    const engine = new Running(64, numExportable);
    engine.send({ kind: 'await', keys: hashes.map(({ key }) => key), isOn: true });
    engine.send({ kind: 'grant', slots: engine.slots.slice(0, slots) });
    engine.submit({ kind: 'prefill', maxLength: prompt.length });
    await until('a step is done', () => engine.of('prefilled').length === 1);
    await engine.isIdle();
    assert.equal(engine.of('frame').length, numEarly * NUM_LAYERS);
    assert.equal(engine.of('exported').length, Math.min(slots, NUM_BLOCKS));
    await engine.close();
  }
});

test('whoever waits no longer, or not any more, costs nothing', async () => {
  const engine = new Running(64);
  const keys = hashes.map(({ key }) => key);
  engine.send({ kind: 'await', keys, isOn: true });
  engine.send({ kind: 'await', keys: keys.slice(0, 2), isOn: true });
  engine.send({ kind: 'await', keys, isOn: false });
  engine.send({ kind: 'grant', slots: engine.slots });
  engine.submit({ kind: 'prefill', maxLength: prompt.length });
  await until('all is exported', () => engine.of('exported').length === NUM_BLOCKS);
  assert.deepEqual(
    new Set(engine.of('frame').flatMap(({ event }) => event.blocks.map(({ hash }) => hash.key))),
    new Set(keys.slice(0, 2)),
  );
  await engine.close();
});

test('a sequence that is cancelled while its blocks leave: they are blocks all the same', async () => {
  const engine = new Running(64);
  engine.send({ kind: 'await', keys: hashes.map(({ key }) => key), isOn: true });
  engine.send({ kind: 'grant', slots: engine.slots });
  engine.submit({ kind: 'prefill', maxLength: prompt.length });
  await until('the first frame left', () => engine.of('frame').length > 0);
  engine.send({ kind: 'cancel', id: 1 });
  await engine.isIdle();
  const numBegun = new Set(engine.of('frame').flatMap(({ event }) => event.blocks.map(({ slot }) => slot))).size;
  assert.equal(engine.of('exported').length, numBegun, 'each slot comes back');
  await engine.close();
});

/** A sequence that has its device blocks, and waits for what is in them. */
async function loading(engine: Running): Promise<void> {
  engine.submit({ isFetching: true });
  await until('it is admitted', () => engine.of('admitted').length > 0);
}

/** Frame `frame` of these blocks. */
function deliver(engine: Running, frame: number, blocks: readonly number[], id = 1): void {
  for (const block of blocks) {
    const { offset, rawBytes: bytes } = model.layout.spec.frames[frame]!;
    const slot = engine.slots[block]!;
    engine.payload(slot).set(payloads[block]!.subarray(offset, offset + bytes), offset);
    engine.send({ kind: 'deliver', id, blockIndex: block, slot, frame, origin: 'instance', isEarly: false });
  }
}

const all = Array.from({ length: NUM_BLOCKS }, (_, i) => i);

test('the first step of a sequence is computed as far as its layers are there, and ends as any other', async () => {
  const engine = new Running(64);
  await loading(engine);
  deliver(engine, 0, all.slice(1));
  await engine.isIdle();
  assert.deepEqual(engine.sections, [], 'a block lacks its first layer');
  deliver(engine, 0, [0]);
  await engine.isIdle();
  assert.deepEqual(engine.sections, [{ from: undefined, until: 1 }]);
  deliver(engine, 1, all);
  await engine.isIdle();
  assert.deepEqual(engine.sections.slice(1), [{ from: 1, until: 2 }]);
  deliver(engine, 2, all);
  engine.send({ kind: 'proceed', id: 1 });
  await until('it has ended', () => engine.tokens().length === NUM_NEW);
  assert.deepEqual(engine.sections[2], { from: 2, until: undefined });
  assert.deepEqual(engine.tokens(), want);
  assert.equal(engine.of('consumed').length, NUM_BLOCKS * NUM_LAYERS, 'every delivery is told of');
  const { report } = engine.of('token')[0]!.event;
  assert.equal(report?.fetchedTokens, NUM_BLOCKS * BLOCK_SIZE);
  assert.equal(report.computedTokens, 7);
  await engine.close();
});

test('no batch waits for it: with others that compute its step is done in one go, when all is there', async () => {
  const engine = new Running(64);
  await loading(engine);
  deliver(engine, 0, all);
  await engine.isIdle();
  assert.deepEqual(engine.sections, [{ from: undefined, until: 1 }]);
  const other = prompt.slice(40, 50);
  engine.submit({ id: 2, tokens: other, promptLength: other.length, maxLength: other.length + 300 });
  await until('the other one runs', () => engine.tokens(2).length > 2);
  deliver(engine, 1, all);
  deliver(engine, 2, all);
  engine.send({ kind: 'proceed', id: 1 });
  await until('both have ended', () => engine.tokens().length === NUM_NEW && engine.tokens(2).length === 300);
  assert.deepEqual(engine.tokens(), want);
  assert.deepEqual(new Set<unknown>(engine.sections.slice(1)), new Set([undefined]));
  await engine.close();
});

test('a step that was begun gives nothing away before it is done', async () => {
  const engine = new Running(64);
  engine.send({ kind: 'await', keys: hashes.map(({ key }) => key), isOn: true });
  engine.send({ kind: 'grant', slots: engine.slots.slice(8) });
  // The prompt's tail is a whole block, and a fetch waits for that block too.
  const tokens = prompt.slice(0, NUM_BLOCKS * BLOCK_SIZE);
  const before = all.slice(0, -1);
  engine.submit({ tokens, promptLength: tokens.length, maxLength: tokens.length + 2, isFetching: true });
  await until('it is admitted', () => engine.of('admitted').length > 0);
  deliver(engine, 0, before);
  await engine.isIdle();
  assert.deepEqual(engine.sections, [{ from: undefined, until: 1 }]);
  deliver(engine, 1, before);
  deliver(engine, 2, before);
  engine.send({ kind: 'proceed', id: 1 });
  await until('its tail has left', () => engine.of('exported').length === 1);
  assert.equal(engine.of('frame').length, 0);
  const { hash, slot } = engine.of('exported')[0]!.event;
  assert.equal(hash.key, hashes.at(-1)!.key);
  assert.equal(Buffer.compare(engine.payload(slot), payloads.at(-1)!), 0);
  await engine.close();
});

test('a sequence that ends while a part of its first step is computed keeps its blocks until that is done', async () => {
  const engine = new Running(64);
  const { pool } = engine.loop.engine;
  const numUsed = (): number =>
    Array.from({ length: 32 }, (_, block) => block).filter((block) => pool.isUsed(block)).length;
  await loading(engine);
  let release = (): void => undefined;
  engine.held = new Promise((resolve) => (release = resolve));
  deliver(engine, 0, all);
  await until('a part is computed', () => engine.sections.length === 1);
  const numHeld = numUsed();
  assert(numHeld > NUM_BLOCKS);
  engine.send({ kind: 'cancel', id: 1 });
  await engine.isIdle();
  assert.equal(engine.loop.engine.stateOf(1), undefined);
  assert.equal(numUsed(), numHeld);
  release();
  await until('they are given back', () => numUsed() === 0);
  await engine.close();
});

test('what was begun is begun again when others were computed meanwhile', async () => {
  const engine = new Running(64);
  await loading(engine);
  deliver(engine, 0, all);
  await engine.isIdle();
  const other = prompt.slice(40, 50);
  engine.submit({ id: 2, tokens: other, promptLength: other.length, maxLength: other.length + 3 });
  await until('the other one has ended', () => engine.tokens(2).length === 3);
  deliver(engine, 1, all);
  deliver(engine, 2, all);
  engine.send({ kind: 'proceed', id: 1 });
  await until('it has ended', () => engine.tokens().length === NUM_NEW);
  assert.deepEqual(engine.tokens(), want);
  const begun = { from: undefined, until: 1 };
  assert.deepEqual(engine.sections.slice(0, 5), [begun, undefined, undefined, undefined, begun]);
  await engine.close();
});

test('frames of a sequence that is preempted are not those of the blocks that it gets then', async () => {
  const engine = new Running(64, Infinity, 12);
  const other = prompt.slice(40, 50);
  engine.submit({ id: 2, tokens: other, promptLength: other.length, maxLength: other.length + 300 });
  engine.submit({ isFetching: true });
  await until('it is admitted', () => engine.of('admitted').length === 2);
  deliver(engine, 0, all);
  await until('it is preempted', () => engine.of('preempted').length === 1);
  await until('it is admitted again', () => engine.of('admitted').length === 3);
  assert.equal(engine.tokens(2).length, 300);
  deliver(engine, 1, all);
  deliver(engine, 2, all);
  engine.send({ kind: 'proceed', id: 1 });
  await until('it has ended', () => engine.tokens().length === NUM_NEW);
  assert.deepEqual(engine.tokens(), want);
  assert.equal(engine.of('token').find(({ event }) => event.id === 1)!.event.report?.fetchedTokens, 0);
  await engine.close();
});

test('a frame that is missing: its block is computed, and so is what a fetch that broke off left', async () => {
  for (const missing of ['frame', 'end'] as const) {
    const engine = new Running(64);
    await loading(engine);
    deliver(engine, 0, all);
    if (missing === 'frame') deliver(engine, 1, all.slice(0, 3));
    deliver(engine, 2, missing === 'frame' ? all : []);
    await engine.isIdle();
    engine.send({ kind: 'proceed', id: 1 });
    await until('it has ended', () => engine.tokens().length === NUM_NEW);
    assert.deepEqual(engine.tokens(), want);
    const { report } = engine.of('token')[0]!.event;
    assert.equal(report?.fetchedTokens, missing === 'frame' ? 3 * BLOCK_SIZE : 0);
    await engine.close();
  }
});

test('a block whose frames begin anew, or that comes whole after some of them', async () => {
  const engine = new Running(64);
  await loading(engine);
  deliver(engine, 0, all);
  deliver(engine, 1, all);
  await engine.isIdle();
  // Frames delivered before are void from here on: none of their bytes may remain.
  for (const frame of [0, 1, 2]) deliver(engine, frame, [0, 1]);
  for (const block of all.slice(2)) {
    engine.payload(engine.slots[block]!).set(payloads[block]!);
    engine.send({
      kind: 'deliver',
      id: 1,
      blockIndex: block,
      slot: engine.slots[block]!,
      frame: undefined,
      origin: 'instance',
      isEarly: false,
    });
  }
  engine.send({ kind: 'proceed', id: 1 });
  await until('it has ended', () => engine.tokens().length === NUM_NEW);
  assert.deepEqual(engine.tokens(), want);
  assert.equal(engine.of('token')[0]!.event.report?.fetchedTokens, NUM_BLOCKS * BLOCK_SIZE);
  await engine.close();
});

/** Where recurrent states are saved, what is hit and evicted, and that no slot is lost, over a device that keeps texts as states. Budget: 10 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { RecurrentStates } from '../../shared/engine/recurrent_states.ts';
import type { SegmentStates } from '../../shared/engine/sequence_states.ts';
import { Sequence } from '../../shared/engine/sequence.ts';
import type { AnchoredHash, BlockKey, Digest } from '../../shared/kv/block_key.ts';
import { kvSpec } from '../../shared/kv/kv_spec.ts';
import { stateHashOf } from '../../shared/kv/record.ts';
import { sequenceRequest, type TestSequence } from '../support/request.ts';

const BLOCK = 4;
const root = '0c'.repeat(16) as Digest;
const spec = kvSpec(
  [
    { kind: 'paged', planes: [8], window: 0 },
    { kind: 'state', planes: [8], window: 0 },
  ],
  { blockSize: BLOCK, valueType: 'f32' },
);
/** Longer than any text of a test. */
const STATE_BYTES = 1_024;

/** A state is the text of all tokens before it; the device does what it is given in order, when the test says so. */
class TextDevice {
  readonly numStateSlots: number;
  readonly slots: (string | undefined)[];
  readonly queue: (() => void)[] = [];

  constructor(numStateSlots: number) {
    this.numStateSlots = numStateSlots;
    this.slots = new Array<string | undefined>(numStateSlots).fill(undefined);
  }

  copyStates(from: readonly number[], to: readonly number[]): void {
    this.queue.push(() => {
      from.forEach((slot, i) => (this.slots[to[i]!] = this.slots[slot]));
    });
  }

  importStates(slots: readonly number[], payloads: readonly Uint8Array[]): Promise<void> {
    return this.#inOrder(() => {
      slots.forEach((slot, i) => (this.slots[slot] = Buffer.from(payloads[i]!).toString()));
    });
  }

  exportStates(slots: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    return this.#inOrder(() => {
      slots.forEach((slot, i) => outs[i]!.set(Buffer.from(this.slots[slot] ?? '?')));
    });
  }

  #inOrder(work: () => void): Promise<void> {
    return new Promise((resolve) => {
      this.queue.push(() => {
        work();
        resolve();
      });
    });
  }
}

interface Submitted {
  readonly sequence: Sequence;
  readonly start: number;
  readonly end: number;
  readonly states: SegmentStates;
  hasRun: boolean;
}

const textOf = (sequence: Sequence, length: number): string => sequence.tokens.range(0, length).join();
const turn = (): Promise<void> =>
  new Promise((resolve) => {
    setImmediate(resolve);
  });

/** Computes sequences as the engine does, one in a step, with blocks of KV that are never evicted. */
class Runner {
  readonly device: TextDevice;
  readonly states: RecurrentStates;
  /** Named states by their key, and the text that each must be, by digest. */
  readonly named = new Map<BlockKey, AnchoredHash>();
  readonly texts = new Map<Digest, string>();
  readonly inFlight: Submitted[] = [];
  readonly ended = new Set<Sequence>();
  readonly #computed = new Set<Digest>();
  #nextId = 1;

  constructor(numSlots: number, interval: number) {
    this.device = new TextDevice(numSlots);
    this.states = new RecurrentStates({
      executable: this.device,
      blockSize: BLOCK,
      interval,
      emit: (event) => {
        if (event.kind === 'removed') assert(this.named.delete(event.key), 'only what was stored is removed');
        else this.named.set(event.hash.key, event.hash);
      },
    });
  }

  sequence(tokens: readonly number[], more: Partial<TestSequence> = {}): Sequence {
    const sequence = new Sequence(
      sequenceRequest({ id: this.#nextId++, root, tokens, maxLength: 200, ...more }),
      spec,
      0,
    );
    this.#describe(sequence);
    return sequence;
  }

  #describe(sequence: Sequence): void {
    sequence.chain.extend(sequence.tokens.view());
    sequence.chain.hashes.forEach((hash, i) =>
      this.texts.set(stateHashOf(hash).digest, textOf(sequence, (i + 1) * BLOCK)),
    );
  }

  /** Leading blocks of a sequence whose KV is here. */
  cachedOf({ chain, hittableBlocks }: Sequence): number {
    const hashes = chain.hashes.slice(0, hittableBlocks);
    const missing = hashes.findIndex(({ digest }) => !this.#computed.has(digest));
    return missing < 0 ? hashes.length : missing;
  }

  /** Returns the blocks that it begins after; undefined when there is no slot. */
  admit(sequence: Sequence): number | undefined {
    const numCached = this.cachedOf(sequence);
    const numHits = this.states.heldAt(sequence.chain.hashes, numCached);
    const before = this.states.pool.numAvailable;
    if (!this.states.admit(sequence, numHits, numCached, sequence.mayLoad(numHits))) {
      assert.equal(this.states.pool.numAvailable, before, 'a sequence without a slot changes nothing');
      return undefined;
    }
    const numPresent = sequence.mayLoad(numHits) ? numCached : numHits;
    sequence.admit(new Array<number>(64).fill(0), numHits, numPresent);
    this.states.admitted(sequence);
    return numHits;
  }

  submit(sequence: Sequence, count: number, followers: readonly Sequence[] = []): void {
    const start = sequence.cursor.submitted;
    const end = start + count;
    const states = this.states.begin(sequence, start, count);
    const { from, saves } = states.segment;
    assert.equal(from === undefined, start === 0);
    const submitted = { sequence, start, end, states, hasRun: false };
    const forked = followers.filter((follower) => this.states.fork(follower));
    for (const follower of forked) follower.forkFrom(sequence, 0);
    this.states.forked(sequence, forked);
    this.device.queue.push(() => {
      if (from !== undefined) assert.equal(this.device.slots[from], textOf(sequence, start), 'another state is read');
      for (const { rows, slot } of saves) this.device.slots[slot] = textOf(sequence, start + rows);
      submitted.hasRun = true;
    });
    this.states.copyForks();
    sequence.cursor.submit(count, 0);
    this.inFlight.push(submitted);
    if (sequence.request.kind === 'decode' && end === sequence.tokens.length)
      for (const [i, one] of [sequence, ...forked].entries()) one.tokens.push((end + i) % 2);
  }

  /** The step that was submitted first returns. */
  complete(): void {
    const step = this.inFlight.shift();
    assert(step, 'a step is in flight');
    while (!step.hasRun) this.device.queue.shift()!();
    const { sequence, start, end, states } = step;
    sequence.cursor.stepReturned();
    if (this.ended.has(sequence)) {
      this.states.drop(sequence, states);
      return;
    }
    sequence.cursor.complete(sequence.cursor.submitted);
    this.#describe(sequence);
    for (const { digest } of sequence.chain.hashes.slice(Math.floor(start / BLOCK), Math.floor(end / BLOCK)))
      this.#computed.add(digest);
    this.states.complete(sequence, states);
  }

  /** Computes all rows that are left, or `numRows`, `most` in a step. */
  compute(sequence: Sequence, most: number, numRows = sequence.remaining): void {
    for (let left = numRows; left > 0; left -= most) {
      this.submit(sequence, Math.min(most, left));
      this.complete();
    }
  }

  end(sequence: Sequence): void {
    this.states.end(sequence, sequence.cursor.isTouching);
    sequence.end();
    this.ended.add(sequence);
  }

  preempt(sequence: Sequence): void {
    this.states.saveRolling(sequence);
    this.states.end(sequence, false);
    sequence.preempt(false);
  }

  /** Blocks of a sequence at whose end a state is named. */
  savedOf({ chain }: Sequence): number[] {
    return chain.hashes.flatMap((hash, i) => (this.states.pool.find(stateHashOf(hash)) === undefined ? [] : [i + 1]));
  }

  /** Every named state is what its name says, no slot that a step in flight touches is given away, and E1. */
  check(): void {
    this.states.pool.checkIntegrity();
    for (const { states } of this.inFlight) {
      const { from, saves } = states.segment;
      for (const slot of [...(from === undefined ? [] : [from]), ...saves.map((save) => save.slot)])
        assert(this.states.pool.isUsed(slot), `slot ${slot} was given back while a step touches it`);
    }
    for (const hash of this.named.values()) {
      const slot = this.states.pool.find(hash);
      assert(slot !== undefined && this.device.slots[slot] === this.texts.get(hash.digest), 'a named state is another');
    }
    assert.deepEqual(new Set(this.states.pool.keys()), new Set(this.named.keys()));
  }

  /** Every slot that no sequence has is free or cached: none is lost. */
  checkEnd(): void {
    this.check();
    assert.equal(this.states.pool.numAvailable, this.device.numStateSlots);
  }
}

const promptOf = (length: number, first = 0): number[] => Array.from({ length }, (_, i) => first + i);

test.each([30, 7, 4, 3, 1])(
  'a prompt saves at every interval and at its last full block, %i rows in a step',
  (most) => {
    const runner = new Runner(16, 3);
    const sequence = runner.sequence(promptOf(30));
    expect(runner.admit(sequence)).toBe(0);
    runner.compute(sequence, most, 30);
    expect(runner.savedOf(sequence)).toEqual([3, 6, 7]);
    runner.end(sequence);
    // The last token of a prompt is always computed, also where it fills a block.
    const full = runner.sequence(promptOf(32, 100));
    runner.admit(full);
    runner.compute(full, most, 32);
    expect(runner.savedOf(full)).toEqual([3, 6, 7]);
    runner.end(full);
    runner.checkEnd();
  },
);

test('a sequence begins with the last state before the end of what is cached, and saves one where it leaves it', () => {
  const runner = new Runner(16, 3);
  const first = runner.sequence(promptOf(30));
  runner.admit(first);
  runner.compute(first, 30);
  runner.end(first);
  const leaving = [...promptOf(22), ...promptOf(20, 50)];
  const second = runner.sequence(leaving);
  expect(runner.cachedOf(second)).toBe(5);
  expect(runner.admit(second)).toBe(3);
  runner.compute(second, 9);
  expect(runner.savedOf(second)).toEqual([3, 5, 6, 9, 10]);
  runner.end(second);
  const third = runner.sequence([...promptOf(22), ...promptOf(9, 80)]);
  expect(runner.admit(third)).toBe(5);
  runner.compute(third, 9);
  runner.end(third);
  runner.checkEnd();
});

test('a state is saved where another sequence waits for shared blocks', () => {
  const runner = new Runner(16, 16);
  const sequence = runner.sequence(promptOf(30));
  runner.admit(sequence);
  runner.states.share(sequence, 2);
  runner.compute(sequence, 30);
  expect(runner.savedOf(sequence)).toEqual([2, 7]);
  runner.states.share(runner.sequence(promptOf(30)), 2);
  runner.end(sequence);
  runner.checkEnd();
});

test('the last full block of an answer has a state when the answer ends, and no other block of it', () => {
  const runner = new Runner(16, 16);
  const sequence = runner.sequence(promptOf(10));
  runner.admit(sequence);
  runner.compute(sequence, 10);
  const before = runner.states.pool.numAvailable;
  for (let token = 0; token < 15; token++) {
    runner.compute(sequence, 1);
    runner.check();
    expect(runner.savedOf(sequence)).toEqual([2]);
  }
  expect(before - runner.states.pool.numAvailable).toBe(1);
  expect(sequence.cursor.submitted).toBe(25);
  runner.end(sequence);
  expect(runner.savedOf(sequence)).toEqual([2, 6]);
  const again = runner.sequence([...sequence.tokens.view(), 1, 1]);
  expect(runner.admit(again)).toBe(6);
  runner.compute(again, 30);
  runner.end(again);
  runner.checkEnd();
});

test('the state after an answer is not saved while the step that writes it is in flight', () => {
  const runner = new Runner(16, 16);
  const sequence = runner.sequence(promptOf(10));
  runner.admit(sequence);
  runner.compute(sequence, 10);
  while (sequence.cursor.submitted < 15) runner.compute(sequence, 1);
  runner.submit(sequence, 1);
  runner.end(sequence);
  expect(runner.states.pool.numAvailable).toBeLessThan(16);
  runner.complete();
  expect(runner.savedOf(sequence)).toEqual([2]);
  runner.checkEnd();
});

test('the state after an answer is not saved when the step before the one that writes it has returned', () => {
  const runner = new Runner(16, 16);
  const sequence = runner.sequence(promptOf(10));
  runner.admit(sequence);
  // Tokens of its answer that are computed again.
  for (const token of promptOf(15, 10)) sequence.tokens.push(token);
  runner.submit(sequence, 16);
  runner.submit(sequence, 4);
  runner.complete();
  runner.end(sequence);
  runner.check();
  runner.complete();
  expect(runner.savedOf(sequence)).toEqual([2]);
  runner.checkEnd();
});

test('a preempted sequence begins again after its last full block', () => {
  const runner = new Runner(16, 16);
  const sequence = runner.sequence(promptOf(10));
  runner.admit(sequence);
  runner.compute(sequence, 10);
  while (sequence.cursor.submitted < 18) runner.compute(sequence, 1);
  runner.preempt(sequence);
  runner.checkEnd();
  expect(runner.admit(sequence)).toBe(4);
  // A state that was saved before it goes on is read by its next step, and written no more.
  runner.compute(sequence, 30);
  runner.states.saveRolling(sequence);
  while (sequence.cursor.submitted < 30) runner.compute(sequence, 1);
  runner.end(sequence);
  expect(runner.savedOf(sequence)).toEqual([2, 4, 7]);
  runner.checkEnd();
});

test('the state that is worth least goes first: few tokens before many, and what was hit stays longer', () => {
  const runner = new Runner(4, 16);
  const run = (tokens: readonly number[]): Sequence => {
    const sequence = runner.sequence(tokens, { kind: 'prefill' });
    assert(runner.admit(sequence) !== undefined);
    runner.compute(sequence, 100);
    runner.end(sequence);
    return sequence;
  };
  const [long, short, hit] = [run(promptOf(29, 100)), run(promptOf(9)), run(promptOf(13, 200))];
  expect([short, long, hit].map((one) => runner.savedOf(one))).toEqual([[2], [7], [3]]);
  // Two hits: the state of three blocks is worth nine.
  run(promptOf(14, 200));
  run(promptOf(15, 200));
  run(promptOf(61, 300));
  expect([short, long, hit].map((one) => runner.savedOf(one))).toEqual([[], [7], [3]]);
  run(promptOf(62, 400));
  expect([short, long, hit].map((one) => runner.savedOf(one))).toEqual([[], [], [3]]);
  runner.checkEnd();
});

test('with one slot a prefill hands over its own state, and a decode sequence saves none', () => {
  const runner = new Runner(1, 2);
  const prefill = runner.sequence(promptOf(30), { kind: 'prefill' });
  expect(runner.admit(prefill)).toBe(0);
  expect(runner.admit(runner.sequence(promptOf(9, 50)))).toBe(undefined);
  runner.compute(prefill, 9);
  expect(runner.savedOf(prefill)).toEqual([7]);
  runner.end(prefill);
  runner.checkEnd();
  // It would begin with the only state, and has no slot for its own.
  expect(runner.admit(runner.sequence(promptOf(40)))).toBe(undefined);
  const decode = runner.sequence(promptOf(9, 50));
  expect(runner.admit(decode)).toBe(0);
  expect(runner.savedOf(prefill)).toEqual([]);
  runner.compute(decode, 3, 9);
  runner.compute(decode, 1, 1);
  runner.end(decode);
  expect(runner.savedOf(decode)).toEqual([]);
  runner.checkEnd();
});

test('a fetched state is begun with, and hit by others', async () => {
  const runner = new Runner(8, 16);
  const first = runner.sequence(promptOf(30), { kind: 'prefill' });
  runner.admit(first);
  runner.submit(first, 20);
  runner.complete();
  runner.end(first);
  expect(runner.savedOf(first)).toEqual([]);
  const sequence = runner.sequence(promptOf(30), { isFetching: true });
  expect(runner.admit(sequence)).toBe(0);
  const arrived = runner.states.put(sequence, 5, Buffer.from(textOf(sequence, 20)));
  expect(runner.savedOf(sequence)).toEqual([]);
  runner.device.queue.shift()!();
  await arrived;
  expect(runner.savedOf(sequence)).toEqual([5]);
  sequence.run(undefined, (hashes, most) => runner.states.heldAt(hashes, most));
  expect(sequence.cursor.submitted).toBe(20);
  runner.states.startAt(sequence, 5);
  runner.compute(sequence, 30);
  expect(runner.savedOf(sequence)).toEqual([5, 7]);
  runner.end(sequence);
  const out = new Uint8Array(STATE_BYTES);
  const [known] = runner.named.values();
  const unknown = { ...known!, digest: 'f'.repeat(32) as Digest };
  const exported = runner.states.exportTo([known!, unknown].map((hash) => ({ hash, out })));
  runner.device.queue.shift()!();
  expect(await exported).toEqual([true, false]);
  expect(Buffer.from(out).toString().replaceAll('\0', '')).toBe(textOf(sequence, 20));
  runner.checkEnd();
});

/** Whatever sequences do, at random. */
class RandomRun {
  readonly runner: Runner;
  readonly held: Sequence[] = [];
  readonly waiting: Sequence[] = [];
  readonly done = { hits: 0, forks: 0, fetched: 0, exports: 0, preemptions: 0 };
  readonly #random: Random;
  readonly #open = new Set<Promise<void>>();

  constructor(seed: number) {
    this.#random = new Random(seed);
    this.runner = new Runner(3 + this.#random.below(14), 1 + this.#random.below(4));
  }

  #one(among: readonly Sequence[]): Sequence | undefined {
    return among[this.#random.below(Math.max(1, among.length))];
  }

  #track(work: Promise<void>): void {
    const open = work.finally(() => this.#open.delete(open));
    this.#open.add(open);
  }

  async event(): Promise<void> {
    const { runner, held } = this;
    const running = held.filter(({ remaining }) => remaining > 0);
    const pick = this.#random.below(18);
    if (pick < 3) this.#enter();
    else if (pick < 7) this.#step(this.#one(running));
    else if (pick < 11 && runner.inFlight.length > 0) runner.complete();
    else if (pick === 11) this.#leave(this.#one(held));
    else if (pick === 12) this.#preempt(this.#one(running.filter(({ cursor }) => !cursor.isTouching)));
    else if (pick === 13 || pick > 15) this.#fetch(this.#one(held.filter(({ state }) => state.kind === 'loading')));
    else if (pick === 14) this.#export();
    else if (held.length > 0) runner.states.share(this.#one(held)!, 1 + this.#random.below(6));
    await turn();
    runner.check();
  }

  #enter(): void {
    const { runner, held, waiting } = this;
    const sequence =
      waiting.shift() ??
      runner.sequence(
        Array.from({ length: 5 + this.#random.below(36) }, (_, i) => (i % 6 > 0 ? 0 : this.#random.below(2))),
        { kind: this.#random.below(3) === 0 ? 'prefill' : 'decode', isFetching: this.#random.below(2) === 0 },
      );
    if (sequence.target === 0) return;
    const numHits = runner.admit(sequence);
    if (numHits === undefined) waiting.push(sequence);
    else held.push(sequence);
    if (numHits) this.done.hits++;
  }

  #step(sequence: Sequence | undefined): void {
    if (!sequence || this.runner.inFlight.length > 2) return;
    const { remaining, tokens, request } = sequence;
    const count = 1 + this.#random.below(Math.min(remaining, 14));
    const isForked = count === remaining && tokens.length === request.tokens.length && request.kind === 'decode';
    const followers = isForked && this.#random.below(2) > 0 ? [this.runner.sequence([...request.tokens])] : [];
    this.runner.submit(sequence, count, followers);
    const forked = followers.filter(({ state }) => state.kind === 'running');
    this.held.push(...forked);
    this.done.forks += forked.length;
  }

  #leave(sequence: Sequence | undefined): void {
    if (!sequence || (sequence.remaining > 1 && this.#random.below(3) > 0)) return;
    this.held.splice(this.held.indexOf(sequence), 1);
    this.runner.end(sequence);
  }

  #preempt(sequence: Sequence | undefined): void {
    if (!sequence) return;
    this.held.splice(this.held.indexOf(sequence), 1);
    this.runner.preempt(sequence);
    this.waiting.push(sequence);
    this.done.preemptions++;
  }

  /** The state after the last cached block arrives, perhaps when the sequence has ended, or its fetch ends. */
  #fetch(sequence: Sequence | undefined): void {
    if (!sequence) return;
    const { states } = this.runner;
    const blocks = this.runner.cachedOf(sequence);
    if (blocks > 0 && this.#random.below(3) > 0) {
      this.#track(states.put(sequence, blocks, Buffer.from(textOf(sequence, blocks * BLOCK))));
      return;
    }
    const from = sequence.cursor.submitted;
    sequence.run(undefined, (hashes, most) => states.heldAt(hashes, most));
    states.startAt(sequence, sequence.cursor.submitted / BLOCK);
    if (sequence.cursor.submitted > from) this.done.fetched++;
  }

  #export(): void {
    const { states, named, texts } = this.runner;
    const hash = [...named.values()][this.#random.below(Math.max(1, named.size))];
    if (!hash) return;
    const out = new Uint8Array(STATE_BYTES);
    const exported = states.exportTo([{ hash, out }]).then((isHeld) => {
      assert.deepEqual(isHeld, [true]);
      assert.equal(Buffer.from(out).toString().replaceAll('\0', ''), texts.get(hash.digest));
      this.done.exports++;
    });
    this.#track(exported);
  }

  async end(): Promise<void> {
    const { runner, held } = this;
    for (const sequence of held) runner.end(sequence);
    while (runner.inFlight.length > 0) runner.complete();
    for (const work of runner.device.queue.splice(0)) work();
    await Promise.all(this.#open);
    runner.checkEnd();
  }
}

test('E1, K1, K3: whatever happens, named states are what they are named, steps read their own, and no slot is lost', async () => {
  const first = Number(process.env['SEED'] ?? 1);
  const done = { hits: 0, forks: 0, fetched: 0, exports: 0, preemptions: 0 };
  for (let seed = first; seed < first + 25; seed++) {
    const run = new RandomRun(seed);
    try {
      for (let event = 0; event < 400; event++) await run.event();
      await run.end();
    } catch (error) {
      throw new Error(`SEED=${seed}`, { cause: error });
    }
    for (const name of Object.keys(done) as (keyof typeof done)[]) done[name] += run.done[name];
  }
  for (const [name, count] of Object.entries(done)) assert(count > 5, `${count} ${name}`);
});

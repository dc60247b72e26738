/**
 * The suite of all orders of the queue, on the production Scheduler and block pool with a played device, under seeded random
 * sequences: everybody finishes, also those that an order puts last; no row of a step is left free that a prompt could have; E1.
 */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { BlockPool } from '../../shared/engine/block_pool.ts';
import { queueOrderOf, type QueueOrderName, type QueuedSequence } from '../../shared/engine/queue_order.ts';
import { Scheduler } from '../../shared/engine/scheduler.ts';
import { Sequence } from '../../shared/engine/sequence.ts';
import type { Digest } from '../../shared/kv/block_key.ts';
import { sequenceRequest, type TestSequence } from '../support/request.ts';

const BLOCK = 4;
const spec = { blockSize: BLOCK, frames: [] };
const root = '0'.repeat(32) as Digest;

/** The production scheduler under a device whose steps take a millisecond, and whose tokens are their positions. */
export class PlayedEngine {
  readonly pool: BlockPool;
  readonly scheduler: Scheduler;
  readonly chunkTokens: number;
  readonly sequences = new Set<Sequence>();
  /** Ids in the order in which sequences ended, took device blocks, and were preempted. */
  readonly ended: number[] = [];
  readonly admitted: number[] = [];
  readonly preempted: number[] = [];
  /** Ids of sequences for which blocks lie in host memory. */
  readonly delivered = new Set<number>();
  readonly #stepMs: number;
  #nextId = 1;
  nowMs = 0;

  constructor(queueOrder: QueueOrderName, numBlocks: number, chunkTokens: number, maxNumSeqs: number, stepMs = 1) {
    this.chunkTokens = chunkTokens;
    this.#stepMs = stepMs;
    this.pool = new BlockPool(numBlocks, () => undefined);
    const limits = { blockSize: BLOCK, chunkTokens, maxNumSeqs, maxWaiting: 10_000, queueOrder };
    this.scheduler = new Scheduler(this.pool, limits, (sequence) => this.preempted.push(sequence.request.id));
  }

  submit(tokens: readonly number[], maxTokens: number, more: Partial<TestSequence> = {}): number {
    const id = this.#nextId++;
    const request = sequenceRequest({ id, root, tokens, maxLength: tokens.length + maxTokens, ...more });
    const sequence = new Sequence(request, spec, this.nowMs);
    this.scheduler.check(sequence, 0);
    this.scheduler.enqueue(sequence);
    this.sequences.add(sequence);
    return id;
  }

  /** Runs one step. Returns the rows that each sequence had in it, by id. */
  step(): Map<number, number> {
    const { work, admitted } = this.scheduler.schedule({
      nowMs: this.nowMs,
      isIdle: true,
      hasDeliveries: (id) => this.delivered.has(id),
      candidatesOf: (sequences) => sequences.map((sequence) => ({ sequence, sampledBy: 'device' as const })),
      promptRows: () => Infinity,
      maxHostSamples: 8,
      maxMasks: 8,
      numFollowing: 0,
    });
    for (const { request } of admitted) this.admitted.push(request.id);
    for (const { sequence, count } of work) this.#compute(sequence, count);
    this.pool.checkIntegrity();
    this.nowMs += this.#stepMs;
    return new Map(work.map(({ sequence, count }) => [sequence.request.id, count]));
  }

  #compute(sequence: Sequence, count: number): void {
    const { cursor, tokens, chain, times, request } = sequence;
    const start = cursor.submitted;
    const end = start + count;
    const isSampled = sequence.samplesAt(end);
    cursor.submit(count, isSampled ? 1 : 0);
    cursor.stepReturned();
    cursor.complete(end);
    times.numRun += count;
    chain.extend(tokens.view());
    for (let index = Math.floor(start / BLOCK); index < Math.floor(end / BLOCK); index++)
      this.pool.seal(sequence.blocks[index]!, chain.hashes[index]!);
    if (!isSampled) return;
    cursor.sampleReturned();
    tokens.push(tokens.length);
    if (tokens.length < request.request.maxLength) return;
    this.scheduler.remove(sequence);
    this.sequences.delete(sequence);
    this.ended.push(request.id);
  }
}

/** Returns the order of that name over facts as they are written. */
export function orderOfFacts(name: QueueOrderName): ReturnType<typeof queueOrderOf<QueuedSequence & Named>> {
  return queueOrderOf<QueuedSequence & Named>(name, { read: (one) => one, nextBlockOf: ({ nextBlock }) => nextBlock });
}

/** A sequence of a hand-made case. */
export interface Named {
  readonly name: string;
  readonly nextBlock?: string;
}

/** Registers the tests that each order passes. */
export function queueOrderSuite(name: QueueOrderName): void {
  test(`${name}: everybody finishes, with preemptions, shared prefixes and priorities; E1 after every step`, () => {
    for (let seed = 1; seed <= 12; seed++) {
      const random = new Random(seed);
      const engine = new PlayedEngine(name, 12 + random.below(30), 4 + random.below(30), 1 + random.below(8));
      const prefixes = [1, 2, 3].map((first) => Array.from({ length: 4 * BLOCK }, (_, i) => 1_000 * first + i));
      const most = engine.pool.numBlocks * BLOCK;
      let numSubmitted = 0;
      for (let turn = 0; turn < 4_000 && (numSubmitted < 40 || engine.sequences.size > 0); turn++) {
        if (numSubmitted < 40 && random.below(3) === 0) {
          const own = Array.from({ length: 1 + random.below(20) }, () => random.below(100));
          const tokens = random.below(2) === 0 ? own : [...prefixes[random.below(3)]!, ...own];
          const maxTokens = Math.min(1 + random.below(25), most - tokens.length);
          const expectedTokens = random.below(2) * random.below(30);
          engine.submit(tokens, maxTokens, { expectedTokens, priority: random.below(3) - 1 });
          numSubmitted++;
        }
        engine.step();
      }
      assert.deepEqual([engine.ended.length, engine.sequences.size], [40, 0], `seed ${seed}`);
      assert.deepEqual([engine.scheduler.numHeld, engine.scheduler.numWaiting], [0, 0]);
      assert.equal(engine.pool.numAvailable, engine.pool.numBlocks);
    }
  });

  test(`${name}: a step has all its rows while prompts have some`, () => {
    const random = new Random(9);
    const engine = new PlayedEngine(name, 800, 32, 32);
    for (let i = 0; i < 60; i++)
      engine.submit(
        Array.from({ length: 1 + random.below(90) }, () => random.below(1_000)),
        1 + random.below(9),
      );
    let numFull = 0;
    while (engine.scheduler.numWaiting > 0) {
      const rows = [...engine.step().values()].reduce((sum, count) => sum + count, 0);
      if (engine.scheduler.numWaiting === 0) break;
      assert.equal(rows, engine.chunkTokens);
      numFull++;
    }
    assert(numFull > 50);
  });

  test(`${name}: who came long ago is served, whatever comes after`, () => {
    const engine = new PlayedEngine(name, 400, 32, 4, 50);
    const random = new Random(3);
    const promptOf = (length: number): number[] => Array.from({ length }, () => random.below(1_000));
    const shared = promptOf(3 * BLOCK);
    // Long, expected to be longer, alone with its prefix, and of the lowest priority.
    const long = engine.submit(promptOf(600), 4, { expectedTokens: 5_000, priority: 2 });
    for (let i = 0; i < 2_000 && !engine.ended.includes(long); i++) {
      // More rows than steps have.
      if (engine.scheduler.numWaiting < 300) {
        engine.submit([...shared, ...promptOf(8)], 2, { priority: 0 });
        engine.submit([...shared, ...promptOf(20)], 2, { priority: 1 });
      }
      engine.step();
    }
    assert(engine.ended.includes(long), 'the long one has ended');
    // Three levels of 30 s, and what it takes itself.
    assert(engine.nowMs <= 95_000, `it took ${engine.nowMs} ms`);
  });
}

/**
 * Sequences that hold device blocks while the blocks that they fetch do not arrive give way to a sequence that can go on, and to no other:
 * the production Scheduler under played time, and the engine's loop, which must look again although nothing happens. Budget: 10 s.
 */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { systemClock, type Clock } from '../../shared/base/clock.ts';
import { Condition } from '../../shared/base/condition.ts';
import { EngineLoop } from '../../shared/engine/engine_loop.ts';
import { loadModel } from '../../shared/engine/load_model.ts';
import type { Sequence } from '../../shared/engine/sequence.ts';
import { STALLED_MS } from '../../shared/engine/stalled_loads.ts';
import { goldenFolder } from '../support/golden.ts';
import { loadDefaults } from '../support/reference_loop.ts';
import { sequenceRequest } from '../support/request.ts';
import { PATIENCE_MS } from '../support/until.ts';
import { PlayedEngine } from './queue_order_suite.ts';

const [NUM_BLOCKS, STEP_MS] = [12, 100];
/** Tokens of eight blocks: two such sequences do not fit into the device. */
const promptOf = (first: number): number[] => Array.from({ length: 32 }, (_, i) => 100 * first + i);

function engineOf(maxNumSeqs = 8): PlayedEngine {
  return new PlayedEngine('first_come', NUM_BLOCKS, 16, maxNumSeqs, STEP_MS);
}

function sequenceOf(engine: PlayedEngine, id: number): Sequence {
  const sequence = [...engine.sequences].find(({ request }) => request.id === id);
  assert(sequence, `sequence ${id} has not ended`);
  return sequence;
}

function runFor(engine: PlayedEngine, ms: number): void {
  const untilMs = engine.nowMs + ms;
  while (engine.nowMs < untilMs) engine.step();
}

test('two engines that each hold blocks for a sequence whose prompt waits for blocks at the other both finish', () => {
  const engines = [engineOf(), engineOf()] as const;
  // Each loads what the other computes, and is given its own prompt only then.
  const loading = engines.map((engine, i) => engine.submit(promptOf(i), 1, { isFetching: true }));
  for (const engine of engines) engine.step();
  const prompts = engines.map((engine, i) => engine.submit(promptOf(1 - i), 1));
  for (let turn = 0; turn < 200; turn++) {
    engines.forEach((engine, i) => {
      engine.step();
      const other = engines[1 - i]!;
      // The prompt that the other one waits for is computed: its fetch ends.
      if (engine.ended.includes(prompts[i]!) && !other.ended.includes(loading[1 - i]!))
        sequenceOf(other, loading[1 - i]!).run();
    });
  }
  engines.forEach((engine, i) => {
    assert.deepEqual([...engine.ended].sort(), [loading[i], prompts[i]]);
    assert.equal(engine.pool.numAvailable, NUM_BLOCKS);
  });
});

test('a sequence that loads keeps its blocks until nothing has arrived for so long', () => {
  const engine = engineOf();
  const loading = engine.submit(promptOf(1), 1, { isFetching: true });
  const waiting = engine.submit(promptOf(2), 1);
  const arrive = (block: number): void => {
    const { state } = sequenceOf(engine, loading);
    assert(state.kind === 'loading');
    state.fetched.add(block, undefined, 'instance');
  };
  engine.step();
  for (const block of [3, 5]) {
    runFor(engine, STALLED_MS - STEP_MS);
    assert.equal(engine.scheduler.recheckMs, 2 * STEP_MS);
    arrive(block);
  }
  runFor(engine, STALLED_MS);
  assert.deepEqual([engine.preempted, engine.admitted], [[], [loading]]);
  engine.step();
  assert.deepEqual([engine.preempted, engine.admitted], [[loading], [loading, waiting]]);
});

test('blocks do not go to a sequence that has nothing to go on with, and do to one whose blocks have arrived', () => {
  const engine = engineOf();
  const loading = engine.submit(promptOf(1), 1, { isFetching: true });
  engine.submit(promptOf(2), 1, { isFetching: true });
  const arrived = engine.submit(promptOf(3), 1, { isFetching: true });
  runFor(engine, 3 * STALLED_MS);
  assert.deepEqual([engine.preempted, engine.scheduler.recheckMs], [[], undefined]);
  engine.delivered.add(arrived);
  engine.step();
  assert.deepEqual([engine.preempted, engine.admitted], [[loading], [loading, arrived]]);
});

test('a sequence whose blocks lie in host memory is not preempted before they are copied', () => {
  const engine = engineOf();
  const loading = engine.submit(promptOf(1), 1, { isFetching: true });
  engine.submit(promptOf(2), 1);
  engine.delivered.add(loading);
  runFor(engine, 3 * STALLED_MS);
  assert.deepEqual(engine.preempted, []);
});

test('a sequence that loads gives up its place too, where few sequences may hold blocks', () => {
  const engine = engineOf(1);
  const loading = engine.submit([1, 2, 3, 4, 5], 1, { isFetching: true });
  const waiting = engine.submit([6, 7, 8], 1);
  runFor(engine, STALLED_MS + 3 * STEP_MS);
  assert.deepEqual([engine.preempted, engine.ended], [[loading], [waiting]]);
});

test('a sequence that fits is not held up by one that loads and by one before it that does not fit', () => {
  const engine = engineOf();
  engine.submit(promptOf(1), 1, { isFetching: true });
  engine.submit(promptOf(2), 1, { isFetching: true });
  const short = engine.submit([1, 2, 3], 1);
  runFor(engine, STALLED_MS + 3 * STEP_MS);
  assert.deepEqual([engine.preempted, engine.ended], [[], [short]]);
});

test("the engine's loop looks again by itself when a sequence has stalled", async () => {
  const modelPath = goldenFolder('llama-odd');
  const { executable, layout } = await loadModel({ ...loadDefaults, modelPath, numBlocks: NUM_BLOCKS });
  let nowMs = 0;
  // Time goes on where somebody waits for it.
  const clock: Clock = {
    ...systemClock,
    nowMs: () => nowMs,
    sleep: (ms) => {
      nowMs += ms;
      return Promise.resolve();
    },
  };
  const happened: string[] = [];
  const changed = new Condition();
  const loop = new EngineLoop({
    executable,
    layout,
    numBlocks: NUM_BLOCKS,
    maxWaiting: 8,
    chunkTokens: 64,
    maxNumSeqs: 8,
    stepMs: 0,
    clock,
    heartbeat: new Int32Array(2),
    emit: (message) => {
      if (message.kind !== 'events') return;
      for (const event of message.events) if ('id' in event) happened.push(`${event.kind} ${event.id}`);
      changed.notify();
    },
  });
  const { format: root, spec } = layout;
  const tokens = Array.from({ length: 8 * spec.blockSize }, (_, i) => i);
  const maxLength = tokens.length + 1;
  loop.submit(sequenceRequest({ id: 1, root, tokens, maxLength, isFetching: true }));
  loop.submit(sequenceRequest({ id: 2, root, tokens: [...tokens].reverse(), maxLength }));
  const ended = loop.run();
  const hasEnded = await changed.until(() => happened.includes('token 2'), AbortSignal.timeout(PATIENCE_MS));
  loop.receive({ kind: 'stop' });
  await ended;
  await executable.close();
  assert(hasEnded, happened.join());
  assert.deepEqual(happened.slice(0, 3), ['admitted 1', 'preempted 1', 'admitted 2']);
  assert.equal(nowMs, STALLED_MS);
});

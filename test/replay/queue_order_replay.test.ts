/** Orders of the instances' queues in a replay, over the light model and over the production engine. Budget: 20 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { queueOrderNames, type QueueOrderName } from '../../shared/engine/queue_order.ts';
import { createPolicy } from '../../shared/placement/policy_registry.ts';
import { defaultHardware } from '../../services/replay/hardware.ts';
import { ReplayRun } from '../../services/replay/replay_run.ts';
import type { RunResult } from '../../services/replay/run_measurements.ts';
import { Trace } from '../../shared/trace/trace.ts';
import { TraceHashes } from '../../services/replay/trace_hashes.ts';
import { builtTrace } from './traces.ts';

const BLOCK_TOKENS = 512;
const NUM_REQUESTS = 120;
/** Every third prompt is long. */
const isLong = (i: number): boolean => i % 3 === 0;

/** Prompts without common blocks, faster than one instance computes them. */
const burst = builtTrace(
  Array.from({ length: NUM_REQUESTS }, (_, i) => {
    const inputTokens = isLong(i) ? 24_000 : 900;
    const numBlocks = Math.ceil(inputTokens / BLOCK_TOKENS);
    return {
      timestampMs: 100 * i,
      inputTokens,
      outputTokens: 8,
      hashIds: Array.from({ length: numBlocks }, (_, k) => 1_000 * i + k),
    };
  }),
  BLOCK_TOKENS,
);

async function runOf(trace: Trace, isFull: boolean, queueOrder?: QueueOrderName): Promise<RunResult> {
  const run = new ReplayRun({
    trace,
    isFull,
    queueOrder,
    speedUp: 1,
    targets: { ttftMs: 2_000, tbtMs: 50 },
    hardware: defaultHardware,
    hashes: new TraceHashes(),
    seed: 1,
    numPrefill: 0,
    numDecode: 1,
    chunkTokens: 512,
    noise: 0.02,
    policy: createPolicy('random', { localPrefillTokens: 256, refusesLate: false }),
  });
  return isFull ? run.runFull() : run.run();
}

function meanTtft({ ttftMs }: RunResult, isCounted: (i: number) => boolean): number {
  const counted = ttftMs.filter((_, i) => isCounted(i));
  return counted.reduce((sum, ms) => sum + ms, 0) / counted.length;
}

const isShort = (i: number): boolean => !isLong(i);

describe.each([
  ['light', false],
  ['full', true],
] as const)('the %s engine', (_, isFull) => {
  test('the default order is first come first', async () => {
    assert.deepEqual(await runOf(burst, isFull), await runOf(burst, isFull, 'first_come'));
  });

  test.each(queueOrderNames)('under %s every request gets its tokens', async (order) => {
    const { totalMs, ttftMs, gaps } = await runOf(burst, isFull, order);
    assert(totalMs.every((ms, i) => ms > ttftMs[i]! && ttftMs[i]! > 0));
    assert(gaps.every((ms) => ms > 0));
  });

  test('short prompts do not wait for long ones under shortest_first and feedback', async () => {
    const first = await runOf(burst, isFull, 'first_come');
    assert(meanTtft(first, isShort) > 2_000, `${meanTtft(first, isShort)} ms: nobody waits`);
    for (const order of ['shortest_first', 'feedback'] as const) {
      const other = await runOf(burst, isFull, order);
      assert(meanTtft(other, isShort) < 0.5 * meanTtft(first, isShort), order);
      assert(meanTtft(other, isLong) >= 0.9 * meanTtft(first, isLong), order);
    }
  });

  test('requests of a lower priority number come first, whatever the order', async () => {
    const isUrgent = (i: number): boolean => i % 4 === 1;
    const priorities = Int32Array.from({ length: NUM_REQUESTS }, (_, i) => (isUrgent(i) ? -5 : 3));
    const trace = new Trace({ ...burst.columns, priorities });
    for (const order of ['first_come', 'slices'] as const) {
      const [without, result] = [await runOf(burst, isFull, order), await runOf(trace, isFull, order)];
      assert(meanTtft(result, isUrgent) < 0.6 * meanTtft(without, isUrgent), order);
      assert(meanTtft(result, isUrgent) < 0.5 * meanTtft(result, (i) => !isUrgent(i)), order);
    }
  });
});

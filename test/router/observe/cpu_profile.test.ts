/** CPU profiles as Chrome traces: times, stacks and names; and one that is recorded here. Budget: 2 s. */
import assert from 'node:assert/strict';
import type { Profiler } from 'node:inspector';
import { test } from 'vitest';
import { systemClock } from '../../../shared/base/clock.ts';
import { chromeTrace, CpuProfiler } from '../../../services/router/observe/cpu_profile.ts';

function node(id: number, functionName: string, children: number[] = [], url = ''): Profiler.ProfileNode {
  return { id, callFrame: { functionName, url, scriptId: '0', lineNumber: 4, columnNumber: 2 }, hitCount: 0, children };
}

const process = { pid: 7, name: 'penstock router r' };

test('a function on the stack of consecutive samples is one event, with its callers around it', () => {
  const profile: Profiler.Profile = {
    nodes: [
      node(1, '(root)', [2, 5, 6]),
      node(2, 'serve', [3, 4], 'file:///somewhere/secret/dist/services/router/main.js'),
      node(3, 'encode'),
      node(4, ''),
      node(5, '(idle)'),
      node(6, '(garbage collector)'),
    ],
    startTime: 1_000,
    endTime: 1_700,
    samples: [3, 3, 4, 5, 6, 2],
    timeDeltas: [100, 100, 100, 100, 100, 100],
  };
  const { traceEvents } = chromeTrace(profile, process);
  const spans = traceEvents.filter(({ ph }) => ph === 'X');
  assert.deepEqual(
    spans.map(({ name, ts, dur }) => [name, ts, dur]),
    [
      ['encode', 100, 200],
      ['(anonymous)', 300, 100],
      ['serve', 100, 300],
      ['(garbage collector)', 500, 100],
      ['serve', 600, 100],
    ],
  );
  assert.deepEqual(spans[2]?.args, { file: 'dist/services/router/main.js', line: 5, column: 3 });
  assert.deepEqual(
    traceEvents.filter(({ ph }) => ph === 'M').map(({ args }) => args['name']),
    ['penstock router r', 'main thread'],
  );
  assert(!JSON.stringify(traceEvents).includes('secret'));
});

test('a profile has the function that computes, and ends early when nobody waits for it', async () => {
  const profiler = new CpuProfiler(systemClock);
  const gone = new AbortController();
  const recorded = profiler.record(60, gone.signal);
  assert(profiler.isRunning);
  // Computes until it must be in the profile, whatever else the machine does.
  let sum = 0;
  const burnCycles = (): void => {
    for (let i = 0; i < 5e6; i++) sum += Math.sqrt(i % 7);
  };
  for (let i = 0; i < 6; i++) {
    await systemClock.turn();
    burnCycles();
  }
  gone.abort();
  const { traceEvents } = chromeTrace(await recorded, process);
  assert(sum > 0 && !profiler.isRunning);
  assert(traceEvents.some(({ name }) => name === 'burnCycles'));
  for (const { ts, dur = 0 } of traceEvents) assert(ts >= 0 && dur >= 0);
});

/** Limits in CPU time, on simulated time; and the CPU time of real threads, also of one that never returns. Budget: 5 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { inCpuTime, LATE, SPENT } from '../../shared/base/cpu_limit.ts';
import type { CpuTime } from '../../shared/base/threads.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';
import { projectPath } from '../support/project.ts';
import { until } from '../support/until.ts';

const never = new Promise<never>(() => undefined);

/** Runs work that never ends on a thread of this share of a core. Returns the result, and the simulated milliseconds until it came. */
async function limited(shareOfCore: number | undefined, cpuMs: number, lastMs: number): Promise<unknown> {
  const clock = new SimulatedClock();
  const thread: CpuTime =
    shareOfCore === undefined ? {} : { cpuMs: () => Promise.resolve(1_000 + shareOfCore * clock.nowMs()) };
  let result: unknown = 'nothing yet';
  let atMs = 0;
  void inCpuTime(clock, thread, cpuMs, never).then((value) => {
    result = value;
    atMs = clock.nowMs();
  });
  for (let ms = 250; ms <= lastMs && result === 'nothing yet'; ms += 250) await clock.run(ms);
  return result === 'nothing yet' ? result : [result, Math.round(atMs / 1_000)];
}

test('work that ends resolves, or rejects, as it does', async () => {
  const clock = new SimulatedClock();
  assert.equal(await inCpuTime(clock, {}, 1_000, Promise.resolve(7)), 7);
  await assert.rejects(inCpuTime(clock, {}, 1_000, Promise.reject(new Error('no'))), /no/);
});

test('a thread is spent when it has used its CPU time, however long that takes', async () => {
  assert.deepEqual(await limited(1, 4_000, 10_000), [SPENT, 4]);
  assert.deepEqual(await limited(0.1, 4_000, 100_000), [SPENT, 40]);
  assert.deepEqual(await limited(0.01, 4_000, 1_000_000), [SPENT, 400], 'with a hundred busy threads');
});

test('a thread that gets no CPU time is late after a minute, and not before', async () => {
  assert.equal(await limited(0, 4_000, 59_000), 'nothing yet');
  assert.deepEqual(await limited(0, 4_000, 62_000), [LATE, 60]);
});

test('where CPU time cannot be read, work is late after three times its limit, and never spent', async () => {
  assert.equal(await limited(undefined, 4_000, 11_000), 'nothing yet');
  assert.deepEqual(await limited(undefined, 4_000, 14_000), [LATE, 12]);
});

test.skipIf(process.platform !== 'linux')(
  'a thread that never returns says what it uses, one that waits uses nothing',
  async () => {
    const url = new URL(`file://${projectPath('dist/test/support/busy_thread.js')}`);
    const listener = { onDeath: () => undefined };
    const [busy, idle] = [0, 1].map(() =>
      workerThreads.spawn<() => { spin: () => void }>({ url }, undefined as never, listener),
    );
    assert(busy && idle);
    void busy.call('spin', undefined as never).catch(() => undefined);
    const used = async (thread: CpuTime): Promise<number> => (await thread.cpuMs?.()) ?? NaN;
    await until('both say it', async () => Number.isFinite((await used(busy)) + (await used(idle))));
    const before = await used(idle);
    await until('the busy one has used 300 ms', async () => (await used(busy)) > 300);
    expect((await used(idle)) - before).toBeLessThan(200);
    await Promise.all([busy, idle].map((thread) => thread.close()));
    assert.equal(await busy.cpuMs?.(), undefined, 'a thread that has ended says nothing');
  },
);

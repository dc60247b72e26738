/**
 * Measures the CPU use of an idle process with a live GPU device, under the software Vulkan driver or on a real GPU.
 * Budget: 20 s.
 */
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { testDevice as gpu } from '../kernels/software_gpu.ts';
import { Cluster } from '../support/cluster.ts';

test('an idle instance with a live GPU device uses no more of a core than one without, and 2 %', async () => {
  const devices = ['--prefill-device', 'wasm', '--decode-device', gpu, '--weights', 'f16'];
  const cluster = await Cluster.up(...devices, '--store', '0', '--chunk-tokens', '64');
  try {
    await cluster.completion({ prompt: [1, 2, 3], max_tokens: 8 });
    await sleep(1_000);
    // The other one, heartbeats and all, says what idling costs on this machine.
    const pids = [cluster.pidOf('decode-1'), cluster.pidOf('prefill-1')];
    // The quietest of three: a collection may fall into one.
    const shares: number[] = [];
    for (let i = 0; i < 3; i++) {
      const before = pids.map(cpuSeconds);
      await sleep(2_000);
      const [withDevice = NaN, without = NaN] = pids.map((pid, n) => (cpuSeconds(pid) - before[n]!) / 2);
      shares.push(withDevice - without);
    }
    const share = Math.min(...shares);
    console.log(`idle: ${(100 * share).toFixed(2)} % of a core more`);
    expect(share).toBeLessThan(0.02);
  } finally {
    await cluster.close();
  }
});

/** User and system time of a process, all threads: fields 14 and 15 of its stat, in ticks of 10 ms. */
function cpuSeconds(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
    .replace(/^.*\) /, '')
    .split(' ');
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

/**
 * Checks that a package which polls in a loop, as Dawn does, is slowed down while nothing is in flight. Under the software Vulkan driver.
 * Budget: 10 s.
 */
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { randomWeightsOnDevice } from '../../kernels/device.ts';
import { listAdapters } from '../../kernels/wgsl/adapters.ts';
import { polled } from '../../kernels/wgsl/polling.ts';
import { createWebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import { decoderProgram } from '../../shared/engine/architectures/decoder.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import { useVectorWidth } from '../kernels/software_gpu.ts';
import { goldenFolder } from '../support/golden.ts';
import { kvLayoutFor } from '../support/kv.ts';

useVectorWidth(256, { compiles: 'fast' });

test('a device that idles does not poll in a loop, and one that works answers', async () => {
  const device = await createWebgpuDevice({ adapter: 'llvmpipe', kernelSet: 'deterministic', memoryBytes: 0 });
  const program = decoderProgram(shapeOf(readModelFolder(goldenFolder('llama-tied'))), 64);
  const executable = await device.load(program, randomWeightsOnDevice(1), {
    maxRows: 8,
    maxSamples: 2,
    maxBlocksPerSequence: 2,
    weightFormat: 'f16',
    kv: kvLayoutFor(program.kv, 'f16'),
    numBlocks: { min: 2, max: 2 },
  });
  const sample = { row: 2, numCandidates: 1, askedTokens: [], isFullRowWanted: false };
  const batch = [{ tokens: [1, 2, 3], start: 0, blockTable: [0], samples: [sample] }];
  await executable.run(batch);
  let numTurns = 0;
  const before = process.cpuUsage();
  const untilMs = performance.now() + 1_000;
  while (performance.now() < untilMs) {
    await sleep(50);
    numTurns++;
  }
  const { user, system } = process.cpuUsage(before);
  expect((user + system) / 1e6).toBeLessThan(0.1);
  expect(numTurns).toBeGreaterThan(3);
  // A loop's own setImmediate is not Dawn's, and runs at once.
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal((await executable.run(batch)).length, 1);
  await executable.close();
  device.destroy();
});

test('a package that polls in a loop is slowed down while nothing is in flight, and not while something is', async () => {
  await listAdapters();
  let count = 0;
  let isStopped = false;
  // Dawn passes a function without name or parameters whose text is native code.
  const targets = [
    function () {
      count++;
      if (!isStopped) setImmediate(poll);
    },
  ];
  Object.defineProperty(targets[0], 'name', { value: '' });
  const poll: () => void = new Proxy(targets[0]!, {});
  setImmediate(poll);
  await sleep(400);
  const idle = count;
  expect(idle).toBeLessThan(40);
  await polled(sleep(400));
  expect(count - idle).toBeGreaterThan(2 * idle);
  isStopped = true;

  // A promise's own resolve function looks much the same, and must not wait.
  let isLate = false;
  const timer = setTimeout(() => (isLate = true), 1_000);
  for (let i = 0; i < 100; i++) await new Promise((resolve) => setImmediate(resolve));
  assert(!isLate, '100 turns of the loop');
  clearTimeout(timer);
});

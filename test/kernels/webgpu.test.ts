/**
 * The webgpu device conforms in the three operations it has, on a software Vulkan driver. Not covered: whole models, speed.
 * Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { afterAll, expect, test } from 'vitest';
import { createWebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import { llamaProgram } from '../../shared/engine/llama_program.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import { goldenFolder } from '../support/golden.ts';
import { conformance } from './conformance.ts';

// A device's own exp and fused multiply-add differ from the equation in the last bits.
conformance({ name: 'webgpu', open: () => createWebgpuDevice('llvmpipe'), tolerance: 1e-5 });

test('a program with an operation that has no kernel yet is refused by name', async () => {
  const device = await createWebgpuDevice('llvmpipe');
  assert.equal(device.kind, 'webgpu');
  const program = llamaProgram(readModelFolder(goldenFolder('llama-tied')).config, 64);
  const none = { ...program, weights: {} };
  const options = {
    maxRows: 8,
    maxSamples: 1,
    maxBlocksPerSequence: 2,
    kvDtype: 'f16' as const,
    blockSize: 32,
    numBlocks: 2,
  };
  await expect(device.load(none, { slices: () => assert.fail() }, options)).rejects.toThrow(/embed has no kernel/);
});

// Dawn's polling keeps the process alive while a device lives.
afterAll(() => {
  setTimeout(() => process.exit(process.exitCode ?? 0), 2_000).unref();
});

/**
 * Memory that a model needs on a GPU: what is reckoned before loading is what loading then finds, and a refusal names options with which
 * the model loads. Under the software Vulkan driver. Budget: 40 s.
 */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { DeviceError, randomWeightsOnDevice } from '../../kernels/device.ts';
import { totalNeeds } from '../../kernels/memory_needs.ts';
import { createWebgpuDevice, type WebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { loadModel } from '../../shared/engine/load_model.ts';
import type { LoadModelOptions } from '../../shared/engine/load_options.ts';
import { LoadPlanner } from '../../shared/engine/load_plan.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { goldenFolder } from '../support/golden.ts';
import { loadDefaults } from '../support/reference_loop.ts';
import { useVectorWidth, testAdapter, testDevice } from './software_gpu.ts';

useVectorWidth(256, { compiles: 'fast' });
const KIB = 1_024;
const open = (memoryBytes: number): Promise<WebgpuDevice> =>
  createWebgpuDevice({ adapter: testAdapter, kernelSet: 'deterministic', memoryBytes });

test.each([
  ['llama-tied', {}],
  ['qwen3_5', { numStateSlots: 9 }],
] as const)('%s loads into the bytes that it needs, and not into one less', async (name, more) => {
  const options = { ...loadDefaults, modelPath: goldenFolder(name), device: testDevice, numBlocks: 16, ...more };
  const folder = await openModel(options.modelPath);
  const weights = await folder.openWeights();
  const device = await open(0);
  const { held, load } = new LoadPlanner({ folder, shape: shapeOf(folder), weights, device }).plan(options);
  await weights.close();
  const bytes = totalNeeds(device.needs(held.program, load));
  device.destroy();
  const tight = await open(bytes - 1);
  await expect(tight.load(held.program, randomWeightsOnDevice(1), load)).rejects.toThrow(
    /16 KV blocks of .* do not fit: .* are left, enough for 15/,
  );
  tight.destroy();
  // Buffers are rounded up.
  const fitting = await open(bytes + 64 * KIB);
  const executable = await fitting.load(held.program, randomWeightsOnDevice(1), load);
  assert.equal(executable.numBlocks, 16);
  await executable.close();
  fitting.destroy();
});

test('a budget that is too small is refused before weights are read, and the one that is named is enough', async () => {
  const options: LoadModelOptions = {
    ...loadDefaults,
    modelPath: goldenFolder('llama-tied'),
    device: testDevice,
    numBlocks: 0,
    kernelSet: 'fast',
    chunkTokens: 64,
    deviceMemoryBytes: 1 << 20,
  };
  let loadedBytes = 0;
  const refused: unknown = await loadModel(options, (bytes) => (loadedBytes = bytes)).catch((error: unknown) => error);
  assert(refused instanceof DeviceError);
  assert.equal(loadedBytes, 0);
  const [, mib] = /--device-memory allows 1\.0 MiB; it fits with --device-memory (\d+)MiB$/.exec(refused.message) ?? [];
  assert(mib !== undefined, refused.message);
  const model = await loadModel({ ...options, deviceMemoryBytes: Number(mib) * KIB * KIB });
  expect(model.numBlocks * options.blockSize).toBeGreaterThanOrEqual(model.maxModelLen);
  await model.executable.close();
  model.device.destroy();
});

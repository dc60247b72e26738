/**
 * Products on subgroup matrices, under Mesa 26's software driver (8×8×8, f16 with sums in f32): every format. The suite runs in a Node
 * beside the machine's own driver; config/gpu_drivers.js unpacks it. Budget: 60 s.
 */
import { expect, test } from 'vitest';
import { createWebgpuDevice, type WebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import { conformance } from './conformance.ts';
import { testAdapter, useVectorWidth } from './software_gpu.ts';

useVectorWidth(256, { compiles: 'fast' });

let opened: Promise<WebgpuDevice> | undefined;
const open = (): Promise<WebgpuDevice> =>
  (opened ??= createWebgpuDevice({ adapter: testAdapter, memoryBytes: 0, kernelSet: 'fast' }));

test('the fast set takes the driver’s matrices', async () => {
  const { capabilities, notes, description } = await open();
  const matrix = { componentType: 'f16', resultComponentType: 'f32', M: 8, N: 8, K: 8, subgroupSize: 8 };
  expect(capabilities.matrix).toMatchObject(matrix);
  expect(notes).toEqual([]);
  expect(description).toContain('matrices f16 to f32 8×8×8');
});

conformance({ name: 'fast, on matrices', open, tolerance: 1e-5, linearTolerance: 2e-3, sampled: 8 });

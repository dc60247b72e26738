/**
 * Products on subgroup matrices, under Mesa 26's software driver (8×8×8, f16 with sums in f32): every format. The suite runs in a Node
 * with the machine's own driver; config/gpu_drivers.js unpacks it. Budget: 60 s.
 */
import { expect, test } from 'vitest';
import { weightFormats } from '../../kernels/weights/weight_format.ts';
import { createWebgpuDevice, type WebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import { isLong } from '../support/long.ts';
import { conformance } from './conformance.ts';
import { linearConformance } from './conformance/linear.ts';
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

const tolerances = { tolerance: 1e-5, linearTolerance: 2e-3 };
// Between them the kernels' formats; all five in the long run.
const formats = isLong ? weightFormats : (['f16', 'uint4'] as const);
conformance({
  name: 'fast, on matrices',
  open,
  ...tolerances,
  formats,
  sampled: 8,
  ...(isLong ? {} : { oneIn: 3, sampling: [{ vocab: 6_001, cases: 80 }] }),
});

// Tiles of 128 rows, as hardware gets them: the driver takes seconds for each.
if (isLong) {
  let ordered: Promise<WebgpuDevice> | undefined;
  linearConformance({
    name: 'matrices for every number of rows',
    ...tolerances,
    formats: ['f16', 'int8', 'int4'],
    open: () => (ordered ??= createWebgpuDevice({ adapter: testAdapter, memoryBytes: 0, kernelSet: 'matrices' })),
  });
  let whole: Promise<WebgpuDevice> | undefined;
  linearConformance({
    name: 'fast, on matrices, as for hardware',
    ...tolerances,
    formats: ['f16', 'int4'],
    open: () =>
      (whole ??= createWebgpuDevice({
        adapter: testAdapter,
        memoryBytes: 0,
        kernelSet: 'fast',
        isTreatedAsHardware: true,
      })),
  });
}

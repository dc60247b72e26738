/** Tests both kernel sets under the software Vulkan driver at one of its subgroup sizes, or on a real GPU. */
import assert from 'node:assert/strict';
import { afterAll, expect, test } from 'vitest';
import { createWebgpuDevice, type WebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import { conformance, subgroupConformance, weightConformance } from './conformance.ts';
import { isLong } from '../support/long.ts';
import { driver, isByHand, isSoftware, isUnguarded, testAdapter, useVectorWidth } from './software_gpu.ts';

/** Whether the rest is in the long run: there is none by hand. */
const isSampled = isSoftware && !isLong && !isByHand;

export function webgpuConformance(vectorWidth: 128 | 256 | 512): void {
  useVectorWidth(vectorWidth, { compiles: 'fast' });
  const devices = new Map<string, Promise<WebgpuDevice>>();
  const open = (id: string, options: Partial<Parameters<typeof createWebgpuDevice>[0]>): Promise<WebgpuDevice> => {
    const device =
      devices.get(id) ??
      createWebgpuDevice({ adapter: testAdapter, memoryBytes: 0, kernelSet: 'deterministic', isUnguarded, ...options });
    devices.set(id, device);
    return device;
  };
  const deterministic = (): Promise<WebgpuDevice> => open('deterministic', {});
  const fast = (): Promise<WebgpuDevice> => open('fast', { kernelSet: 'fast' });

  // Only the software driver lets a test choose.
  const size = driver.subgroupSize ?? vectorWidth / 32;
  test.runIf(isSoftware)(`the driver has subgroups of ${size}`, async () => {
    assert.deepEqual((await fast()).subgroupSizes, [size, size]);
    const { hasF16 } = driver;
    expect((await fast()).capabilities).toMatchObject({ hasSubgroups: true, hasF16, matrix: undefined });
  });

  // A device's own exp and fused multiply-add differ from the equation in the last bits.
  // The deterministic set uses no subgroups: whatever their size, its kernels are the same.
  if (vectorWidth === 256)
    conformance({ name: 'deterministic', open: deterministic, tolerance: 1e-5, oneIn: isSampled ? 3 : 1 });
  // Tiles of many rows hold x, and on matrix units the weights with their scales, as f16.
  const linearTolerance = isSoftware ? 2e-3 : 1e-2;
  // Where the driver's compiler takes minutes, two formats (f32, int4) and half of the shapes are enough, fewer in the short run.
  // The sampling kernel is the same in every set.
  const sampling = isSoftware ? [] : [{ vocab: 1_500, cases: 200 }];
  const sample = isSoftware
    ? ({ formats: ['f32', 'int4'], sampled: isLong ? 2 : 4, oneIn: isSampled ? 3 : 1, sampling } as const)
    : { sampling };
  // Between them the widths have all formats.
  const others =
    isSoftware && vectorWidth === 512
      ? ({ ...sample, formats: ['f16', 'int8'], sampled: isLong ? 2 : 8 } as const)
      : sample;
  // The other widths differ in products alone; the other kernels are compiled for them in the long run.
  const suites = isSampled && vectorWidth !== 256 ? subgroupConformance : conformance;
  suites({ name: 'fast', open: fast, tolerance: 1e-5, linearTolerance, ...others });
  if (vectorWidth === 256) {
    const withoutFeatures = ['subgroups', 'shader-f16'];
    const bare = (): Promise<WebgpuDevice> => open('bare', { kernelSet: 'fast', withoutFeatures });
    conformance({ name: 'fast, without subgroups and f16', open: bare, tolerance: 1e-5, ...sample });
    // Kernels as a real GPU gets them: loops unrolled, without guards, more and smaller workgroups. Seconds each for a software driver.
    const unrolled = (): Promise<WebgpuDevice> => open('unrolled', { isTreatedAsHardware: true });
    const few = isSoftware ? { ...sample, sampled: isLong || isSampled ? 4 : 16 } : {};
    conformance({ name: 'deterministic, as for hardware', open: unrolled, tolerance: 1e-5, ...few });
    // Every weight of more than 2 KiB is split.
    const narrow = (): Promise<WebgpuDevice> => open('narrow', { maxSliceBytes: 2_048 });
    weightConformance({ name: 'deterministic, weights in slices of 2 KiB', open: narrow, tolerance: 1e-5, ...sample });
  }

  afterAll(async () => {
    for (const device of devices.values()) (await device).destroy();
  });
}

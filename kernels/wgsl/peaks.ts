/** Measures the device's peak rates, the limits that a benchmark's figures are compared with. */
import { packParams, PARAMS_STRIDE, type KernelCache, type KernelSpec, type Specialisation } from './kernel.ts';
import { polled } from './polling.ts';

/** Reads every 16 bytes of a buffer once. */
export const peakRead = {
  name: 'peak_read',
  params: { rounds: 'u32' },
  buffers: { words: { access: 'read', dtype: 'vec4u' }, sink: { access: 'read_write', dtype: 'u32' } },
  constants: { WORKGROUP_SIZE: 256 },
} as const satisfies KernelSpec;

/** Multiplies and adds in eight independent chains of vectors. */
export const peakFma = {
  name: 'peak_fma',
  params: { rounds: 'u32' },
  buffers: { sink: { access: 'read_write', dtype: 'u32' } },
  constants: { WORKGROUP_SIZE: 256 },
  aliases: { Element: 'f32' },
} as const satisfies KernelSpec;

/** Peak rates of a device. */
export interface Peaks {
  readonly readBytesPerS: number;
  readonly f32FlopsPerS: number;
  /** Rate without matrix units; undefined when the adapter has no shader-f16. */
  readonly f16FlopsPerS: number | undefined;
  /** Microseconds per dispatch, measured with nearly empty dispatches in one pass. */
  readonly usPerDispatch: number;
}

const READ_ROUNDS = 16;
const FLOPS_PER_ROUND = 64;
const WORKGROUP_THREADS = 256;
/** A measurement grows until it takes this long. */
const ENOUGH_MS = 30;

/** Measures the peak rates of a device. `nowMs` is a steady clock in milliseconds. */
export async function measurePeaks(
  device: GPUDevice,
  kernels: KernelCache,
  isSoftware: boolean,
  nowMs: () => number,
): Promise<Peaks> {
  // Larger than any last-level cache, within every binding.
  const bytes = Math.min(device.limits.maxStorageBufferBindingSize, isSoftware ? 128 << 20 : 1 << 30);
  const readGroups = Math.floor(bytes / (WORKGROUP_THREADS * READ_ROUNDS * 16));
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST;
  const words = device.createBuffer({ label: 'peak words', size: bytes, usage });
  const sink = device.createBuffer({ label: 'peak sink', size: 4 * Math.max(65_536, readGroups), usage });
  const params = device.createBuffer({
    size: 2 * PARAMS_STRIDE,
    usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST,
  });
  const put = (spec: KernelSpec, rounds: number, offset: number): void => {
    const view = new DataView(new ArrayBuffer(PARAMS_STRIDE));
    packParams(spec, { rounds }, view, 0);
    device.queue.writeBuffer(params, offset, view.buffer);
  };
  put(peakRead, READ_ROUNDS, 0);

  const time = async (
    spec: KernelSpec,
    specialisation: Specialisation,
    offset: number,
    buffers: Readonly<Record<string, GPUBuffer>>,
    groups: number,
    repeats: number,
  ): Promise<number> => {
    const pipeline = await polled(kernels.pipeline(spec, specialisation));
    const bindGroup = kernels.bind(spec, { buffer: params, offset }, buffers);
    const submit = async (count: number): Promise<number> => {
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, bindGroup);
      for (let i = 0; i < count; i++) pass.dispatchWorkgroups(groups);
      pass.end();
      const start = nowMs();
      device.queue.submit([encoder.finish()]);
      await polled(device.queue.onSubmittedWorkDone());
      return nowMs() - start;
    };
    await submit(1);
    const [one, many] = [await submit(1), await submit(1 + repeats)];
    return Math.max(1e-3, many - one) / repeats;
  };

  const readMs = await time(peakRead, {}, 0, { words, sink }, readGroups, isSoftware ? 4 : 32);
  const flops = async (element: 'f32' | 'f16'): Promise<number> => {
    const groups = isSoftware ? 64 : 8_192;
    for (let rounds = 256; ; rounds *= 4) {
      put(peakFma, rounds, PARAMS_STRIDE);
      const ms = await time(peakFma, { aliases: { Element: element } }, PARAMS_STRIDE, { sink }, groups, 2);
      if (ms > ENOUGH_MS || rounds > 1 << 20)
        return (groups * WORKGROUP_THREADS * rounds * FLOPS_PER_ROUND * 1_000) / ms;
    }
  };
  const f32FlopsPerS = await flops('f32');
  const f16FlopsPerS = device.features.has('shader-f16') ? await flops('f16') : undefined;
  put(peakFma, 1, PARAMS_STRIDE);
  const dispatchMs = await time(peakFma, {}, PARAMS_STRIDE, { sink }, 1, 1_000);
  for (const buffer of [words, sink, params]) buffer.destroy();
  return {
    readBytesPerS: (readGroups * WORKGROUP_THREADS * READ_ROUNDS * 16 * 1_000) / readMs,
    f32FlopsPerS,
    f16FlopsPerS,
    usPerDispatch: dispatchMs * 1_000,
  };
}

/** Measures what lies below the engine: the round trip to the device, and loads at several distances between lanes. */
import { listAdapters, openAdapter, selectAdapter } from '../../kernels/wgsl/adapters.ts';
import { polled } from '../../kernels/wgsl/polling.ts';
import { percentile, type Figure } from '../bench/figures.ts';

async function rawDevice(adapter: string): Promise<GPUDevice> {
  const opened = await openAdapter(selectAdapter(await listAdapters(), adapter), false);
  const { maxStorageBufferBindingSize, maxBufferSize } = opened.adapter.limits;
  return polled(opened.adapter.requestDevice({ requiredLimits: { maxStorageBufferBindingSize, maxBufferSize } }));
}

const NUM_DISPATCHES = 1_000;

/** A thousand dispatches that need each other's results, as many that do not, and a submit with what comes back. */
export async function measureTurnaround(adapter: string, nowMs: () => number): Promise<Figure[]> {
  const device = await rawDevice(adapter);
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC;
  const code =
    '@group(0) @binding(0) var<storage, read_write> a: array<u32>;\n@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) { a[id.x] = a[id.x] * 3u + 1u; }';
  const pipeline = device.createComputePipeline({
    layout: 'auto',
    compute: { module: device.createShaderModule({ code }) },
  });
  const buffers = Array.from({ length: 64 }, () => device.createBuffer({ size: 4 * 64 * 128, usage }));
  const groups = buffers.map((buffer) =>
    device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries: [{ binding: 0, resource: { buffer } }] }),
  );
  const back = device.createBuffer({ size: 256, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  const timed = async (numBuffers: number, numDispatches: number): Promise<number> => {
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    for (let i = 0; i < numDispatches; i++) {
      pass.setBindGroup(0, groups[i % numBuffers]);
      pass.dispatchWorkgroups(128);
    }
    pass.end();
    encoder.copyBufferToBuffer(buffers[0]!, 0, back, 0, 256);
    const commands = encoder.finish();
    const startMs = nowMs();
    device.queue.submit([commands]);
    await polled(back.mapAsync(GPUMapMode.READ));
    back.unmap();
    return nowMs() - startMs;
  };
  await timed(1, 10);
  const alone: number[] = [];
  for (let i = 0; i < 50; i++) alone.push(await timed(1, 1));
  const once = percentile(alone, 0.5);
  const us = (ms: number): number => ((ms - once) * 1_000) / NUM_DISPATCHES;
  const figures = [
    { name: 'submit and map', value: once * 1_000, unit: 'µs' },
    { name: 'a dispatch that needs the one before', value: us(await timed(1, NUM_DISPATCHES)), unit: 'µs' },
    { name: 'a dispatch that needs none', value: us(await timed(buffers.length, NUM_DISPATCHES)), unit: 'µs' },
  ];
  for (const buffer of [...buffers, back]) buffer.destroy();
  return figures;
}

/** Bytes a second of loads of 16 bytes whose lanes lie so far apart, out of a region that stays in the cache. */
export async function measureLoads(adapter: string, isSmall: boolean, nowMs: () => number): Promise<Figure[]> {
  const device = await rawDevice(adapter);
  const figures: Figure[] = [];
  const [rounds, groups] = isSmall ? [64, 64] : [2_048, 4_096];
  const usage = GPUBufferUsage.STORAGE;
  const words = device.createBuffer({ size: 64 << 10, usage });
  const sink = device.createBuffer({ size: 4 * groups, usage });
  let first = NaN;
  for (const stride of [16, 32, 64, 128]) {
    const code = `@group(0) @binding(0) var<storage, read> words: array<vec4u>;
@group(0) @binding(1) var<storage, read_write> sink: array<u32>;
@compute @workgroup_size(128) fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  var sum = vec4u(0);
  for (var i = 0u; i < ${rounds}u; i++) { sum ^= words[(thread * ${stride / 16}u + i * 8u + group.x) % 4096u]; }
  if (sum.x == 0x12345u) { sink[group.x] = sum.y; }
}`;
    const pipeline = device.createComputePipeline({
      layout: 'auto',
      compute: { module: device.createShaderModule({ code }) },
    });
    const bindGroup = device.createBindGroup({
      layout: pipeline.getBindGroupLayout(0),
      entries: [words, sink].map((buffer, binding) => ({ binding, resource: { buffer } })),
    });
    const timed = async (): Promise<number> => {
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, bindGroup);
      pass.dispatchWorkgroups(groups);
      pass.end();
      const startMs = nowMs();
      device.queue.submit([encoder.finish()]);
      await polled(device.queue.onSubmittedWorkDone());
      return nowMs() - startMs;
    };
    await timed();
    const times = [await timed(), await timed(), await timed()];
    const bytesPerS = (groups * 128 * rounds * 16) / (Math.min(...times) / 1_000);
    if (stride === 16) first = bytesPerS;
    // The kernels are laid out for this model: a load costs one 128-byte line for each line that the lanes' addresses touch.
    const predicted = first / (stride / 16);
    const reference = { name: 'predicted', value: predicted / 1e9 };
    figures.push({
      name: `loads of 16 bytes, lanes ${stride} bytes apart`,
      value: bytesPerS / 1e9,
      unit: 'GB/s',
      reference,
      ratio: bytesPerS / predicted,
    });
  }
  words.destroy();
  sink.destroy();
  return figures;
}

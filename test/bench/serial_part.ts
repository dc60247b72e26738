/**
 * The serial part of a step on webgpu: from a step's results in JavaScript until the next one is submitted, while sequences decode in an engine's loop.
 * On Dawn's null back end, which takes every command and computes nothing: what is measured is the host alone.
 */
import { randomWeightsOnDevice, type SampleResult, type Segment } from '../../kernels/device.ts';
import { openNullAdapter, type OpenAdapter } from '../../kernels/wgsl/adapters.ts';
import type { KernelSet } from '../../kernels/wgsl/kernel_set.ts';
import { createDeviceOn } from '../../kernels/wgsl/webgpu_device.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { decoderProgram } from '../../shared/engine/architectures/decoder.ts';
import { EngineLoop } from '../../shared/engine/engine_loop.ts';
import type { Digest } from '../../shared/kv/block_key.ts';
import { percentile } from './figures.ts';
import { shapeOfUniform, type UniformModel } from './uniform_model.ts';
import { kvLayoutOf, kvSpecOf } from '../../shared/engine/program_kv.ts';
import { sequenceRequest } from '../support/request.ts';

const BLOCK_SIZE = 32;
const PROMPT = 20;
const WARM_UP = 20;
const ZERO = '0'.repeat(32) as Digest;

/** ms, median of so many steps. Widths are of no account there: the model is narrow, and has as many layers as `layers`. */
export async function measureSerialPart(
  { layers, set, batch }: { readonly layers: number; readonly set: KernelSet; readonly batch: number },
  numSteps: number,
): Promise<number> {
  const maxLength = PROMPT + WARM_UP + numSteps;
  const config: UniformModel = {
    hidden: 64,
    layers,
    heads: 4,
    kvHeads: 2,
    headDim: 16,
    inner: 128,
    vocabSize: 1_024,
    epsilon: 1e-5,
    ropeTheta: 10_000,
    maxPositions: maxLength,
  };
  const perSequence = Math.ceil(maxLength / BLOCK_SIZE);
  const numBlocks = batch * perSequence;
  const times: number[] = [];
  let resultsMs = NaN;
  const opened = withEmptyKernels(await openNullAdapter(), () => {
    // `resultsMs` is NaN when no step has returned since the last submission; such an interval is not measured.
    if (!Number.isNaN(resultsMs)) times.push(performance.now() - resultsMs);
    resultsMs = NaN;
  });
  const device = await createDeviceOn(opened, { adapter: '', kernelSet: set, memoryBytes: 0 });
  const program = decoderProgram(shapeOfUniform(config), maxLength);
  const spec = kvSpecOf(program, [], { blockSize: BLOCK_SIZE, valueType: 'f16' });
  const executable = await device.load(program, randomWeightsOnDevice(1), {
    maxRows: batch * PROMPT,
    maxSamples: batch,
    maxBlocksPerSequence: perSequence,
    weightFormat: 'f32',
    kv: kvLayoutOf(spec),
    numBlocks: { min: numBlocks, max: numBlocks },
  });
  const run = executable.run.bind(executable);
  executable.run = async (steps: readonly Segment[]): Promise<SampleResult[]> => {
    const results = await run(steps);
    resultsMs = performance.now();
    return results;
  };
  let numLeft = batch;
  const loop = new EngineLoop({
    executable,
    numBlocks,
    maxWaiting: batch,
    chunkTokens: batch * PROMPT,
    maxNumSeqs: batch,
    stepMs: 0,
    layout: { format: ZERO, numericsClass: device.numericsClass, spec },
    clock: systemClock,
    heartbeat: new Int32Array(2),
    emit: (message) => {
      if (message.kind !== 'events') return;
      for (const event of message.events) {
        if (event.kind !== 'refused' && !(event.kind === 'token' && event.finish)) continue;
        if (--numLeft === 0) loop.receive({ kind: 'stop' });
      }
    },
  });
  for (let id = 1; id <= batch; id++) {
    const tokens = Array.from({ length: PROMPT }, (_, i) => 3 + ((id * 31 + i) % 1_000));
    loop.submit(sequenceRequest({ id, root: ZERO, tokens, maxLength, sampling: { temperature: 1 } }));
  }
  await loop.run();
  await executable.close();
  device.destroy();
  return percentile(times.slice(WARM_UP), 0.5);
}

/** The null back end has less workgroup memory than the kernels need, and runs none of them: they are empty, with the bindings of the real ones. */
function withEmptyKernels(opened: OpenAdapter, onSubmitted: () => void): OpenAdapter {
  const { adapter } = opened;
  const { maxStorageBufferBindingSize, maxBufferSize } = adapter.limits;
  const limits = { maxStorageBufferBindingSize, maxBufferSize, maxComputeWorkgroupStorageSize: 32_768 };
  const requestDevice = async ({ requiredFeatures = [] }: GPUDeviceDescriptor): Promise<GPUDevice> => {
    const device = await adapter.requestDevice({ requiredFeatures });
    const module = device.createShaderModule({ code: '@compute @workgroup_size(1) fn main() {}' });
    const create = device.createComputePipelineAsync.bind(device);
    device.createComputePipelineAsync = (descriptor) =>
      create({ ...descriptor, compute: { module, entryPoint: 'main' } });
    const { queue } = device;
    const submit = queue.submit.bind(queue);
    queue.submit = (commands) => {
      submit(commands);
      onSubmitted();
    };
    return device;
  };
  const { features, info } = adapter;
  return { ...opened, adapter: { limits, features, info, requestDevice } as unknown as GPUAdapter };
}

/** Loads a model of 8B parameters in f16 on the first card, with as many KV blocks as fit, and says how it went. */
import { randomWeightsOnDevice } from '../../kernels/device.ts';
import { createWebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import { decoderProgram } from '../../shared/engine/architectures/decoder.ts';
import { configOf, shapeOfUniform, shapes, uniformTensors } from '../bench/uniform_model.ts';
import { kvLayoutFor } from '../support/kv.ts';

const device = await createWebgpuDevice({ adapter: '', kernelSet: 'deterministic', memoryBytes: 0 });
const shape = shapeOfUniform(configOf(shapes['8b']!, 8_192));
const program = decoderProgram(shape, 8_192, uniformTensors);
const result = await device
  .load(program, randomWeightsOnDevice(7), {
    maxRows: 512,
    maxSamples: 32,
    maxBlocksPerSequence: 256,
    weightFormat: 'f16',
    kv: kvLayoutFor(program.kv, 'f16'),
    numBlocks: { min: 256, max: 65_536 },
    samplerPages: 64,
  })
  .then(
    ({ numBlocks }) => `loaded ${numBlocks} blocks`,
    (error: unknown) => `refused: ${error instanceof Error ? error.message : String(error)}`,
  );
// The end of a device that is not there crashes.
process.stdout.write(`${result}\n`, () => process.kill(process.pid, 'SIGKILL'));

/**
 * A small model's step under the validation layer, with one index of a kernel changed by hand: `node wrong_index.js NAME`, or without a
 * name as it is. config/test_drivers.js looks whether the layer finds each.
 */
import assert from 'node:assert/strict';
import { randomWeightsOnDevice } from '../../kernels/device.ts';
import { createWebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import { decoderProgram } from '../../shared/engine/architectures/decoder.ts';
import { SequenceSampling } from '../../shared/engine/sampler.ts';
import { neutralSampling } from '../../shared/protocol/request.ts';
import { shapeOfUniform, uniformTensors } from '../bench/uniform_model.ts';
import { kvLayoutFor } from '../support/kv.ts';

/** Index errors by name: the kernel, a fragment of its text, and the text that replaces the fragment. */
export const wrongIndexes: Readonly<Record<string, readonly [kernel: string, right: string, wrong: string]>> = {
  merge: [
    'attention_merge',
    'values[i] = parts[slot * QUADS + quad];',
    'values[i] = parts[slot * QUADS + quad + 100000];',
  ],
  weights: ['matvec_ordered', 'output[r] = base + min(', 'output[r] = 5000 + base + min('],
  kv: ['rope_store', 'let to = (plane', 'let to = 4000000 + (plane'],
  norm: ['rms_norm', 'out[row + i] = select', 'out[row + i + 2000 * quads] = select'],
  sample: ['sample_choose', 'slots[(*one).slot] = token;', 'slots[(*one).slot + 100000] = token;'],
};

const name = process.argv[2];
if (name === '--list') {
  process.stdout.write(Object.keys(wrongIndexes).join(' '));
  process.exit(0);
}
const wrong = name === undefined ? undefined : wrongIndexes[name];
assert(name === undefined || wrong, `there is no wrong index ${name}`);
const device = await createWebgpuDevice({
  adapter: 'llvmpipe',
  kernelSet: 'deterministic',
  memoryBytes: 0,
  isUnguarded: true,
  rewriteWgsl: (kernel, code) => {
    if (!wrong || kernel !== wrong[0]) return code;
    assert(code.includes(wrong[1]), `${kernel} has no line ${wrong[1]}`);
    return code.replace(wrong[1], wrong[2]);
  },
});
const shape = shapeOfUniform({
  hidden: 64,
  layers: 1,
  heads: 4,
  kvHeads: 2,
  headDim: 16,
  inner: 128,
  vocabSize: 256,
  epsilon: 1e-5,
  ropeTheta: 1e4,
  maxPositions: 256,
});
const source = randomWeightsOnDevice(7);
const program = decoderProgram(shape, 256, uniformTensors);
const executable = await device.load(program, source, {
  maxRows: 64,
  maxSamples: 1,
  maxBlocksPerSequence: 8,
  weightFormat: 'int4',
  kv: kvLayoutFor(program.kv, 'f16'),
  numBlocks: { min: 8, max: 8 },
  samplerPages: 2,
});
const blockTable = [0, 1, 2, 3, 4, 5, 6, 7];
const sample = { ...new SequenceSampling({ ...neutralSampling, temperature: 1 }).at(200), slot: 0 };
const samples = [{ row: 0, numCandidates: 1, askedTokens: [], isFullRowWanted: false, sample }];
await executable.run([{ tokens: [3, 4, 5], start: 0, blockTable }]);
await executable.run([{ tokens: [3], start: 200, blockTable, samples }]);
// The layer's own memory is gone before Dawn's last calls at a proper end.
process.stdout.write('done\n', () => process.kill(process.pid, 'SIGKILL'));

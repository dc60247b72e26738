/**
 * CPU of a decode step on the card that the environment plays, recording included: `node step_cpu.js MODEL BATCH`, where MODEL is 8b or mixture.
 * The card's waits end at once, so that a step takes what this side of it takes.
 */
import { randomWeightsOnDevice } from '../../kernels/device.ts';
import { createWebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import { decoderProgram } from '../../shared/engine/architectures/decoder.ts';
import { SequenceSampling } from '../../shared/engine/sampler.ts';
import { neutralSampling } from '../../shared/protocol/request.ts';
import { percentile } from '../bench/figures.ts';
import { configOf, shapeOfUniform, shapes, uniformTensors } from '../bench/uniform_model.ts';
import { kvLayoutFor } from '../support/kv.ts';

/** Output of this process, printed as JSON. */
export interface StepCpu {
  readonly dispatches: number;
  /** All threads of the process. */
  readonly cpuMs: number;
  /** From the call until all is submitted: median, and the highest of 99 of 100. */
  readonly submitMs: number;
  readonly submitMsOf99: number;
}

const [WARM_UP, STEPS, CONTEXT, BLOCK_SIZE] = [40, 300, 2_048, 32];

const [model = '8b', batchArgument = '1'] = process.argv.slice(2);
const batch = Number(batchArgument);
const size = {
  ...shapes['8b']!,
  ...(model === 'mixture' ? { layers: 48, inner: 64, experts: { count: 128, perToken: 8 } } : {}),
};
const device = await createWebgpuDevice({ adapter: '', kernelSet: 'deterministic', memoryBytes: 0 });
const perSequence = Math.ceil((CONTEXT + WARM_UP + STEPS + 1) / BLOCK_SIZE);
const program = decoderProgram(shapeOfUniform(configOf(size, 4_096)), 4_096, uniformTensors);
const executable = await device.load(program, randomWeightsOnDevice(7), {
  maxRows: 512,
  maxSamples: batch,
  maxBlocksPerSequence: perSequence,
  weightFormat: 'f16',
  kv: kvLayoutFor(program.kv, 'f16', BLOCK_SIZE),
  numBlocks: { min: batch * perSequence, max: batch * perSequence },
  samplerPages: 2,
});
const sample = { ...new SequenceSampling({ ...neutralSampling, temperature: 1 }).at(300), slot: 0 };
const step = (position: number): Parameters<typeof executable.run>[0] =>
  Array.from({ length: batch }, (_, i) => ({
    tokens: [5],
    start: position,
    blockTable: Array.from({ length: perSequence }, (__, b) => i * perSequence + b),
    samples: [{ row: 0, numCandidates: 0, askedTokens: [], isFullRowWanted: false, sample: { ...sample, slot: i } }],
  }));
let position = CONTEXT;
for (let i = 0; i < WARM_UP; i++) await executable.run(step(position++));
const times: number[] = [];
const before = process.cpuUsage();
for (let i = 0; i < STEPS; i++) {
  const segments = step(position++);
  const startMs = performance.now();
  const running = executable.run(segments);
  times.push(performance.now() - startMs);
  await running;
}
const { user, system } = process.cpuUsage(before);
const figures: StepCpu = {
  dispatches: executable.numDispatches(step(CONTEXT)),
  cpuMs: (user + system) / 1_000 / STEPS,
  submitMs: percentile(times, 0.5),
  submitMsOf99: percentile(times, 0.99),
};
// The end of a device that is not there crashes.
process.stdout.write(JSON.stringify(figures), () => process.kill(process.pid, 'SIGKILL'));

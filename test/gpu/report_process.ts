/**
 * One stage of a report: `node report_process.js STAGE DEVICE SCALE`. Devices are left to the end of the process: what they hold is given
 * back by closing what they run, and not every driver survives the end of a device.
 */
import { spawnSync } from 'node:child_process';
import {
  randomWeightsOnDevice,
  type DeviceSampleParams,
  type Executable,
  type LoadOptions,
  type Segment,
} from '../../kernels/device.ts';
import { listAdapters, openAdapter, selectAdapter } from '../../kernels/wgsl/adapters.ts';
import { kernelSets, type KernelSet } from '../../kernels/wgsl/kernel_set.ts';
import { nameOf } from '../../kernels/wgsl/matrix_units.ts';
import { typicalProgram } from '../../kernels/wgsl/row_probe.ts';
import {
  createDeviceOn,
  createWebgpuDevice,
  type WebgpuDevice,
  type WebgpuOptions,
} from '../../kernels/wgsl/webgpu_device.ts';
import { linearConformance } from '../kernels/conformance/linear.ts';
import { attentionConformance } from '../kernels/conformance/attention.ts';
import { samplerConformance } from '../kernels/conformance/sample.ts';
import type { Conformance } from '../kernels/conformance/suite.ts';
import { decoderProgram } from '../../shared/engine/architectures/decoder.ts';
import { SequenceSampling } from '../../shared/engine/sampler.ts';
import { samplingOf, type TestSampling } from '../support/request.ts';
import { percentile, withReference, type Figure } from '../bench/figures.ts';
import { shapeOfUniform, shapes, uniformTensors, type UniformModel } from '../bench/uniform_model.ts';
import type { WeightFormat } from '../../kernels/weights/weight_format.ts';
import { measureLoads, measureTurnaround } from './report_measures.ts';
import { stageSeconds, type StageMessage, type StageName } from './report_stages.ts';
import { kvLayoutFor } from '../support/kv.ts';

const [stage, deviceName, scale] = process.argv.slice(2) as [StageName, string, string];
const isSmall = scale !== 'card';
const nowMs = (): number => performance.now();
const startMs = nowMs();
/** Whether the stage has used its time; no further measurement then begins. */
const isOver = (): boolean => nowMs() - startMs > stageSeconds[stage] * 1_000;

const print = (message: StageMessage): void => {
  process.send?.(message);
};
const notify = (figure: Figure): void => {
  print({ kind: 'figure', figure });
};
const figure = (name: string, value: number, unit: string): void => {
  notify({ name, value, unit });
};

const adapter = deviceName.replace(/^webgpu:?/, '');
const open = (kernelSet: KernelSet, more: Partial<WebgpuOptions> = {}): Promise<WebgpuDevice> =>
  createWebgpuDevice({ adapter, kernelSet, memoryBytes: 0, ...more });

const llama8b: UniformModel = isSmall
  ? { hidden: 64, layers: 2, heads: 4, kvHeads: 2, headDim: 16, inner: 128, vocabSize: 1_024, ...common() }
  : {
      ...shapes['8b']!,
      ...common(),
    };
const mixture30b: UniformModel = isSmall
  ? { ...llama8b, inner: 32, experts: { count: 8, perToken: 2 } }
  : {
      hidden: 2_048,
      layers: 48,
      heads: 32,
      kvHeads: 4,
      headDim: 128,
      inner: 768,
      vocabSize: 151_936,
      ...common(),
      experts: { count: 128, perToken: 8 },
    };

function common(): Pick<UniformModel, 'epsilon' | 'ropeTheta' | 'maxPositions'> {
  return { epsilon: 1e-5, ropeTheta: 500_000, maxPositions: isSmall ? 512 : 40_960 };
}

const BLOCK_SIZE = 32;
/** In figures' names. */
const [LLAMA, MIXTURE] = isSmall ? ['small', 'small mixture'] : ['8B', 'mixture of 30B'];

function load(
  device: WebgpuDevice,
  model: UniformModel,
  weightFormat: WeightFormat,
  more: Pick<LoadOptions, 'maxRows' | 'maxSamples' | 'maxBlocksPerSequence'>,
): Promise<Executable & { numDispatches(batch: readonly Segment[]): number }> {
  // The blocks hold one long sequence, which is more than a cache can keep; other sequences read the same blocks in another order.
  const numBlocks = more.maxBlocksPerSequence;
  const program = decoderProgram(shapeOfUniform(model), model.maxPositions, uniformTensors);
  return device.load(program, randomWeightsOnDevice(7), {
    ...more,
    weightFormat,
    kv: kvLayoutFor(program.kv, 'f16', BLOCK_SIZE),
    samplerPages: 2,
    numBlocks: { min: numBlocks, max: numBlocks },
  });
}

/** Bytes that a step must read: all weights, and the KV of every sequence. */
function stepBytes(model: UniformModel, format: WeightFormat, batch: number, context: number): number {
  const { hidden, layers, heads, kvHeads, headDim, inner, vocabSize, experts } = model;
  const bits = { f32: 32, f16: 16, int8: 8.5, int4: 4.5, uint4: 5, mxfp4: 4.25, iq4: 4.5 }[format];
  const active = experts ? Math.min(experts.count, batch * experts.perToken) : 1;
  const perLayer = hidden * (heads + 2 * kvHeads) * headDim + heads * headDim * hidden + active * 3 * hidden * inner;
  const kv = batch * context * layers * 2 * kvHeads * headDim * 2;
  return ((layers * perLayer + hidden * vocabSize) * bits) / 8 + kv;
}

const kinds: Readonly<Record<string, Partial<TestSampling>>> = {
  greedy: { temperature: 0 },
  default: { temperature: 1 },
  'top_p 0.9': { temperature: 1, topP: 0.9 },
};

/** Median of whole steps in which `batch` sequences decode. */
async function decodeMs(
  executable: Executable,
  batch: number,
  context: number,
  perSequence: number,
  kind: string,
): Promise<number> {
  const sample = (slot: number, position: number): DeviceSampleParams => ({
    ...new SequenceSampling(samplingOf(kinds[kind] ?? {})).at(position),
    slot,
  });
  const step = (position: number): Segment[] =>
    Array.from({ length: batch }, (_, i) => ({
      tokens: [5],
      start: position,
      blockTable: Array.from({ length: perSequence }, (__, b) => (i * 37 + b) % executable.numBlocks),
      samples: [{ row: 0, numCandidates: 0, askedTokens: [], isFullRowWanted: false, sample: sample(i, position) }],
    }));
  const times: number[] = [];
  const numSteps = isSmall ? 5 : 40;
  for (let i = 0; i < numSteps; i++) {
    const begunMs = nowMs();
    await executable.run(step(context + i));
    times.push(nowMs() - begunMs);
  }
  return percentile(times.slice(2), 0.5);
}

async function benchDecode(model: UniformModel, name: string, formats: readonly WeightFormat[]): Promise<void> {
  const contexts = isSmall ? [64] : [2_048, 32_768];
  const batches = isSmall ? [1, 3] : [1, 8, 32];
  for (const set of kernelSets) {
    const device = await open(set);
    const { readBytesPerS } = await device.peaks(nowMs);
    for (const format of formats) {
      const perSequence = Math.ceil((Math.max(...contexts) + 64) / BLOCK_SIZE);
      const maxSamples = Math.max(...batches);
      const executable = await load(device, model, format, {
        maxRows: maxSamples,
        maxSamples,
        maxBlocksPerSequence: perSequence,
      });
      for (const context of contexts) {
        for (const batch of batches) {
          for (const kind of context === contexts[0] ? Object.keys(kinds) : ['default']) {
            if (isOver()) continue;
            const ms = await decodeMs(executable, batch, context, perSequence, kind);
            // At the read peak of this card, nothing else.
            const predicted = batch / (stepBytes(model, format, batch, context) / readBytesPerS);
            const what = `${name} ${format} ${set} batch ${batch} context ${context} ${kind}`;
            notify(withReference(what, (batch * 1_000) / ms, 'tokens/s', 'predicted', predicted));
          }
        }
      }
      await executable.close();
    }
  }
}

async function benchPrefill(): Promise<void> {
  const lengths = isSmall ? [64] : [512, 2_048];
  for (const set of kernelSets) {
    const device = await open(set);
    const most = Math.max(...lengths);
    const options = { maxRows: most, maxSamples: 1, maxBlocksPerSequence: Math.ceil(most / BLOCK_SIZE) };
    const program = decoderProgram(shapeOfUniform(llama8b), llama8b.maxPositions, uniformTensors);
    const executable = await device.load(program, randomWeightsOnDevice(7), {
      ...options,
      weightFormat: 'f16',
      kv: kvLayoutFor(program.kv, 'f16', BLOCK_SIZE),
      numBlocks: { min: options.maxBlocksPerSequence, max: options.maxBlocksPerSequence },
    });
    for (const rows of lengths) {
      const tokens = new Array<number>(rows).fill(5);
      const batch = [
        { tokens, start: 0, blockTable: Array.from({ length: options.maxBlocksPerSequence }, (_, i) => i) },
      ];
      await executable.run(batch);
      const begunMs = nowMs();
      await executable.run(batch);
      figure(`${LLAMA} f16 ${set} prefill ${rows}`, (rows * 1_000) / (nowMs() - begunMs), 'tokens/s');
      if (isOver()) continue;
      for (const { label, ms, flops, numLaunches } of await executable.profile(batch, nowMs)) {
        const name = `${LLAMA} f16 ${set} prefill ${rows}: ${label} × ${numLaunches}`;
        if (flops > 0) figure(name, flops / (ms / 1_000) / 1e12, 'TFLOP/s');
        else figure(name, ms, 'ms');
      }
    }
    await executable.close();
  }
}

/** Products, attention and samples against their equations, in this process. */
async function checkKernels(): Promise<void> {
  for (const set of kernelSets) {
    const device = await open(set);
    const cases: (readonly [string, () => Promise<void>])[] = [];
    const suite: Conformance = {
      name: set,
      tolerance: 1e-5,
      linearTolerance: set === 'deterministic' ? 1e-5 : 1e-2,
      open: () => Promise.resolve(device),
      sampling: [{ vocab: 1_500, cases: isSmall ? 40 : 400 }],
      ...(isSmall ? { formats: ['int4'], sampled: 8 } : {}),
      cases: {
        describe: (_name, body) => {
          body();
        },
        test: (name, run) => cases.push([name, run]),
      },
    };
    for (const conformance of [linearConformance, attentionConformance, samplerConformance]) conformance(suite);
    const failures: string[] = [];
    let numRun = 0;
    for (const [name, run] of cases) {
      if (isOver()) break;
      numRun++;
      await run().catch((error: unknown) => failures.push(`${name}: ${String(error).slice(0, 200)}`));
    }
    figure(
      `kernels ${set}: cases that are right`,
      numRun - failures.length,
      `of ${numRun} run, ${cases.length} in all`,
    );
    print({ kind: 'facts', facts: { [`${set} failures`]: failures.slice(0, 40) } });
  }
}

/** Products of one row with other outputs a thread and lanes than the set would choose. */
async function sweep(): Promise<void> {
  const shapesOf: readonly (readonly [rows: number, lanes: number])[] = [
    [1, 4],
    [2, 4],
    [4, 4],
    [4, 2],
    [4, 8],
    [2, 8],
  ];
  const formats: readonly WeightFormat[] = isSmall ? ['int4'] : ['f16', 'int4'];
  for (const format of formats) {
    for (const [rows, lanes] of shapesOf) {
      if (isOver()) return;
      const device = await open('deterministic', { vectorShape: { rows, lanes } });
      const model = { ...llama8b, layers: 2 };
      const executable = await load(device, model, format, { maxRows: 1, maxSamples: 1, maxBlocksPerSequence: 8 });
      const ms = await decodeMs(executable, 1, 64, 8, 'greedy');
      figure(`sweep ${format}: ${rows} outputs a thread, ${lanes} lanes`, ms, 'ms for two layers');
      await executable.close();
    }
  }
}

const stages: Readonly<Record<StageName, () => Promise<void>>> = {
  async device() {
    const listing = selectAdapter(await listAdapters(), adapter);
    const opened = await openAdapter(listing);
    const { features, limits, info } = opened.adapter;
    const { vendor, architecture, description } = info;
    const allLimits: Record<string, unknown> = {};
    for (const key in limits) allLimits[key] = limits[key as keyof GPUSupportedLimits];
    print({
      kind: 'facts',
      facts: {
        listing,
        vendor,
        architecture,
        description,
        features: [...features].sort(),
        limits: allLimits,
        matrices: opened.matrixConfigs.map(nameOf),
      },
    });
    const fast = await createDeviceOn(opened, { adapter: '', kernelSet: 'fast', memoryBytes: 0 });
    const ordered = await open('deterministic');
    const begunMs = nowMs();
    await ordered.checkRows(typicalProgram, { weightFormat: 'f16', kv: { dtype: 'f16', blockSize: BLOCK_SIZE } });
    figure('probe of bits', nowMs() - begunMs, 'ms');
    const { matrix } = fast.capabilities;
    print({ kind: 'facts', facts: { takes: matrix ?? 'none', notes: [...fast.notes, ...ordered.notes] } });
  },
  kernels: checkKernels,
  async peaks() {
    const device = await open('fast');
    const { readBytesPerS, f32FlopsPerS, f16FlopsPerS, usPerDispatch } = await device.peaks(nowMs);
    figure('read', readBytesPerS / 1e9, 'GB/s');
    figure('f32 multiply-add', f32FlopsPerS / 1e12, 'TFLOP/s');
    if (f16FlopsPerS !== undefined) figure('f16 multiply-add', f16FlopsPerS / 1e12, 'TFLOP/s');
    figure('a dispatch after another', usPerDispatch, 'µs');
    for (const one of await measureTurnaround(adapter, nowMs)) notify(one);
  },
  async loads() {
    for (const one of await measureLoads(adapter, isSmall, nowMs)) notify(one);
  },
  decode: () => benchDecode(llama8b, LLAMA, ['f16', 'int4']),
  prefill: benchPrefill,
  mixture: () => benchDecode(mixture30b, MIXTURE, ['int4']),
  sweeps: sweep,
  async peer() {
    const { stdout, status } = spawnSync('llama-bench', ['--list-devices'], { encoding: 'utf8' });
    const how = 'put llama-bench, built with Vulkan, into PATH, and a GGUF into LLAMA_MODEL';
    const model = process.env['LLAMA_MODEL'];
    if (status !== 0 || model === undefined) {
      print({ kind: 'facts', facts: { skipped: how } });
      return;
    }
    const ran = spawnSync('llama-bench', ['-m', model, '-o', 'json'], { encoding: 'utf8' });
    print({ kind: 'facts', facts: { devices: stdout, results: JSON.parse(ran.stdout) as unknown } });
    await Promise.resolve();
  },
};

const end = await stages[stage]().then(
  (): StageMessage => ({ kind: 'end' }),
  (error: unknown): StageMessage => ({ kind: 'end', error: error instanceof Error ? error.message : String(error) }),
);
// A driver may not survive a proper end.
process.send?.(end, () => process.kill(process.pid, 'SIGKILL'));

/**
 * The engine by itself, without a cluster: prefill and decode of whole models of random weights, each kernel of a step next to the limits
 * that the same device showed in the same run, and on wasm, when asked for, llama.cpp with the same weights on the same cores.
 *
 * What does not fit, or would take longer than the budget, is skipped with a line that says so.
 */
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import {
  DeviceError,
  randomWeightsOnDevice,
  type Device,
  type LoadOptions,
  type WeightSource,
} from '../../kernels/device.ts';
import { createWasmDevice, type WasmDevice } from '../../kernels/wasm/wasm_device.ts';
import { productsOfRun } from '../support/products.ts';
import type { WasmPeaks } from '../../kernels/wasm/peaks.ts';
import { isTable } from '../../kernels/weights/code_tables.ts';
import { weightFormats, type WeightFormat } from '../../kernels/weights/weight_format.ts';
import type { KernelSet } from '../../kernels/wgsl/kernel_set.ts';
import type { Peaks } from '../../kernels/wgsl/peaks.ts';
import { createWebgpuDevice, type WebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import { decoderProgram } from '../../shared/engine/architectures/decoder.ts';
import { kvSpecOf, stateLayoutOf } from '../../shared/engine/program_kv.ts';
import { configOf, shapeOfUniform, shapes, uniformTensors, type UniformModel } from './uniform_model.ts';
import type { Figure } from './figures.ts';
import { openCards } from '../gpu/cards.ts';
import type { StepCpu } from '../gpu/step_cpu.ts';
import { projectPath } from '../support/project.ts';
import { ggufName, ggufPositions, writeGguf } from './gguf.ts';
import { cacheFolder, LlamaPeer, type PeerInstructions, type PeerModel } from './llama_peer.ts';
import { GROWTH, ModelBench, type Limit, type Profiled } from './model_bench.ts';
import { randomWeights } from './random_weights.ts';
import { measureSerialPart } from './serial_part.ts';
import { kvLayoutFor } from '../support/kv.ts';

export const shapeNames = Object.keys(shapes);

export interface EngineBenchOptions {
  /** `wasm`, `webgpu` or `webgpu:NAME`. */
  readonly device: string;
  readonly shapes: readonly string[];
  readonly formats: readonly WeightFormat[];
  readonly sets: readonly KernelSet[];
  readonly prefillTokens: readonly number[];
  readonly batches: readonly number[];
  readonly contexts: readonly number[];
  /** Threads of a wasm engine and of the peer; 0 means one per core. */
  readonly numThreads: number;
  /** Bytes of memory that a wasm engine may have: those of the machine unless given. */
  readonly machineBytes?: number;
  /** A figure that would take longer is skipped. */
  readonly budgetMs: number;
  /** Whether each kernel is timed by itself. */
  readonly hasProfile: boolean;
  /** llama.cpp, on wasm, and what it may use of the CPU. */
  readonly peer?: PeerInstructions | undefined;
  /** Bytes of the region whose plain read is the reference for bandwidth. */
  readonly readRegionBytes: number;
  readonly print: (line: string) => void;
  /** Reports what computed (`what`), in words, for the report. */
  readonly onEngine?: (what: string, description: string) => void;
  /** Figures as they come: the whole takes long. */
  readonly onFigure?: (figure: Figure) => void;
}

const common = {
  readRegionBytes: 2 ** 30,
  formats: weightFormats,
  sets: ['deterministic', 'fast'],
  contexts: [128, 2_048],
  numThreads: 0,
  hasProfile: true,
};
/** Default measurements of the engine benchmark, by kind of device. */
export const engineBenchDefaults = {
  wasm: {
    ...common,
    shapes: ['135m', '1b', 'mixture', 'windowed'],
    prefillTokens: [128, 512, 2_048],
    batches: [1, 4, 8],
    budgetMs: 120_000,
  },
  webgpu: {
    ...common,
    shapes: ['135m', '1b', 'mixture', 'windowed', '8b'],
    prefillTokens: [512, 2_048, 8_192],
    batches: [1, 8, 32],
    budgetMs: 30_000,
  },
} as const;

/** Dense f16 rate of the matrix units and memory bandwidth, from the vendor's data sheet. */
const vendorPeaks: readonly { readonly name: RegExp; readonly opsPerS: number; readonly bytesPerS: number }[] = [
  { name: /H200/, opsPerS: 989e12, bytesPerS: 4.8e12 },
  { name: /H100/, opsPerS: 989e12, bytesPerS: 3.35e12 },
];

const CHUNK_TOKENS = 2_048;
const BLOCK_SIZE = 32;
const SEED = 7;
const SERIAL_STEPS = 200;

const now = (): number => performance.now();

export async function benchEngine(options: EngineBenchOptions): Promise<Figure[]> {
  return options.device === 'wasm' ? benchWasm(options) : benchWebgpu(options);
}

async function benchWasm(options: EngineBenchOptions): Promise<Figure[]> {
  const numThreads = options.numThreads || availableParallelism();
  const { machineBytes } = options;
  const bounds = machineBytes === undefined ? {} : { machineBytes };
  const device: WasmDevice = createWasmDevice(numThreads, true, 1, bounds, { wanted: productsOfRun });
  notify(options, 'device', `${device.description}, ${device.numericsClass}`);
  const limit = options.peer;
  const peer = limit && (await orWithout(options, () => LlamaPeer.install(numThreads, limit, options.print)));
  if (peer) notify(options, 'peer', `llama.cpp in ${peer.version} with ${peer.instructions}, ${numThreads} threads`);
  const peaks = await device.peaks(now, options.readRegionBytes);
  const figures = announced(wasmPeakFigures(peaks), options);
  const { f32FlopsPerS, intOpsPerS, int4OpsPerS, readBytesPerS: bytesPerS } = peaks;
  const opsPerS = { f32: f32FlopsPerS, int8: intOpsPerS, int4: int4OpsPerS };
  for (const shape of options.shapes) {
    for (const format of options.formats) {
      const limits: Limit[] = [{ name: 'measured', opsPerS, bytesPerS }];
      const model: BenchedModel = { shape, format, prefix: `engine/${shape}/${format}`, limits };
      const openPeer = (weights: WeightSource, config: UniformModel): Promise<PeerModel | undefined> =>
        orWithout(options, () => peerModel(peer, numThreads, model, config, weights, options.print));
      figures.push(...(await benchModel(device, model, options, openPeer)));
    }
  }
  device.destroy();
  return figures;
}

function notify({ print, onEngine }: EngineBenchOptions, what: string, description: string): void {
  print(description);
  onEngine?.(what, description);
}

/** A peer that cannot be had is no reason not to measure. */
async function orWithout<T>({ print }: EngineBenchOptions, open: () => Promise<T>): Promise<T | undefined> {
  try {
    return await open();
  } catch (error) {
    print(`without the peer: ${error instanceof Error ? error.message : String(error)}`);
    return undefined;
  }
}

async function benchWebgpu(options: EngineBenchOptions): Promise<Figure[]> {
  const figures: Figure[] = [];
  let peaks: Peaks | undefined;
  for (const set of options.sets) {
    const adapter = options.device.replace(/^webgpu:?/, '');
    const device: WebgpuDevice = await createWebgpuDevice({ adapter, kernelSet: set, memoryBytes: 0 });
    notify(options, `device, ${set}`, device.description);
    if (!peaks) {
      peaks = await device.peaks(now);
      figures.push(...announced(webgpuPeakFigures(peaks), options));
    }
    const vendor = vendorPeaks.find(({ name }) => name.test(device.description));
    const limits: Limit[] = [
      { name: 'measured', opsPerS: ofAllKinds(peaks.f32FlopsPerS), bytesPerS: peaks.readBytesPerS },
      ...(vendor ? [{ name: 'vendor', opsPerS: ofAllKinds(vendor.opsPerS), bytesPerS: vendor.bytesPerS }] : []),
    ];
    for (const shape of options.shapes) {
      figures.push(...announced(await serialFigures(shape, set, options.batches), options));
      for (const format of options.formats) {
        const prefix = `engine/${shape}/${format}/${set}`;
        figures.push(...(await benchModel(device, { shape, format, prefix, limits }, options)));
      }
    }
    device.destroy();
  }
  figures.push(...announced(priceOfDeterminism(figures), options));
  if (options.shapes.includes('8b')) figures.push(...announced(await cpuOfSteps(options), options));
  return figures;
}

/** Measures the CPU time of recording a step with a real driver, for cards that are not in this machine. */
async function cpuOfSteps({ print }: EngineBenchOptions): Promise<Figure[]> {
  const { cards, why } = await openCards();
  for (const line of why) print(`skipped: ${line}`);
  const figures: Figure[] = [];
  for (const { name, execPath, env } of cards) {
    for (const [model, batch] of [
      ['8b', 1],
      ['8b', 32],
      ['mixture', 1],
    ] as const) {
      const { stdout } = spawnSync(execPath, [projectPath('dist/test/gpu/step_cpu.js'), model, String(batch)], {
        env: { ...process.env, ...env },
        encoding: 'utf8',
      });
      if (stdout === '') continue;
      const { cpuMs, submitMs, submitMsOf99, dispatches } = JSON.parse(stdout) as StepCpu;
      const prefix = `engine/${model}/batch${batch}/on a card that is not there (${name})`;
      figures.push(
        { name: `${prefix}/cpu`, value: cpuMs, unit: 'ms' },
        { name: `${prefix}/until-submitted`, value: submitMs, unit: 'ms' },
        { name: `${prefix}/until-submitted-99-of-100`, value: submitMsOf99, unit: 'ms' },
        { name: `${prefix}/dispatches`, value: dispatches, unit: '' },
      );
    }
  }
  return figures;
}

async function serialFigures(shape: string, set: KernelSet, batches: readonly number[]): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const batch of batches) {
    const value = await measureSerialPart({ layers: shapes[shape]?.layers ?? 1, set, batch }, SERIAL_STEPS);
    figures.push({ name: `engine/${shape}/${set}/serial-part/batch${batch}`, value, unit: 'ms' });
  }
  return figures;
}

/** The WGSL kernels multiply floats, whatever the weights are. */
function ofAllKinds(opsPerS: number): Limit['opsPerS'] {
  return { f32: opsPerS, int8: opsPerS, int4: opsPerS };
}

function announced(figures: readonly Figure[], { onFigure }: EngineBenchOptions): Figure[] {
  for (const figure of figures) onFigure?.(figure);
  return [...figures];
}

function wasmPeakFigures({ readBytesPerS, f32FlopsPerS, intOpsPerS, int4OpsPerS, usPerBarrier }: WasmPeaks): Figure[] {
  return [
    { name: 'engine/peak/read', value: readBytesPerS / 1e9, unit: 'GB/s' },
    { name: 'engine/peak/multiply-add-f32', value: f32FlopsPerS / 1e9, unit: 'GFLOP/s' },
    { name: 'engine/peak/multiply-add-int8', value: intOpsPerS / 1e9, unit: 'GOP/s' },
    { name: 'engine/peak/multiply-add-int4', value: int4OpsPerS / 1e9, unit: 'GOP/s' },
    { name: 'engine/peak/barrier', value: usPerBarrier, unit: 'µs' },
  ];
}

function webgpuPeakFigures({ readBytesPerS, f32FlopsPerS, f16FlopsPerS, usPerDispatch }: Peaks): Figure[] {
  return [
    { name: 'engine/peak/read', value: readBytesPerS / 1e9, unit: 'GB/s' },
    { name: 'engine/peak/fma-f32', value: f32FlopsPerS / 1e9, unit: 'GFLOP/s' },
    ...(f16FlopsPerS === undefined
      ? []
      : [{ name: 'engine/peak/fma-f16', value: f16FlopsPerS / 1e9, unit: 'GFLOP/s' }]),
    { name: 'engine/peak/dispatch', value: usPerDispatch, unit: 'µs' },
  ];
}

interface BenchedDevice extends Device {
  load(...args: Parameters<Device['load']>): Promise<Profiled>;
}

interface BenchedModel {
  readonly shape: string;
  readonly format: WeightFormat;
  readonly prefix: string;
  readonly limits: readonly Limit[];
}

async function benchModel(
  device: BenchedDevice,
  { shape: shapeName, format, prefix, limits }: BenchedModel,
  options: EngineBenchOptions,
  openPeer?: (weights: WeightSource, config: UniformModel) => Promise<PeerModel | undefined>,
): Promise<Figure[]> {
  const shape = shapes[shapeName];
  if (!shape) throw new Error(`no shape ${shapeName}: there are ${shapeNames.join(', ')}`);
  const { prefillTokens, batches, contexts, print, onFigure, budgetMs, hasProfile } = options;
  const longest = Math.max(...prefillTokens, ...contexts.map((context) => context + GROWTH));
  const config = configOf(shape, longest);
  const program = decoderProgram(shapeOfUniform(config), longest, uniformTensors);
  const state = stateLayoutOf(kvSpecOf(program, [], { blockSize: BLOCK_SIZE, valueType: 'f16' }));
  const perSequence = Math.ceil(longest / BLOCK_SIZE);
  const numSeqs = Math.max(...batches);
  const wanted = Math.max(perSequence, numSeqs * Math.ceil((Math.max(...contexts) + GROWTH) / BLOCK_SIZE));
  const load: LoadOptions = {
    maxRows: Math.min(CHUNK_TOKENS, Math.max(numSeqs, ...prefillTokens)),
    maxSamples: numSeqs,
    maxBlocksPerSequence: perSequence,
    weightFormat: format,
    kv: kvLayoutFor(program.kv, 'f16', BLOCK_SIZE),
    numBlocks: { min: wanted, max: wanted },
    ...(state ? { state, numStateSlots: numSeqs } : {}),
  };
  // A GPU makes its own, which need not travel.
  const weights = device.kind === 'wasm' ? randomWeights(program, SEED) : randomWeightsOnDevice(SEED);
  let executable: Profiled;
  try {
    executable = await device.load(program, weights, load);
  } catch (error) {
    if (!(error instanceof DeviceError)) throw error;
    print(`${prefix}: skipped, it does not fit: ${error.message}`);
    return [];
  }
  const peer = await openPeer?.(weights, config);
  const bench = new ModelBench(executable, config, load, {
    prefix,
    format,
    limits,
    peer,
    peerName: peerName(options),
    prefillTokens,
    batches,
    contexts,
    budgetMs,
    hasProfile,
    print,
    onFigure,
    chunkTokens: CHUNK_TOKENS,
    blockSize: BLOCK_SIZE,
    nowMs: now,
  });
  try {
    return await bench.run();
  } finally {
    await peer?.close();
    await executable.close();
  }
}

/** The model as the peer reads it, written once into the cache. */
export async function peerModel(
  peer: LlamaPeer | undefined,
  numThreads: number,
  { shape, format }: Pick<BenchedModel, 'shape' | 'format'>,
  config: UniformModel,
  weights: WeightSource,
  print: (line: string) => void,
): Promise<PeerModel | undefined> {
  if (!peer || format === 'f32' || isTable(format)) return undefined;
  const path = join(cacheFolder(), ggufName(shape, format));
  if (!existsSync(path)) {
    print(`writing ${path}`);
    await writeGguf(path, { ...config, maxPositions: ggufPositions }, format, weights);
  }
  return peer.load(path, numThreads);
}

function peerName({ peer }: EngineBenchOptions): string {
  return peer === undefined || peer === 'all' ? 'llama.cpp' : `llama.cpp (at most ${peer})`;
}

/** Throughput of the deterministic set over that of the fast one, where both were measured. */
function priceOfDeterminism(figures: readonly Figure[]): Figure[] {
  const byName = new Map(figures.map((figure) => [figure.name, figure]));
  return figures.flatMap(({ name, value, unit }) => {
    const fast =
      name.includes('/deterministic/') && unit === 'tokens/s'
        ? byName.get(name.replace('/deterministic/', '/fast/'))
        : undefined;
    if (!fast) return [];
    const price = name.replace('/deterministic/', '/price-of-determinism/');
    return [{ name: price, value, unit, reference: { name: 'fast', value: fast.value }, ratio: value / fast.value }];
  });
}

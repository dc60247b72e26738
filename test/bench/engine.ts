/**
 * The engine by itself, without a cluster: prefill and decode of whole models of random weights made on the device, and on webgpu each
 * kernel of a step beside the limits that the same device showed in the same run.
 *
 * What does not fit, or would take longer than the budget, is skipped with a line that says so.
 */
import { DeviceError, type Device, type Executable, type LoadOptions, type Segment } from '../../kernels/device.ts';
import { createWasmDevice } from '../../kernels/wasm/wasm_device.ts';
import { weightFormats, type WeightFormat } from '../../kernels/weight_format.ts';
import { kernelSets, type KernelSet } from '../../kernels/wgsl/kernel_set.ts';
import type { Peaks } from '../../kernels/wgsl/peaks.ts';
import { createWebgpuDevice, type WebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import type { WebgpuExecutable } from '../../kernels/wgsl/webgpu_executable.ts';
import { llamaProgram } from '../../shared/engine/llama_program.ts';
import type { LlamaConfig } from '../../shared/model/model_folder.ts';
import type { Figure } from './figures.ts';

type Shape = Pick<LlamaConfig, 'hidden' | 'layers' | 'heads' | 'kvHeads' | 'headDim' | 'inner' | 'vocabSize'>;

const shapes: Readonly<Record<string, Shape>> = {
  tiny: { hidden: 64, layers: 2, heads: 4, kvHeads: 2, headDim: 16, inner: 128, vocabSize: 256 },
  '135m': { hidden: 576, layers: 30, heads: 9, kvHeads: 3, headDim: 64, inner: 1_536, vocabSize: 49_152 },
  '1b': { hidden: 2_048, layers: 16, heads: 32, kvHeads: 8, headDim: 64, inner: 8_192, vocabSize: 128_256 },
  '8b': { hidden: 4_096, layers: 32, heads: 32, kvHeads: 8, headDim: 128, inner: 14_336, vocabSize: 128_256 },
};
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
  readonly numThreads: number;
  /** A figure that would take longer is skipped. */
  readonly budgetMs: number;
  /** Whether each kernel is timed by itself. */
  readonly hasProfile: boolean;
  readonly say: (line: string) => void;
  /** Figures as they come: the whole takes long. */
  readonly onFigure?: (figure: Figure) => void;
}

export const engineBenchDefaults = {
  shapes: ['135m', '1b', '8b'],
  formats: weightFormats,
  sets: kernelSets,
  prefillTokens: [512, 2_048, 8_192],
  batches: [1, 8, 32],
  contexts: [128, 2_048],
  numThreads: 0,
  budgetMs: 30_000,
  hasProfile: true,
} as const;

/** Dense f16 rate of the matrix units and memory bandwidth, from the vendor's data sheet. */
const vendorPeaks: readonly { readonly name: RegExp; readonly flopsPerS: number; readonly bytesPerS: number }[] = [
  { name: /H200/, flopsPerS: 989e12, bytesPerS: 4.8e12 },
  { name: /H100/, flopsPerS: 989e12, bytesPerS: 3.35e12 },
];

const CHUNK_TOKENS = 2_048;
const BLOCK_SIZE = 32;

export async function benchEngine(options: EngineBenchOptions): Promise<Figure[]> {
  const figures: Figure[] = [];
  const isGpu = options.device.startsWith('webgpu');
  let peaks: Peaks | undefined;
  for (const set of isGpu ? options.sets : (['deterministic'] as const)) {
    const device = await open(options, set);
    options.say(device.description);
    if (isGpu && !peaks) {
      peaks = await (device as WebgpuDevice).peaks(now);
      figures.push(...peakFigures(peaks));
    }
    for (const shape of options.shapes) {
      for (const format of options.formats) {
        const prefix = ['engine', shape, format, ...(isGpu ? [set] : [])].join('/');
        figures.push(...(await benchModel(device, shape, format, prefix, options, peaks)));
      }
    }
    device.destroy();
  }
  figures.push(...priceOfDeterminism(figures));
  return figures;
}

const now = (): number => performance.now();

async function open({ device, numThreads }: EngineBenchOptions, kernelSet: KernelSet): Promise<Device> {
  if (device === 'wasm') return createWasmDevice(numThreads || 1);
  return createWebgpuDevice({ adapter: device.replace(/^webgpu:?/, ''), kernelSet, memoryBytes: 0 });
}

function peakFigures({ readBytesPerS, f32FlopsPerS, f16FlopsPerS, usPerDispatch }: Peaks): Figure[] {
  return [
    { name: 'engine/peak/read', value: readBytesPerS / 1e9, unit: 'GB/s' },
    { name: 'engine/peak/fma-f32', value: f32FlopsPerS / 1e9, unit: 'GFLOP/s' },
    ...(f16FlopsPerS === undefined
      ? []
      : [{ name: 'engine/peak/fma-f16', value: f16FlopsPerS / 1e9, unit: 'GFLOP/s' }]),
    { name: 'engine/peak/dispatch', value: usPerDispatch, unit: 'µs' },
  ];
}

async function benchModel(
  device: Device,
  shapeName: string,
  format: WeightFormat,
  prefix: string,
  options: EngineBenchOptions,
  peaks: Peaks | undefined,
): Promise<Figure[]> {
  const shape = shapes[shapeName];
  if (!shape) throw new Error(`no shape ${shapeName}: there are ${shapeNames.join(', ')}`);
  const { prefillTokens, batches, contexts, say } = options;
  const longest = Math.max(...prefillTokens, ...contexts.map((context) => context + 64));
  const program = llamaProgram(configOf(shape, longest), longest);
  const perSequence = Math.ceil(longest / BLOCK_SIZE);
  const numSeqs = Math.max(...batches);
  const wanted = Math.max(perSequence, numSeqs * Math.ceil((Math.max(...contexts) + 64) / BLOCK_SIZE));
  const load: LoadOptions = {
    maxRows: Math.min(CHUNK_TOKENS, Math.max(numSeqs, ...prefillTokens)),
    maxSamples: numSeqs,
    maxBlocksPerSequence: perSequence,
    weightFormat: format,
    kvDtype: 'f16',
    blockSize: BLOCK_SIZE,
    numBlocks: { min: wanted, max: wanted },
  };
  let executable: Executable;
  try {
    executable = await device.load(program, randomWeights, load);
  } catch (error) {
    if (!(error instanceof DeviceError)) throw error;
    say(`${prefix}: skipped, it does not fit: ${error.message}`);
    return [];
  }
  const bench = new ModelBench(executable, shape, prefix, options, peaks, device.description);
  const figures = await bench.run();
  await executable.close();
  return figures;
}

const randomWeights = {
  randomSeed: 7,
  slices: (): never => {
    throw new Error('random weights are made on the device');
  },
};

function configOf(shape: Shape, maxPositions: number): LlamaConfig {
  return {
    ...shape,
    epsilon: 1e-5,
    ropeTheta: 10_000,
    maxPositions,
    isTied: false,
    hasAttentionBias: false,
    hasMlpBias: false,
  };
}

/** Values of all products of one row. */
function productWeights({ hidden, layers, heads, kvHeads, headDim, inner, vocabSize }: Shape): {
  perRow: number;
  perSample: number;
} {
  const attention = hidden * (heads + 2 * kvHeads) * headDim + heads * headDim * hidden;
  return { perRow: layers * (attention + 3 * hidden * inner), perSample: hidden * vocabSize };
}

class ModelBench {
  readonly #executable: Executable;
  readonly #shape: Shape;
  readonly #prefix: string;
  readonly #options: EngineBenchOptions;
  readonly #peaks: Peaks | undefined;
  readonly #vendor: (typeof vendorPeaks)[number] | undefined;
  readonly #figures: Figure[] = [];

  constructor(
    executable: Executable,
    shape: Shape,
    prefix: string,
    options: EngineBenchOptions,
    peaks: Peaks | undefined,
    description: string,
  ) {
    this.#executable = executable;
    this.#shape = shape;
    this.#prefix = prefix;
    this.#options = options;
    this.#peaks = peaks;
    this.#vendor = vendorPeaks.find(({ name }) => name.test(description));
  }

  async run(): Promise<Figure[]> {
    const { prefillTokens, batches, contexts } = this.#options;
    let tokensPerMs: number | undefined;
    for (const numTokens of prefillTokens) tokensPerMs = await this.#prefill(numTokens, tokensPerMs);
    for (const batch of batches) {
      for (const context of contexts) await this.#decode(batch, context);
    }
    return this.#figures;
  }

  #segment(tokens: number, start: number, firstBlock: number, isSampled: boolean): Segment {
    const numBlocks = Math.ceil((start + tokens) / BLOCK_SIZE);
    return {
      tokens: Array.from({ length: tokens }, (_, i) => (start + i * 7) % this.#shape.vocabSize),
      start,
      blockTable: Array.from({ length: numBlocks }, (_, i) => firstBlock + i),
      ...(isSampled ? { sample: { numCandidates: 1, askedTokens: [], isFullRowWanted: false } } : {}),
    };
  }

  async #timed(batch: readonly Segment[]): Promise<number> {
    const start = now();
    await this.#executable.run(batch);
    return now() - start;
  }

  /** Chunks of CHUNK_TOKENS, best of two runs. Returns its rate, which predicts the next one's time. */
  async #prefill(numTokens: number, tokensPerMs: number | undefined): Promise<number | undefined> {
    const name = `${this.#prefix}/prefill/${numTokens}`;
    let rate = tokensPerMs;
    if (rate === undefined) {
      // The first step compiles; a small second one says whether the whole is within the budget.
      const probe = Math.min(64, numTokens);
      await this.#timed([this.#segment(probe, 0, 0, true)]);
      rate = probe / (await this.#timed([this.#segment(probe, 0, 0, true)]));
    }
    if (this.#isTooLong(name, numTokens / rate)) return rate;
    const once = async (): Promise<number> => {
      let ms = 0;
      for (let start = 0; start < numTokens; start += CHUNK_TOKENS) {
        const count = Math.min(CHUNK_TOKENS, numTokens - start);
        ms += await this.#timed([this.#segment(count, start, 0, start + count === numTokens)]);
      }
      return ms;
    };
    const first = await once();
    const ms = first * 3 < this.#options.budgetMs ? Math.min(await once(), await once()) : first;
    this.#add(name, (numTokens / ms) * 1_000, 'tokens/s');
    const { perRow, perSample } = productWeights(this.#shape);
    const flops = 2 * (numTokens * perRow + perSample);
    this.#addRate(`${name}/products`, flops / (ms / 1_000), 'flops');
    if (numTokens <= CHUNK_TOKENS) await this.#profile(name, [this.#segment(numTokens, 0, 0, true)], ms);
    return numTokens / ms;
  }

  async #decode(batch: number, context: number): Promise<void> {
    const name = `${this.#prefix}/decode/batch${batch}/context${context}`;
    const perSequence = Math.ceil((context + 64) / BLOCK_SIZE);
    const segments = Array.from({ length: batch }, (_, i) => this.#segment(1, context, i * perSequence, true));
    await this.#timed(segments);
    const probe = await this.#timed(segments);
    if (this.#isTooLong(name, 4 * probe)) return;
    const times: number[] = [];
    const untilMs = now() + Math.min(this.#options.budgetMs, 2_000);
    while (times.length < 4 || (now() < untilMs && times.length < 64)) times.push(await this.#timed(segments));
    const median = times.sort((a, b) => a - b)[times.length >> 1] ?? NaN;
    this.#add(name, (batch / median) * 1_000, 'tokens/s');
    const gpu = this.#gpu;
    if (!gpu) return;
    const numDispatches = gpu.numDispatches(segments);
    this.#push({ name: `${name}/dispatches`, value: numDispatches, unit: 'per step' });
    this.#push({ name: `${name}/per-dispatch`, value: (median * 1_000) / numDispatches, unit: 'µs' });
    if (context === this.#options.contexts[0]) await this.#profile(name, segments, median);
  }

  get #gpu(): WebgpuExecutable | undefined {
    return 'profile' in this.#executable ? (this.#executable as WebgpuExecutable) : undefined;
  }

  /** Kernels of a step, equal ones together: time, and bandwidth or arithmetic rate where the work is known. */
  async #profile(name: string, batch: readonly Segment[], stepMs: number): Promise<void> {
    const gpu = this.#gpu;
    if (!gpu || !this.#options.hasProfile) return;
    // Each kernel runs once to warm up, once alone, and three times.
    if (this.#isTooLong(`${name}/kernel`, 5 * stepMs)) return;
    for (const { label, numLaunches, ms, bytes, flops } of await gpu.profile(batch, now)) {
      const kernel = `${name}/kernel/${label.replaceAll(' ', '-')}`;
      this.#push({ name: kernel, value: ms, unit: `ms in ${numLaunches}` });
      if (ms <= 0) continue;
      if (bytes > 0) this.#addRate(`${kernel}/read`, bytes / (ms / 1_000), 'bytes');
      if (flops > 0) this.#addRate(`${kernel}/products`, flops / (ms / 1_000), 'flops');
    }
  }

  #push(figure: Figure): void {
    this.#figures.push(figure);
    this.#options.onFigure?.(figure);
  }

  #add(name: string, value: number, unit: string): void {
    this.#push({ name, value, unit });
  }

  /** With its share of the measured peak, and of the vendor's where that is known. */
  #addRate(name: string, perS: number, kind: 'flops' | 'bytes'): void {
    const [unit, value] = [kind === 'flops' ? 'GFLOP/s' : 'GB/s', perS / 1e9];
    const peak = kind === 'flops' ? this.#peaks?.f32FlopsPerS : this.#peaks?.readBytesPerS;
    const vendor = kind === 'flops' ? this.#vendor?.flopsPerS : this.#vendor?.bytesPerS;
    const share = (reference: number, of: string): Figure => ({
      name,
      value,
      unit,
      reference: { name: of, value: reference / 1e9 },
      ratio: perS / reference,
    });
    if (peak === undefined) this.#push({ name, value, unit });
    else this.#push(share(peak, kind === 'flops' ? 'measured f32 fma peak' : 'measured read peak'));
    if (vendor !== undefined) this.#push({ ...share(vendor, "vendor's peak"), name: `${name}/vendor` });
  }

  #isTooLong(name: string, ms: number): boolean {
    if (ms <= this.#options.budgetMs) return false;
    this.#options.say(
      `${name}: skipped, it would take about ${(ms / 1_000).toFixed(0)} s (--budget ${this.#options.budgetMs / 1_000})`,
    );
    return true;
  }
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

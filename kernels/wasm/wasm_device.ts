/**
 * The `wasm` device: a program executed by SIMD WebAssembly on worker threads over one shared memory.
 *
 * Weights in panels of eight outputs, held as f32 whatever their format: the format's values, four bytes each. KV f16 (or
 * f32). The calling thread is thread 0; `numThreads - 1` workers help.
 * Multiply and add are separate roundings, so every machine gives the same bits: one numerics class.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { Worker } from 'node:worker_threads';
import {
  DeviceError,
  MAX_CANDIDATES,
  type Device,
  type Executable,
  type LoadOptions,
  type Program,
  type SampleResult,
  type Segment,
  type WeightSource,
  type WeightSpec,
} from '../device.ts';
import { roundRows } from '../weight_format.ts';
import { spinsPerMicrosecond } from './barrier.ts';
import { layOutProgram, paddedWidth, type ProgramLayout } from './program_layout.ts';
import { Control, StepThread, TILE_CELLS, TILE_ROWS, type SharedStep } from './step.ts';

/** A barrier that spins longer burns a core that another engine may need; shorter, and each wait costs a wake-up. */
const SPIN_US = 20;

export function createWasmDevice(numThreads: number): Device {
  assert(
    Number.isInteger(numThreads) && numThreads >= 1,
    `the wasm device needs at least one thread, not ${numThreads}`,
  );
  let lose: (reason: string) => void = () => undefined;
  const lost = new Promise<string>((resolve) => {
    lose = resolve;
  });
  return {
    kind: 'wasm',
    description: `wasm (SIMD WebAssembly, ${numThreads} thread${numThreads === 1 ? '' : 's'})`,
    numericsClass: 'wasm/simd128/mul-add',
    lost,
    destroy: () => {
      lose('told to go');
    },
    load: (program, weights, options) => load(program, weights, options, numThreads),
  };
}

async function load(
  program: Program,
  weights: WeightSource,
  options: LoadOptions,
  numThreads: number,
): Promise<Executable> {
  const layout = layOutProgram(program, options, numThreads);
  const memory = layout.plan.allocate();
  const cells = (count: number): Int32Array => new Int32Array(new SharedArrayBuffer(4 * count));
  const shared: SharedStep = {
    module: new WebAssembly.Module(readFileSync(new URL('./kernels.wasm', import.meta.url))),
    memory,
    control: cells(Control.count),
    barrier: cells(2),
    ops: layout.ops,
    numOps: layout.numOps,
    numThreads,
    numSpins: SPIN_US * spinsPerMicrosecond(),
    scratch: layout.scratch,
    scratchBytes: layout.scratchBytes,
  };
  await loadWeights(program, weights, layout, memory, options);
  if (program.attention) {
    new Float32Array(memory.buffer, layout.rope.cos, program.attention.ropeCos.length).set(program.attention.ropeCos);
    new Float32Array(memory.buffer, layout.rope.sin, program.attention.ropeSin.length).set(program.attention.ropeSin);
  }
  const workers = Array.from(
    { length: numThreads - 1 },
    (_, i) => new Worker(new URL('./step_worker.js', import.meta.url), { workerData: { shared, thread: i + 1 } }),
  );
  await Promise.all(workers.map((worker) => once(worker, 'message')));
  return new WasmExecutable(layout, options, shared, workers);
}

/** Streams every tensor into its panels. */
async function loadWeights(
  program: Program,
  source: WeightSource,
  layout: ProgramLayout,
  memory: WebAssembly.Memory,
  { onProgress, weightFormat }: LoadOptions,
): Promise<void> {
  const entries = Object.entries(program.weights);
  const bytesOf = (spec: WeightSpec): number => spec.outputs * spec.inner * 4;
  const totalBytes = entries.reduce((sum, [, spec]) => sum + bytesOf(spec), 0);
  let doneBytes = 0;
  for (const [name, spec] of entries) {
    const target = new Float32Array(memory.buffer, layout.weights.get(name), paddedWidth(spec.outputs) * spec.inner);
    if (source.randomSeed !== undefined) {
      fillRandom(target, source.randomSeed, spec.inner);
      continue;
    }
    let firstOutput = 0;
    for (const part of spec.parts) {
      for await (const { rowStart, values } of source.slices(part.tensor)) {
        const rounded = weightFormat === 'f32' || spec.inner === 1 ? values : values.slice();
        if (rounded !== values) roundRows(weightFormat, rounded, spec.inner);
        putRows(target, spec.inner, firstOutput + rowStart, rounded);
        doneBytes += values.byteLength;
        onProgress?.(doneBytes, totalBytes);
      }
      firstOutput += part.outputs;
    }
    assert(firstOutput === spec.outputs, `weight ${name}: parts make ${firstOutput} outputs, want ${spec.outputs}`);
  }
}

/** Values spread evenly, of a size that keeps each output's dot product moderate; a vector becomes ones. */
function fillRandom(target: Float32Array, seed: number, inner: number): void {
  const amplitude = Math.sqrt(3 / inner);
  let state = seed | 1;
  for (let i = 0; i < target.length; i++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    target[i] = inner === 1 ? 1 : (state / 2 ** 31) * amplitude;
  }
}

/** Rows [rowStart, ...) of a matrix [outputs, inner] into panels [outputs/8][inner][8]. */
function putRows(panels: Float32Array, inner: number, rowStart: number, values: Float32Array): void {
  const numRows = values.length / inner;
  for (let row = 0; row < numRows; row++) {
    const output = rowStart + row;
    let to = Math.floor(output / 8) * inner * 8 + (output % 8);
    const from = row * inner;
    for (let k = 0; k < inner; k++, to += 8) panels[to] = values[from + k]!;
  }
}

class WasmExecutable implements Executable {
  readonly blockBytes: number;
  readonly numBlocks: number;
  readonly #layout: ProgramLayout;
  readonly #options: LoadOptions;
  readonly #shared: SharedStep;
  readonly #thread: StepThread;
  readonly #workers: readonly Worker[];
  readonly #u32: Uint32Array;
  readonly #f32: Float32Array;
  readonly #bytes: Uint8Array;

  constructor(layout: ProgramLayout, options: LoadOptions, shared: SharedStep, workers: readonly Worker[]) {
    this.blockBytes = layout.blockBytes;
    this.numBlocks = options.numBlocks.max;
    this.#layout = layout;
    this.#options = options;
    this.#shared = shared;
    this.#thread = new StepThread(shared, 0);
    this.#workers = workers;
    this.#u32 = new Uint32Array(shared.memory.buffer);
    this.#f32 = new Float32Array(shared.memory.buffer);
    this.#bytes = new Uint8Array(shared.memory.buffer);
  }

  // eslint-disable-next-line @typescript-eslint/require-await -- the interface is asynchronous, this device is the caller's thread
  async run(batch: readonly Segment[]): Promise<SampleResult[]> {
    this.#writeBatch(batch);
    this.#thread.run();
    return this.#readSamples(batch);
  }

  #writeBatch(batch: readonly Segment[]): void {
    const { regions } = this.#layout;
    const { blockSize, maxRows, maxSamples, maxBlocksPerSequence } = this.#options;
    const u32 = this.#u32;
    let [row, sample, tile] = [0, 0, 0];
    batch.forEach((segment, index) => {
      const numTokens = segment.tokens.length;
      assert(row + numTokens <= maxRows, `a step takes at most ${maxRows} rows`);
      assert(
        segment.blockTable.length <= maxBlocksPerSequence,
        `a block table has at most ${maxBlocksPerSequence} blocks`,
      );
      const table = regions.blockTables / 4 + index * maxBlocksPerSequence;
      for (let b = 0; b < segment.blockTable.length; b++) u32[table + b] = segment.blockTable[b]!;
      for (let i = 0; i < numTokens; i++) {
        const position = segment.start + i;
        u32[regions.tokens / 4 + row + i] = segment.tokens[i]!;
        u32[regions.positions / 4 + row + i] = position;
        u32[regions.slots / 4 + row + i] =
          (segment.blockTable[Math.floor(position / blockSize)] ?? 0) * blockSize + (position % blockSize);
      }
      for (let i = 0; i < numTokens; i += TILE_ROWS) {
        const at = regions.tiles / 4 + tile++ * TILE_CELLS;
        u32[at] = row + i;
        u32[at + 1] = Math.min(TILE_ROWS, numTokens - i);
        u32[at + 2] = segment.start + i;
        u32[at + 3] = table * 4;
      }
      row += numTokens;
      if (!segment.sample) return;
      assert(sample < maxSamples, `a step samples at most ${maxSamples} rows`);
      assert(segment.sample.numCandidates <= MAX_CANDIDATES, `at most ${MAX_CANDIDATES} candidates`);
      u32[regions.sampleRows / 4 + sample] = row - 1;
      u32[regions.sampleCounts / 4 + sample] = Math.max(1, segment.sample.numCandidates);
      sample++;
    });
    const { control } = this.#shared;
    control[Control.numRows] = row;
    control[Control.numSamples] = sample;
    control[Control.numTiles] = tile;
  }

  #readSamples(batch: readonly Segment[]): SampleResult[] {
    const { regions, buffers } = this.#layout;
    const logitsBuffer = [...buffers.values()].find(({ offset }) => offset === regions.logits);
    const results: SampleResult[] = [];
    for (const { sample } of batch) {
      if (!sample || !logitsBuffer) continue;
      const index = results.length;
      const width = logitsBuffer.spec.width;
      const logits = regions.logits / 4 + index * paddedWidth(width);
      const list = index * MAX_CANDIDATES;
      const stats = regions.sampleStats / 4 + index * 2;
      const ids = regions.candidateIds / 4 + list;
      const values = regions.candidateValues / 4 + list;
      results.push({
        candidateIds: this.#u32.slice(ids, ids + sample.numCandidates),
        candidateLogits: this.#f32.slice(values, values + sample.numCandidates),
        logSumExp: this.#f32[stats]! + Math.log(this.#f32[stats + 1]!),
        askedLogits: Float32Array.from(sample.askedTokens, (token) => this.#f32[logits + token]!),
        ...(sample.isFullRowWanted ? { fullRow: this.#f32.slice(logits, logits + width) } : {}),
      });
    }
    return results;
  }

  #block(blockId: number): Uint8Array {
    assert(blockId >= 0 && blockId < this.numBlocks, `no block ${blockId}`);
    const at = this.#layout.kv + blockId * this.blockBytes;
    return this.#bytes.subarray(at, at + this.blockBytes);
  }

  exportBlocks(blockIds: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    blockIds.forEach((block, i) => outs[i]!.set(this.#block(block)));
    return Promise.resolve();
  }

  importBlocks(blockIds: readonly number[], payloads: readonly Uint8Array[]): Promise<void> {
    blockIds.forEach((block, i) => {
      this.#block(block).set(payloads[i]!);
    });
    return Promise.resolve();
  }

  #buffer(name: string): { offset: number; width: number } {
    const buffer = this.#layout.buffers.get(name);
    if (!buffer) throw new DeviceError(`the program has no buffer ${name}`);
    return { offset: buffer.offset / 4, width: buffer.spec.width };
  }

  write(name: string, values: Float32Array): Promise<void> {
    const { offset, width } = this.#buffer(name);
    for (let row = 0; row * width < values.length; row++) {
      this.#f32.set(values.subarray(row * width, (row + 1) * width), offset + row * paddedWidth(width));
    }
    return Promise.resolve();
  }

  read(name: string, numRows: number): Promise<Float32Array> {
    const { offset, width } = this.#buffer(name);
    const out = new Float32Array(numRows * width);
    for (let row = 0; row < numRows; row++) {
      const at = offset + row * paddedWidth(width);
      out.set(this.#f32.subarray(at, at + width), row * width);
    }
    return Promise.resolve(out);
  }

  async close(): Promise<void> {
    const exits = this.#workers.map((worker) => once(worker, 'exit'));
    this.#thread.stop();
    await Promise.all(exits);
  }
}

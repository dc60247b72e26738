/**
 * The `wasm` device: a program executed by SIMD WebAssembly on worker threads over one shared memory.
 *
 * Weights lie packed in panels of eight outputs, in their format; products with int8 and int4 weights quantise activations and
 * multiply integers. KV f16 (or f32). The calling thread is thread 0; `numThreads - 1` workers help. Relaxed SIMD is used where the
 * runtime has it: its multiply-add rounds once on CPUs that can, which is another numerics class than two roundings.
 */
import assert from 'node:assert/strict';
import {
  DeviceError,
  MAX_CANDIDATES,
  type Device,
  type Executable,
  type KernelProfile,
  type LoadOptions,
  type Program,
  type SampleResult,
  type Segment,
  type WeightSource,
  type WeightSpec,
} from '../device.ts';
import { compileKernels, type CompiledKernels } from './compiled_kernels.ts';
import { profileOf } from './profile.ts';
import { measurePeaks, type WasmPeaks } from './peaks.ts';
import { formatCode, layOutProgram, paddedWidth, type ProgramLayout } from './program_layout.ts';
import { instantiate } from './kernel_exports.ts';
import { Control, TILE_CELLS, TILE_ROWS } from './step_cells.ts';
import { StepThreads } from './step_threads.ts';
import { attentionTasks } from './task_split.ts';

/** Goes up when the order of a sum or a rounding changes: part of the numerics class. */
export const WASM_REVISION = 2;

/** An executable whose operations can be timed. */
interface ProfiledExecutable extends Executable {
  /** What the operations of a step cost; what it computes is overwritten by the next one. */
  profile(batch: readonly Segment[], nowMs: () => number): Promise<KernelProfile[]>;
}

export interface WasmDevice extends Device {
  /** For benchmarks. `nowMs` is a steady clock. */
  peaks(nowMs: () => number, readBytes: number): Promise<WasmPeaks>;
  load(program: Program, weights: WeightSource, options: LoadOptions): Promise<ProfiledExecutable>;
}

/** `hasRelaxed` false: plain SIMD although the runtime has more, for tests. */
export function createWasmDevice(numThreads: number, hasRelaxed = true): WasmDevice {
  assert(
    Number.isInteger(numThreads) && numThreads >= 1,
    `the wasm device needs at least one thread, not ${numThreads}`,
  );
  let lose: (reason: string) => void = () => undefined;
  const lost = new Promise<string>((resolve) => {
    lose = resolve;
  });
  const kernels = compileKernels(hasRelaxed);
  const simd = `${kernels.isRelaxed ? 'relaxed ' : ''}SIMD WebAssembly${kernels.isFused ? ', fused multiply-add' : ''}`;
  return {
    kind: 'wasm',
    description: `wasm (${simd}, ${numThreads} thread${numThreads === 1 ? '' : 's'})`,
    numericsClass: `wasm/simd128-${WASM_REVISION}/${kernels.isFused ? 'fused' : 'mul-add'}`,
    lost,
    destroy: () => {
      lose('told to go');
    },
    load: (program, weights, options) => load(program, weights, options, numThreads, kernels),
    peaks: (nowMs, readBytes) => measurePeaks(kernels, numThreads, nowMs, readBytes),
  };
}

async function load(
  program: Program,
  weights: WeightSource,
  options: LoadOptions,
  numThreads: number,
  { module }: CompiledKernels,
): Promise<WasmExecutable> {
  const layout = layOutProgram(program, options, numThreads);
  const memory = layout.plan.allocate();
  await loadWeights(program, weights, layout, module, memory, options);
  if (program.attention) {
    new Float32Array(memory.buffer, layout.rope.cos, program.attention.ropeCos.length).set(program.attention.ropeCos);
    new Float32Array(memory.buffer, layout.rope.sin, program.attention.ropeSin.length).set(program.attention.ropeSin);
  }
  const { ops, numOps, scratch, scratchBytes } = layout;
  const threads = await StepThreads.start(module, memory, numThreads, { ops, numOps, scratch, scratchBytes });
  return new WasmExecutable(program, layout, options, memory, threads);
}

/** Streams every tensor into its panels, a staging region at a time. */
async function loadWeights(
  program: Program,
  source: WeightSource,
  layout: ProgramLayout,
  module: WebAssembly.Module,
  memory: WebAssembly.Memory,
  { onProgress, weightFormat }: LoadOptions,
): Promise<void> {
  const entries = Object.entries(program.weights);
  const bytesOf = (spec: WeightSpec): number => spec.outputs * spec.inner * 4;
  const totalBytes = entries.reduce((sum, [, spec]) => sum + bytesOf(spec), 0);
  const staging = new Float32Array(memory.buffer, layout.staging, layout.stagingBytes / 4);
  const kernels = instantiate(module, memory);
  let doneBytes = 0;
  for (const [name, spec] of entries) {
    const { inner } = spec;
    const [format, to] = [formatCode(spec, weightFormat), layout.weights.get(name)!];
    const rowsAtOnce = Math.floor(staging.length / inner);
    const put = (output: number, values: Float32Array): void => {
      for (let row = 0; row * inner < values.length; row += rowsAtOnce) {
        const some = values.subarray(row * inner, (row + rowsAtOnce) * inner);
        staging.set(some);
        kernels.pack_rows(format, layout.staging, some.length / inner, inner, to, output + row);
      }
      doneBytes += values.byteLength;
      onProgress?.(doneBytes, totalBytes);
    };
    let firstOutput = 0;
    for (const part of spec.parts) {
      for await (const { rowStart, values } of source.slices(part.tensor)) put(firstOutput + rowStart, values);
      firstOutput += part.outputs;
    }
    assert(firstOutput === spec.outputs, `weight ${name}: parts make ${firstOutput} outputs, want ${spec.outputs}`);
  }
}

/** Of a profile. */
const PROFILED_STEPS = 5;

class WasmExecutable implements ProfiledExecutable {
  readonly blockBytes: number;
  readonly numBlocks: number;
  readonly #layout: ProgramLayout;
  readonly #options: LoadOptions;
  readonly #program: Program;
  readonly #threads: StepThreads;
  readonly #u32: Uint32Array;
  readonly #f32: Float32Array;
  readonly #bytes: Uint8Array;

  constructor(
    program: Program,
    layout: ProgramLayout,
    options: LoadOptions,
    memory: WebAssembly.Memory,
    threads: StepThreads,
  ) {
    this.blockBytes = layout.blockBytes;
    this.numBlocks = options.numBlocks.max;
    this.#program = program;
    this.#layout = layout;
    this.#options = options;
    this.#threads = threads;
    this.#u32 = new Uint32Array(memory.buffer);
    this.#f32 = new Float32Array(memory.buffer);
    this.#bytes = new Uint8Array(memory.buffer);
  }

  async run(batch: readonly Segment[]): Promise<SampleResult[]> {
    this.#writeBatch(batch);
    this.#threads.run();
    return this.#readSamples(batch);
  }

  /** Medians of some steps, barriers included. */
  profile(batch: readonly Segment[], nowMs: () => number): Promise<KernelProfile[]> {
    this.#writeBatch(batch);
    const steps = Array.from({ length: PROFILED_STEPS }, () => {
      const ends: number[] = [];
      const start = nowMs();
      this.#threads.run(() => ends.push(nowMs()));
      return ends.map((end, i) => end - (ends[i - 1] ?? start));
    });
    const median = (op: number): number => steps.map((ms) => ms[op]!).sort((a, b) => a - b)[PROFILED_STEPS >> 1]!;
    const times = this.#program.operations.map((_, op) => median(op));
    return Promise.resolve(profileOf(this.#program, this.#options, batch, times));
  }

  #writeBatch(batch: readonly Segment[]): void {
    const { regions } = this.#layout;
    const { blockSize, maxRows, maxSamples, maxBlocksPerSequence } = this.#options;
    const u32 = this.#u32;
    let [row, sample, tile] = [0, 0, 0];
    batch.forEach((segment, index) => {
      const numTokens = segment.tokens.length;
      assert(numTokens > 0, 'a segment has at least one token');
      assert(row + numTokens <= maxRows, `a step takes at most ${maxRows} rows`);
      assert(
        segment.blockTable.length <= maxBlocksPerSequence,
        `a block table has at most ${maxBlocksPerSequence} blocks`,
      );
      const table = regions.blockTables / 4 + index * maxBlocksPerSequence;
      const numPositions = segment.start + numTokens;
      assert(segment.blockTable.length * blockSize >= numPositions, `${numPositions} positions need more blocks`);
      for (let b = 0; b < segment.blockTable.length; b++) {
        const block = segment.blockTable[b]!;
        assert(block >= 0 && block < this.numBlocks, `no block ${block}`);
        u32[table + b] = block;
      }
      for (let i = 0; i < numTokens; i++) {
        const position = segment.start + i;
        u32[regions.tokens / 4 + row + i] = segment.tokens[i]!;
        u32[regions.positions / 4 + row + i] = position;
        u32[regions.slots / 4 + row + i] =
          segment.blockTable[Math.floor(position / blockSize)]! * blockSize + (position % blockSize);
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
    const { control } = this.#threads;
    control[Control.numRows] = row;
    control[Control.numSamples] = sample;
    control[Control.numTiles] = tile;
    const { numThreads } = this.#threads;
    control[Control.attention] = attentionTasks(tile, row, numThreads, this.#layout.spanRecords.maxTiles);
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

  close(): Promise<void> {
    return this.#threads.close();
  }
}

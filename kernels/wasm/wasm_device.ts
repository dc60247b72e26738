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
  type Device,
  type Executable,
  type KernelProfile,
  type LayerRange,
  type LoadOptions,
  type RunOptions,
  type SampleResult,
  type Segment,
  type StepExport,
  type StepPart,
  type WeightSource,
} from '../device.ts';
import { kvBlockBytes, type Program } from '../program.ts';
import { compileKernels, type CompiledKernels } from './compiled_kernels.ts';
import { instantiate } from './kernel_exports.ts';
import { loadWeights } from './load_weights.ts';
import { profileOf } from './operations.ts';
import { paddedWidth } from './panels.ts';
import { measurePeaks, type WasmPeaks } from './peaks.ts';
import { layOutProgram, writeConstants, type ProgramLayout } from './program_layout.ts';
import { StepIo } from './step_io.ts';
import type { OpRange } from './step.ts';
import { StepThreads } from './step_threads.ts';

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
  await loadWeights(program, weights, layout, instantiate(module, memory), memory, options);
  writeConstants(program, layout, memory);
  const { operations, scratch, scratchBytes } = layout;
  const threads = await StepThreads.start(module, memory, numThreads, { operations, scratch, scratchBytes });
  return new WasmExecutable(program, layout, options, memory, threads);
}

/** Of a profile. */
const PROFILED_STEPS = 5;

class WasmExecutable implements ProfiledExecutable {
  readonly blockBytes: number;
  readonly numBlocks: number;
  readonly memoryBytes: number;
  readonly numAhead = 0;
  /** Any: they are copied as they lie. */
  readonly numExportable = Infinity;
  readonly draws: Executable['draws'];
  readonly #layout: ProgramLayout;
  readonly #options: LoadOptions;
  readonly #program: Program;
  readonly #threads: StepThreads;
  readonly #io: StepIo;
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
    this.#io = new StepIo(program, layout, options, memory);
    this.draws = { vocab: this.#io.vocab, numPages: options.drawPages ?? 0 };
    this.#f32 = new Float32Array(memory.buffer);
    this.#bytes = new Uint8Array(memory.buffer);
    this.memoryBytes = memory.buffer.byteLength;
  }

  async run(batch: readonly Segment[], { exports, part }: RunOptions = {}): Promise<SampleResult[]> {
    this.#io.write(batch, this.#threads);
    this.#threads.run(this.#opsOf(part), exports && this.#exporting(exports));
    return part?.until === undefined ? this.#io.read() : [];
  }

  #opsOf({ from, until }: StepPart = { from: undefined, until: undefined }): OpRange {
    const { operations } = this.#program;
    const before = (layer: number): number =>
      operations.findIndex((op) => op.kind === 'attention' && op.layer === layer);
    return {
      first: from === undefined ? 0 : before(from),
      end: until === undefined ? operations.length : before(until),
    };
  }

  /** Told of every operation: copies what is complete. */
  #exporting({ blocks, outs, onRange }: StepExport): (op: number) => void {
    const { exportRanges = [] } = this.#options;
    let next = 0;
    return (op) => {
      const [operation, range] = [this.#program.operations[op], exportRanges[next]];
      if (operation?.kind !== 'rope_store' || !range) return;
      if (operation.layer !== range.firstLayer + range.numLayers - 1) return;
      const { at, bytes } = this.#bytesOf(range);
      blocks.forEach((block, i) => outs[i]!.set(this.#block(block).subarray(at, at + bytes), at));
      onRange(next++);
    };
  }

  #bytesOf({ firstLayer, numLayers }: LayerRange): { readonly at: number; readonly bytes: number } {
    const { kv } = this.#program;
    const { blockSize, kvDtype } = this.#options;
    return {
      at: kvBlockBytes(kv.slice(0, firstLayer), blockSize, kvDtype),
      bytes: kvBlockBytes(kv.slice(firstLayer, firstLayer + numLayers), blockSize, kvDtype),
    };
  }

  /** Medians of some steps, barriers included. */
  profile(batch: readonly Segment[], nowMs: () => number): Promise<KernelProfile[]> {
    this.#io.write(batch, this.#threads);
    const steps = Array.from({ length: PROFILED_STEPS }, () => {
      const ends: number[] = [];
      const start = nowMs();
      this.#threads.run(this.#opsOf(), () => ends.push(nowMs()));
      return ends.map((end, i) => end - (ends[i - 1] ?? start));
    });
    const median = (op: number): number => steps.map((ms) => ms[op]!).sort((a, b) => a - b)[PROFILED_STEPS >> 1]!;
    const times = this.#program.operations.map((_, op) => median(op));
    return Promise.resolve(profileOf(this.#program, this.#options, batch, times));
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

  importBlocks(blockIds: readonly number[], payloads: readonly Uint8Array[], range?: LayerRange): Promise<void> {
    const { at, bytes } = range ? this.#bytesOf(range) : { at: 0, bytes: this.blockBytes };
    blockIds.forEach((block, i) => {
      const payload = payloads[i]!;
      assert(payload.length === bytes, `so much of a block has ${bytes} bytes, not ${payload.length}`);
      this.#block(block).set(payload, at);
    });
    return Promise.resolve();
  }

  #buffer(name: string): { offset: number; width: number } {
    const buffer = this.#layout.buffers.get(name);
    if (!buffer) throw new DeviceError(`the program has no buffer ${name}`);
    return { offset: buffer.at / 4, width: buffer.spec.width };
  }

  writeDrawPage(page: number, first: number, values: Int32Array | Uint32Array): void {
    this.#io.writePage(page, first, values);
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

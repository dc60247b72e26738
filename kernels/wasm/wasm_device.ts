/**
 * The `wasm` device: a program executed by SIMD WebAssembly on worker threads over shared memory, 4 GiB each (pieces.ts).
 *
 * Weights lie packed in panels of eight outputs, in their format; products with int8 and int4 weights quantise activations and
 * multiply integers. KV f16 (or f32). The calling thread is thread 0; `numThreads - 1` workers help. Relaxed SIMD is used where the
 * runtime has it: its multiply-add rounds once on CPUs that can, which is another numerics class than two roundings.
 */
import assert from 'node:assert/strict';
import type { Device, LoadOptions, WeightSource } from '../device.ts';
import { layoutOfLayers } from '../kv_layout.ts';
import type { Program } from '../program.ts';
import { RowDecoder } from '../weights/stored_rows.ts';
import { compileKernels, type CompiledKernels } from './compiled_kernels.ts';
import { loadWeights, progressOf } from './load_weights.ts';
import { MIXED_NUMERICS, WASM_REVISION } from '../revisions.ts';
import { LoadedPiece } from './loaded_piece.ts';
import { allocateAll, machineMemory } from './memory_plan.ts';
import { PackThreads, packingThreads } from './packing.ts';
import { weightBytes } from './panels.ts';
import { measurePeaks, type WasmPeaks } from './peaks.ts';
import { piecesOf, type Piece } from './pieces.ts';
import { layOutProgram, writeConstants, type ProgramLayout } from './program_layout.ts';
import { StepThreads } from './step_threads.ts';
import { WasmExecutable, type ProfiledExecutable } from './wasm_executable.ts';

export interface WasmDevice extends Device {
  /** For benchmarks. `nowMs` is a steady clock. */
  peaks(nowMs: () => number, readBytes: number): Promise<WasmPeaks>;
  load(program: Program, weights: WeightSource, options: LoadOptions): Promise<ProfiledExecutable>;
}

/** Tests narrow these bounds, so that small models are treated as large ones are. */
export interface WasmBounds {
  /** That one memory has at most: a program that needs more has several. */
  readonly maxMemoryBytes?: number;
  /** Several threads pack weights of at least so many bytes. */
  readonly minSharedBytes?: number;
}

/** `hasRelaxed` false: plain SIMD although the runtime has more, for tests. `numSharing`: engines that divide the machine's memory. */
export function createWasmDevice(
  numThreads: number,
  hasRelaxed = true,
  numSharing = 1,
  bounds: WasmBounds = {},
): WasmDevice {
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
    mixedNumericsClass: MIXED_NUMERICS,
    numericsClass: `wasm/simd128-${WASM_REVISION}/${kernels.isFused ? 'fused' : 'mul-add'}`,
    notes: [],
    checkRows: () => Promise.resolve(),
    lost,
    destroy: () => {
      lose('told to go');
    },
    load: (program, weights, load) =>
      loadProgram(program, weights, load, { numThreads, kernels, memoryBytes: machineMemory() / numSharing, bounds }),
    peaks: (nowMs, readBytes) => measurePeaks(kernels, numThreads, nowMs, readBytes),
  };
}

interface Machine {
  readonly numThreads: number;
  readonly kernels: CompiledKernels;
  readonly memoryBytes: number;
  readonly bounds: WasmBounds;
}

async function loadProgram(
  program: Program,
  weights: WeightSource,
  options: LoadOptions,
  { numThreads, kernels, memoryBytes, bounds: { maxMemoryBytes, minSharedBytes } }: Machine,
): Promise<WasmExecutable> {
  const specs = Object.values(program.weights);
  const numBytes = specs.reduce((sum, spec) => sum + weightBytes(spec, options.weightFormat), 0);
  const numPacking = packingThreads(numThreads, numBytes, minSharedBytes);
  const optionsOf = ({ layers }: Pick<Piece, 'layers'>): LoadOptions => ({
    ...options,
    kv: layoutOfLayers(options.kv, layers),
  });
  const layoutOf = (piece: Piece): ProgramLayout =>
    layOutProgram(piece.program, optionsOf(piece), { numThreads, numPacking, maxMemoryBytes });
  const cut = piecesOf(program, (piece) => layoutOf(piece).plan.fits);
  const layouts = cut.pieces.map(layoutOf);
  // Before anything is read.
  const memories = allocateAll(
    layouts.map(({ plan }) => plan),
    memoryBytes,
  );
  const pieces: LoadedPiece[] = [];
  const decoder = new RowDecoder();
  const onLoaded = progressOf(cut.pieces, options);
  const threads = await PackThreads.start(kernels.module, memories, numPacking);
  try {
    for (const [i, piece] of cut.pieces.entries()) {
      const [layout, memory] = [layouts[i]!, memories[i]!];
      const load = { piece: i, memory, threads, options, decoder, onLoaded };
      await loadWeights(piece.program, weights, layout, load);
      writeConstants(piece.program, layout, memory);
      pieces.push(new LoadedPiece(piece, options.kv, layout, optionsOf(piece), memory));
    }
  } finally {
    await threads.close();
  }
  const steps = pieces.map(({ step }) => step);
  return new WasmExecutable(program, options, cut, pieces, await StepThreads.start(kernels.module, steps, numThreads));
}

/**
 * The `wasm` device: runs a program with SIMD WebAssembly on worker threads over shared memories of at most 4 GiB (memory_shards.ts).
 *
 * Weights are packed in panels of eight outputs, in their storage format; products with int8, int4 and uint4 weights quantise
 * activations and multiply integers. KV is f16 or f32. The calling thread is thread 0; `numThreads - 1` workers help. Relaxed SIMD is
 * used where the runtime has it: its multiply-add rounds once on CPUs that can, which makes a numerics class of its own.
 */
import assert from 'node:assert/strict';
import type { Device, LoadOptions, WeightSource } from '../device.ts';
import { layoutOfLayers } from '../kv_layout.ts';
import type { MemoryNeeds } from '../memory_needs.ts';
import type { Program } from '../program.ts';
import { stateOfLayers } from '../state_layout.ts';
import { RowDecoder } from '../weights/stored_rows.ts';
import { compileKernels, type CompiledKernels } from './compiled_kernels.ts';
import { loadWeights, progressOf } from './load_weights.ts';
import { MIXED_NUMERICS, WASM_REVISION } from '../revisions.ts';
import { LoadedShard } from './loaded_shard.ts';
import { allocateAll, freeMemory, machineMemory, readMemInfo } from './memory_plan.ts';
import { PackThreads, packingThreads } from './packing.ts';
import { weightBytes } from './panels.ts';
import { chooseProducts, describeProducts, type ProductsChoice, type ProductsRequest } from './products_trial.ts';
import { measurePeaks, type WasmPeaks } from './peaks.ts';
import { shardsOf, type MemoryShard, type MemoryShards } from './memory_shards.ts';
import { layOutProgram, writeConstants, type ProgramLayout } from './program_layout.ts';
import { StepThreads } from './step_threads.ts';
import { WasmExecutable, type ProfiledExecutable } from './wasm_executable.ts';

/** The wasm device, whose executables can be profiled. */
export interface WasmDevice extends Device {
  /** Measures peak rates, for benchmarks. `nowMs`: a steady clock; `readBytes`: size of the region to read. */
  peaks(nowMs: () => number, readBytes: number): Promise<WasmPeaks>;
  /** Loads a program as {@link Device} does, with an executable that can be profiled. */
  load(program: Program, weights: WeightSource, options: LoadOptions): Promise<ProfiledExecutable>;
}

/** Bounds that tests lower, so that small models are treated as large ones. */
export interface WasmBounds {
  /** Most bytes of one memory; a program that needs more has several. */
  readonly maxMemoryBytes?: number;
  /** Bytes of weights from which several threads pack them. */
  readonly minSharedBytes?: number;
  /** Memory of the machine, and how much of it other processes leave. */
  readonly machineBytes?: number;
  readonly freeBytes?: number;
  /** Kernels in which a test has damaged an instruction. */
  readonly kernels?: CompiledKernels;
}

/**
 * Creates the device. `hasRelaxed` false: uses plain SIMD although the runtime has relaxed SIMD, for tests. `numSharing`: number of
 * engines that divide the memory of the machine. `request`: which products with integer weights to use; the fastest without it.
 * @throws DeviceError for products that this runtime does not have.
 */
export function createWasmDevice(
  numThreads: number,
  hasRelaxed = true,
  numSharing = 1,
  bounds: WasmBounds = {},
  request: ProductsRequest = { wanted: 'auto' },
): WasmDevice {
  assert(
    Number.isInteger(numThreads) && numThreads >= 1,
    `the wasm device needs at least one thread, not ${numThreads}`,
  );
  let lose: (reason: string) => void = () => undefined;
  const lost = new Promise<string>((resolve) => {
    lose = resolve;
  });
  const kernels = bounds.kernels ?? compileKernels(hasRelaxed);
  const products = productsFor(kernels, request);
  const machine = {
    numThreads,
    kernels,
    products,
    memoryBytes: (bounds.machineBytes ?? machineMemory()) / numSharing,
    bounds,
  };
  const simd = `${kernels.isRelaxed ? 'relaxed ' : ''}SIMD WebAssembly${kernels.isFused ? ', fused multiply-add' : ''}`;
  return {
    kind: 'wasm',
    description: `wasm (${simd}, ${numThreads} thread${numThreads === 1 ? '' : 's'}, ${describeProducts(products)})`,
    mixedNumericsClass: MIXED_NUMERICS,
    numericsClass: `wasm/simd128-${WASM_REVISION}/${kernels.isFused ? 'fused' : 'mul-add'}`,
    notes: [],
    checkRows: () => Promise.resolve(),
    lost,
    destroy: () => {
      lose('it was closed');
    },
    needs: (program, load) => needsOf(planProgram(program, load, machine)),
    room: () =>
      Promise.resolve({
        total: machine.memoryBytes,
        free: bounds.freeBytes ?? freeMemory(readMemInfo()),
        kv: Infinity,
        whose: numSharing > 1 ? `each of ${numSharing} engines on this machine may have` : 'this machine has',
      }),
    load: (program, weights, load) => loadProgram(program, weights, load, machine),
    peaks: (nowMs, readBytes) => measurePeaks(kernels, numThreads, nowMs, readBytes),
  };
}

/** Choices of this thread, by kernels and by what was wanted: a thread with several devices tries the products once. */
const choices = new WeakMap<CompiledKernels, Map<string, ProductsChoice>>();

function productsFor(kernels: CompiledKernels, request: ProductsRequest): ProductsChoice {
  const known = choices.get(kernels) ?? new Map<string, ProductsChoice>();
  choices.set(kernels, known);
  const choice = known.get(request.wanted) ?? chooseProducts(kernels, request);
  known.set(request.wanted, choice);
  return choice;
}

interface Machine {
  readonly numThreads: number;
  readonly kernels: CompiledKernels;
  readonly products: ProductsChoice;
  readonly memoryBytes: number;
  readonly bounds: WasmBounds;
}

/** A program cut into memory shards, each laid out in a memory of its own. */
interface ProgramPlan {
  readonly cut: MemoryShards;
  readonly layouts: readonly ProgramLayout[];
  readonly numPacking: number;
  readonly optionsOf: (shard: Pick<MemoryShard, 'layers'>) => LoadOptions;
}

/** Cuts a program into memory shards and lays them out. @throws DeviceError for shapes that the kernels do not support. */
function planProgram(
  program: Program,
  options: LoadOptions,
  { numThreads, bounds: { maxMemoryBytes, minSharedBytes } }: Machine,
): ProgramPlan {
  const specs = Object.values(program.weights);
  const numBytes = specs.reduce((sum, spec) => sum + weightBytes(spec, options.weightFormat), 0);
  const numPacking = packingThreads(numThreads, numBytes, minSharedBytes);
  const optionsOf = ({ layers }: Pick<MemoryShard, 'layers'>): LoadOptions => ({
    ...options,
    kv: layoutOfLayers(options.kv, layers),
    state: options.state && stateOfLayers(options.state, layers),
  });
  const layoutOf = (shard: MemoryShard): ProgramLayout =>
    layOutProgram(shard.program, optionsOf(shard), { numThreads, numPacking, maxMemoryBytes });
  const cut = shardsOf(program, (shard) => layoutOf(shard).plan.fits);
  return { cut, layouts: cut.shards.map(layoutOf), numPacking, optionsOf };
}

/** Returns the memory that a planned program takes. */
function needsOf({ layouts }: ProgramPlan): MemoryNeeds {
  const sum = (what: string): number => layouts.reduce((bytes, { plan }) => bytes + (plan.parts.get(what) ?? 0), 0);
  const [weights, kv, states] = [sum('weights'), sum('KV blocks'), sum('state slots')];
  const total = layouts.reduce((bytes, { plan }) => bytes + plan.totalBytes, 0);
  return {
    weights,
    kv,
    states,
    other: total - weights - kv - states,
    mostBlocks: Infinity,
    mostSlots: Infinity,
    obstacle: layouts.find(({ plan }) => !plan.fits)?.plan.obstacle,
  };
}

async function loadProgram(
  program: Program,
  weights: WeightSource,
  options: LoadOptions,
  machine: Machine,
): Promise<WasmExecutable> {
  const { numThreads, kernels, products, memoryBytes } = machine;
  const { cut, layouts, numPacking, optionsOf } = planProgram(program, options, machine);
  // Memory is allocated before any weight is read: a model that does not fit fails at once.
  const memories = allocateAll(
    layouts.map(({ plan }) => plan),
    memoryBytes,
  );
  const shards: LoadedShard[] = [];
  const decoder = new RowDecoder();
  const onLoaded = progressOf(cut.shards, options);
  const threads = await PackThreads.start(kernels.module, memories, numPacking);
  try {
    for (const [i, shard] of cut.shards.entries()) {
      const [layout, memory] = [layouts[i]!, memories[i]!];
      const load = { shard: i, memory, threads, options, decoder, onLoaded };
      await loadWeights(shard.program, weights, layout, load);
      writeConstants(shard.program, layout, memory);
      shards.push(new LoadedShard(shard, options, layout, optionsOf(shard), memory));
    }
  } finally {
    await threads.close();
  }
  const steps = shards.map(({ step }) => step);
  const code = { module: kernels.module, products: products.code };
  return new WasmExecutable(program, options, cut, shards, await StepThreads.start(code, steps, numThreads));
}

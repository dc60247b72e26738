/** Measures the machine's peak rates with the same threads and instructions that the kernels use. */
import type { CompiledKernels } from './compiled_kernels.ts';
import type { PeakLoop } from './peak_loops.ts';
import { PLAIN } from './products.ts';
import { newTaskCells } from './shared_step.ts';
import { StepThreads } from './step_threads.ts';

/** Peak rates of this machine, the reference for a profile of the kernels. */
export interface WasmPeaks {
  /** Floating-point operations per second in a loop of 128-bit f32 multiply-adds, all threads together. */
  readonly f32FlopsPerS: number;
  /** Operations per second in a loop of i16 pair products added to i32, all threads together; multiplications and additions both count. */
  readonly intOpsPerS: number;
  /**
   * Operations per second with the relaxed instruction that int4 products use, all threads together. With plain SIMD, the loop of
   * `intOpsPerS` is measured instead.
   */
  readonly int4OpsPerS: number;
  /** Bytes per second of a plain read by all threads. The region should be larger than every cache. */
  readonly readBytesPerS: number;
  readonly usPerBarrier: number;
}

const PAGE_BYTES = 65_536;
const SCRATCH_BYTES = 64;
/** Milliseconds that a loop runs before it is measured, until clock frequencies and pages have settled. */
const WARM_UP_MS = 400;
const REPEATS = 5;
const ITERATIONS = 20_000_000;
const NUM_BARRIERS = 1_000;

/** Measures the peak rates, which takes about four seconds. `readBytes`: size of the region to read, a multiple of 64 KiB. */
export async function measurePeaks(
  { module }: CompiledKernels,
  numThreads: number,
  nowMs: () => number,
  readBytes: number,
): Promise<WasmPeaks> {
  const memory = new WebAssembly.Memory({
    initial: readBytes / PAGE_BYTES + 1,
    maximum: readBytes / PAGE_BYTES + 1,
    shared: true,
  });
  // The operating system maps pages that were never written to one page of zeros, which would be read from cache.
  new Float64Array(memory.buffer).fill(1.1);
  new Int8Array(memory.buffer, 0, SCRATCH_BYTES * (numThreads + 1)).fill(0);
  const bestMs = async (kind: PeakLoop, fields: Readonly<Record<string, number>>, count = 1): Promise<number> => {
    const operations = Array.from({ length: count }, (_, index) => ({ kind, index, params: 0, fields }));
    const tasks = newTaskCells(count);
    const shard = { memory, operations, tasks, scratch: SCRATCH_BYTES, scratchBytes: SCRATCH_BYTES };
    const threads = await StepThreads.start({ module, products: { instructions: PLAIN } }, [shard], numThreads);
    const once = (): number => {
      const start = nowMs();
      threads.run(0, { first: 0, end: count });
      return nowMs() - start;
    };
    for (const start = nowMs(); nowMs() - start < WARM_UP_MS;) once();
    const times = Array.from({ length: REPEATS }, once);
    await threads.close();
    return Math.min(...times);
  };
  const iterations = { iterations: ITERATIONS };
  const perS = (work: number, ms: number): number => (work / ms) * 1_000;
  return {
    f32FlopsPerS: perS(ITERATIONS * 96 * numThreads, await bestMs('multiply_add', iterations)),
    intOpsPerS: perS(ITERATIONS * 192 * numThreads, await bestMs('multiply_add_int', iterations)),
    int4OpsPerS: perS(ITERATIONS * 384 * numThreads, await bestMs('multiply_add_int4', iterations)),
    readBytesPerS: perS(readBytes, await bestMs('read', { from: PAGE_BYTES, bytes: readBytes })),
    usPerBarrier: ((await bestMs('nothing', {}, NUM_BARRIERS)) / NUM_BARRIERS) * 1_000,
  };
}

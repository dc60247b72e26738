/** What this machine can do at most, measured with the same threads and instructions that the kernels use. */
import type { CompiledKernels } from './compiled_kernels.ts';
import { OP_CELLS, OpCode, READ_BYTES } from './step.ts';
import { StepThreads } from './step_threads.ts';

export interface WasmPeaks {
  /** Of a loop of 128-bit f32 multiply-adds, all threads together. */
  readonly f32FlopsPerS: number;
  /** Of a loop of i16 pair products added to i32, multiplications and additions counted. */
  readonly intOpsPerS: number;
  /** Of a plain read of a region that no cache holds, unless a cache is larger than it. */
  readonly readBytesPerS: number;
  readonly usPerBarrier: number;
}

const READ_REGION_BYTES = 1 << 30;
const PAGE_BYTES = 65_536;
const SCRATCH_BYTES = 64;
/** Loops warm up first: WebAssembly starts in a slow tier. */
const WARM_UP_MS = 400;
const REPEATS = 5;
const TURNS = 2_000_000;
const NUM_BARRIERS = 1_000;

/** Takes about three seconds and a GiB of memory. */
export async function measurePeaks(
  { module }: CompiledKernels,
  numThreads: number,
  nowMs: () => number,
): Promise<WasmPeaks> {
  const memory = new WebAssembly.Memory({
    initial: READ_REGION_BYTES / PAGE_BYTES + 1,
    maximum: PAGE_BYTES,
    shared: true,
  });
  // Pages that were never written are all one page.
  new Float64Array(memory.buffer).fill(1.1);
  new Int8Array(memory.buffer, 0, SCRATCH_BYTES * (numThreads + 1)).fill(0);
  const bestMs = async (numOps: number, ...op: readonly number[]): Promise<number> => {
    const ops = new Int32Array(new SharedArrayBuffer(numOps * OP_CELLS * 4));
    for (let i = 0; i < numOps; i++) ops.set(op, i * OP_CELLS);
    const threads = await StepThreads.start(module, memory, numThreads, {
      ...{ ops, numOps, scratch: SCRATCH_BYTES, scratchBytes: SCRATCH_BYTES },
    });
    const once = (): number => {
      const start = nowMs();
      threads.run();
      return nowMs() - start;
    };
    for (const start = nowMs(); nowMs() - start < WARM_UP_MS;) once();
    const times = Array.from({ length: REPEATS }, once);
    await threads.close();
    return Math.min(...times);
  };
  const perS = (work: number, ms: number): number => (work / ms) * 1_000;
  return {
    f32FlopsPerS: perS(TURNS * 96 * numThreads, await bestMs(1, OpCode.multiplyAdd, TURNS)),
    intOpsPerS: perS(TURNS * 192 * numThreads, await bestMs(1, OpCode.multiplyAddInt, TURNS)),
    readBytesPerS: perS(
      READ_REGION_BYTES,
      await bestMs(1, OpCode.read, PAGE_BYTES, Math.floor(READ_REGION_BYTES / READ_BYTES) * READ_BYTES),
    ),
    usPerBarrier: ((await bestMs(NUM_BARRIERS, OpCode.nothing)) / NUM_BARRIERS) * 1_000,
  };
}

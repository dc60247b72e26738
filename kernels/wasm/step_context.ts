/** What one thread has at hand while it walks a step, and how it gets its part of an operation. */
import { Barrier } from './barrier.ts';
import { instantiate, type KernelExports } from './kernel_exports.ts';
import { OP_CELLS, type SharedStep } from './step_cells.ts';
import { productTasks, type ProductTasks } from './task_split.ts';

export class StepContext {
  readonly shared: SharedStep;
  readonly kernels: KernelExports;
  readonly barrier: Barrier;
  /** The shared memory. */
  readonly u32: Uint32Array;
  /** This thread's own region. */
  readonly scratch: number;
  /** By operation, how its rows were dealt last: most steps have as many as the one before. */
  readonly #products = new Map<number, ProductTasks>();
  readonly #thread: number;
  readonly #floats: Float32Array;

  constructor(shared: SharedStep, thread: number) {
    this.shared = shared;
    this.kernels = instantiate(shared.module, shared.memory);
    this.barrier = new Barrier(shared.barrier, shared.numThreads, shared.numSpins);
    this.u32 = new Uint32Array(shared.memory.buffer);
    this.scratch = shared.scratch + thread * shared.scratchBytes;
    this.#thread = thread;
    this.#floats = new Float32Array(shared.ops.buffer);
  }

  /** Cells of the operation at `at`. */
  cells(at: number): Int32Array {
    return this.shared.ops.subarray(at, at + OP_CELLS);
  }

  /** A cell that holds a float. */
  float(at: number, cell: number): number {
    return this.#floats[at + cell]!;
  }

  /** The tasks of the product at `at`. */
  productTasks(at: number, numRows: number, inner: number, numPanels: number): ProductTasks {
    let tasks = this.#products.get(at);
    if (tasks?.numRows !== numRows) {
      tasks = productTasks(numRows, inner, numPanels, this.shared.numThreads);
      this.#products.set(at, tasks);
    }
    return tasks;
  }

  /** The next task of the operation at `at`; each is given to one thread. */
  nextTask(at: number): number {
    return Atomics.add(this.shared.tasks, at / OP_CELLS, 1);
  }

  /** Of work that is dealt beforehand, thread t's is [count·t/n, count·(t+1)/n), in whole units. */
  share(count: number, unit = 1): [number, number] {
    const { numThreads } = this.shared;
    const numUnits = Math.ceil(count / unit);
    const bound = (thread: number): number => Math.min(count, Math.floor((numUnits * thread) / numThreads) * unit);
    return [bound(this.#thread), bound(this.#thread + 1)];
  }
}

/** The context of one thread in one memory shard: its kernels, its scratch, and its share of each operation. */
import { Barrier } from './barrier.ts';
import type { Kernels, Products } from './kernel_exports.ts';
import { kernelsOf, productsOf } from './products.ts';
import type { SharedStep, StepShard } from './shared_step.ts';
import { productTasks, type ProductTasks } from './task_split.ts';

/** Columns are split among threads in multiples of this, one f32 vector. */
const COLUMN_UNIT = 4;
/** Multipliers in the key of a shape: more panels than a matrix within 4 GiB can have, more inputs than any has. */
const [MAX_PANELS, MAX_INNER] = [2 ** 26, 2 ** 19];

/** One thread's view of a memory shard while a step runs. */
export class StepContext {
  readonly shared: SharedStep;
  readonly kernels: Kernels;
  /** Products of this thread. */
  readonly products: Products;
  readonly barrier: Barrier;
  /** The memory shard's memory. */
  readonly u32: Uint32Array;
  /** This thread's own region. */
  readonly scratch: number;
  /** Task splits by shape (unit, inputs and panels), then by number of rows. The size is bounded by a model's shapes and the rows of a step. */
  readonly #products = new Map<number, (ProductTasks | undefined)[]>();
  readonly #tasks: Int32Array;
  readonly #thread: number;
  /** Index of the first cell in which {@link isLast} counts. */
  readonly #firstCount: number;
  /** The part of the work that {@link share} gives this thread. */
  #part: number;
  #numParts: number;

  constructor(shared: SharedStep, shard: StepShard, thread: number) {
    this.shared = shared;
    this.#tasks = shard.tasks;
    this.#firstCount = shard.operations.length;
    this.kernels = kernelsOf(shared.products, shared.module, shard.memory);
    this.products = productsOf(shared.products, this.kernels, shard.memory);
    this.barrier = new Barrier(shared.barrier, shared.numThreads, shared.numSpins);
    this.u32 = new Uint32Array(shard.memory.buffer);
    this.scratch = shard.scratch + thread * shard.scratchBytes;
    this.#thread = thread;
    [this.#part, this.#numParts] = [thread, shared.numThreads];
  }

  /** A cell of `control`. */
  count(cell: number): number {
    return this.shared.control[cell]!;
  }

  productTasks(numRows: number, inner: number, numPanels: number, unit: number): ProductTasks {
    const shape = (unit * MAX_INNER + inner) * MAX_PANELS + numPanels;
    const known = this.#products.get(shape) ?? [];
    this.#products.set(shape, known);
    return (known[numRows] ??= productTasks(numRows, inner, numPanels, this.shared.numThreads, unit));
  }

  /** The next task of operation `index`; each is given to one thread. */
  nextTask(index: number): number {
    return Atomics.add(this.#tasks, index, 1);
  }

  /**
   * Returns this thread's half-open share of work that is split in advance: thread t of n has [count·t/n, count·(t+1)/n), in whole
   * units.
   */
  share(count: number, unit = 1): [start: number, end: number] {
    const numUnits = Math.ceil(count / unit);
    const bound = (part: number): number => Math.min(count, Math.floor((numUnits * part) / this.#numParts) * unit);
    return [bound(this.#part), bound(this.#part + 1)];
  }

  /** Runs work that {@link share} splits, of which this thread gets part `part` of `numParts`. */
  runPart(part: number, numParts: number, run: () => void): void {
    [this.#part, this.#numParts] = [part, numParts];
    run();
    [this.#part, this.#numParts] = [this.#thread, this.shared.numThreads];
  }

  /** Runs work that {@link share} splits, a part for each thread; threads claim the parts as tasks of operation `index`. */
  claimParts(index: number, run: () => void): void {
    const { numThreads } = this.shared;
    for (let part = this.nextTask(index); part < numThreads; part = this.nextTask(index))
      this.runPart(part, numThreads, run);
  }

  /** Whether this thread is the last to finish one of `count` pieces of work, counted under `key`; the count then begins again. */
  isLast(key: number, count: number): boolean {
    const at = this.#firstCount + key;
    if (Atomics.add(this.#tasks, at, 1) !== count - 1) return false;
    Atomics.store(this.#tasks, at, 0);
    return true;
  }

  /**
   * Returns this thread's share of a table: rows [start, end) and columns [first, last). Columns are split when there are fewer than
   * two rows per thread.
   */
  shareTable(rows: number, columns: number): [start: number, end: number, first: number, last: number] {
    if (rows >= 2 * this.shared.numThreads) return [...this.share(rows), 0, columns];
    return [0, rows, ...this.share(columns, COLUMN_UNIT)];
  }
}

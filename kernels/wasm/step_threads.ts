/** The threads of one executable: the caller's, which is thread 0, and helpers that sleep until a step. */
import { once } from 'node:events';
import type { Worker } from 'node:worker_threads';
import { BARRIER_CELLS, spinsPerMicrosecond } from './barrier.ts';
import { readyWorkers } from './ready_workers.ts';
import { StepThread, type OpRange } from './step.ts';
import { Control, type SharedStep, type StepShard } from './shared_step.ts';

/**
 * Microseconds a barrier spins before it sleeps. Longer burns a core that another engine may need; shorter makes every wait cost a
 * wake-up.
 */
const SPIN_US = 20;

/** Threads that run the steps of one executable. */
export class StepThreads {
  /** Cells of {@link Control}, written before a step. */
  readonly control: Int32Array;
  readonly numThreads: number;
  readonly #thread: StepThread;
  readonly #workers: readonly Worker[];

  private constructor(shared: SharedStep, workers: readonly Worker[]) {
    this.control = shared.control;
    this.numThreads = shared.numThreads;
    this.#thread = new StepThread(shared, 0);
    this.#workers = workers;
  }

  /** Resolves when every helper is ready. */
  static async start(
    { module, products }: Pick<SharedStep, 'module' | 'products'>,
    shards: readonly StepShard[],
    numThreads: number,
  ): Promise<StepThreads> {
    const cells = (count: number): Int32Array => new Int32Array(new SharedArrayBuffer(4 * count));
    const shared: SharedStep = {
      module,
      products,
      shards,
      numThreads,
      control: cells(Control.count),
      barrier: cells(BARRIER_CELLS),
      numSpins: SPIN_US * spinsPerMicrosecond(),
    };
    const helpers = Array.from({ length: numThreads - 1 }, (_, i) => ({ shared, thread: i + 1 }));
    const workers = await readyWorkers(new URL('./step_worker.js', import.meta.url), helpers);
    return new StepThreads(shared, workers);
  }

  /** Runs operations `ops` of memory shard `shard`: wakes the helpers once and works along. `isSingle`: a barrier after each. */
  run(shard: number, ops: OpRange, onDone?: (op: number) => void, isSingle?: boolean): void {
    this.#thread.run(shard, ops, onDone, isSingle);
  }

  async close(): Promise<void> {
    const exits = this.#workers.map((worker) => once(worker, 'exit'));
    this.#thread.stop();
    await Promise.all(exits);
  }
}

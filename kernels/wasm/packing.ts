/**
 * Packs rows into panels on several threads while a model is loaded. Every queued job has a staging region of its own. The thread that
 * reads the file packs a job itself when the queues of all helpers are full.
 */
import type { Worker } from 'node:worker_threads';
import { instantiate, type Kernels } from './kernel_exports.ts';
import { formatCodes } from './panels.ts';
import { readyWorkers } from './ready_workers.ts';

/** Most threads that pack; more would only wait for the file. */
const MAX_THREADS = 8;
/** Bytes of weights below which one thread packs, because starting helpers takes longer than loading so few. */
const MIN_SHARED_BYTES = 64 << 20;

/** Returns how many threads pack `weightBytes` of weights while a model is loaded: one below `minBytes`, else at most MAX_THREADS. */
export function packingThreads(numThreads: number, weightBytes: number, minBytes = MIN_SHARED_BYTES): number {
  return weightBytes < minBytes ? 1 : Math.min(numThreads, MAX_THREADS);
}

/** A job for rows that lie in a staging region: the kernel that packs them, and its arguments. */
export type PackJob =
  /** Floats, with the arguments of `pack_rows`. */
  | { readonly kind: 'floats'; readonly args: Parameters<Kernels['pack_rows']> }
  /**
   * Stored integers, with the arguments of `pack_stored`. When the format is uint4, `pack_uint4` is called with all of them but the
   * format.
   */
  | { readonly kind: 'stored'; readonly args: Parameters<Kernels['pack_stored']> }
  /** Stored codes of a table, with the arguments of `pack_codes`. */
  | { readonly kind: 'codes'; readonly args: Parameters<Kernels['pack_codes']> }
  | { readonly kind: 'columns'; readonly args: Parameters<Kernels['pack_columns']> };

/** Jobs queued per helper. With two, the next job is ready when one ends, even while the submitting thread is busy. */
const SLOTS = 2;

/** Returns the number of staging regions for `numThreads` packing threads: one for the caller, SLOTS for each helper. */
export function stagingsFor(numThreads: number): number {
  return 1 + (numThreads - 1) * SLOTS;
}

/** Kinds of jobs; the index of a kind is its code in a slot. */
const KINDS = ['floats', 'stored', 'codes', 'columns'] as const satisfies readonly PackJob['kind'][];

const UINT4 = formatCodes.uint4;

/** Cells of a slot, u32: its state, the kind of its job, the index of the memory shard, and the arguments of the kernel. */
const Cell = { state: 0, kind: 1, shard: 2, args: 3, count: 32 } as const;
const State = { idle: 0, job: 1, stop: 2 } as const;
/** Milliseconds after which a helper that has not finished its job counts as lost; a job takes a few milliseconds. */
const LOST_MS = 60_000;

/** Data that a packing helper starts with. */
export interface PackHelperData {
  readonly module: WebAssembly.Module;
  readonly memories: readonly WebAssembly.Memory[];
  /** Job slots of the helper, used in rotation. */
  readonly slots: readonly Int32Array[];
}

function pack(kernels: Kernels, { kind, args }: PackJob): void {
  if (kind === 'columns') {
    kernels.pack_columns(...args);
    return;
  }
  if (kind === 'codes') {
    kernels.pack_codes(...args);
    return;
  }
  if (kind === 'stored') {
    const [code, ...rest] = args;
    if (code === UINT4) kernels.pack_uint4(...rest);
    else kernels.pack_stored(...args);
    return;
  }
  kernels.pack_rows(...args);
}

/** The body of a helper: runs the jobs of its slots in rotation until a slot is set to stop. */
export function servePacking({ module, memories, slots }: PackHelperData): void {
  const kernels = memories.map((memory) => instantiate(module, memory));
  for (let next = 0; ; next = (next + 1) % slots.length) {
    const cells = slots[next]!;
    while (Atomics.load(cells, Cell.state) === State.idle) Atomics.wait(cells, Cell.state, State.idle);
    if (Atomics.load(cells, Cell.state) === State.stop) return;
    const words = new Uint32Array(cells.buffer, cells.byteOffset, cells.length);
    const args: unknown = [...words.subarray(Cell.args)];
    const own = kernels[words[Cell.shard] ?? 0];
    if (own) pack(own, { kind: KINDS[words[Cell.kind] ?? 0], args } as PackJob);
    Atomics.store(cells, Cell.state, State.idle);
    Atomics.notify(cells, Cell.state);
  }
}

class Helper {
  readonly worker: Worker;
  readonly #slots: readonly Int32Array[];
  #next = 0;

  constructor(worker: Worker, slots: readonly Int32Array[]) {
    this.worker = worker;
    this.#slots = slots;
  }

  /** Index of the slot for the next job; slots are used in rotation. */
  get next(): number {
    return this.#next;
  }

  /** Number of idle slots. Slots are used in rotation, so the next one is idle when any is. */
  get numFree(): number {
    return this.#slots.filter((cells) => Atomics.load(cells, Cell.state) === State.idle).length;
  }

  /** Writes a job into the next slot and wakes the helper. */
  submit(shard: number, { kind, args }: PackJob): void {
    const cells = this.#slots[this.#next]!;
    this.#next = (this.#next + 1) % this.#slots.length;
    cells[Cell.kind] = KINDS.indexOf(kind);
    cells[Cell.shard] = shard;
    args.forEach((value, i) => {
      cells[Cell.args + i] = value;
    });
    Atomics.store(cells, Cell.state, State.job);
    Atomics.notify(cells, Cell.state);
  }

  waitForAll(): void {
    for (const cells of this.#slots)
      if (Atomics.wait(cells, Cell.state, State.job, LOST_MS) === 'timed-out')
        throw new Error('a thread that packs weights has not finished its job within a minute');
  }

  async close(): Promise<void> {
    for (const cells of this.#slots) {
      Atomics.store(cells, Cell.state, State.stop);
      Atomics.notify(cells, Cell.state);
    }
    await this.worker.terminate();
  }
}

/** Threads that pack rows into panels while a model is loaded: the caller's and its helpers. */
export class PackThreads {
  readonly #kernels: readonly Kernels[];
  readonly #helpers: readonly Helper[];

  private constructor(kernels: readonly Kernels[], helpers: readonly Helper[]) {
    this.#kernels = kernels;
    this.#helpers = helpers;
  }

  /** Resolves when every helper is ready. */
  static async start(
    module: WebAssembly.Module,
    memories: readonly WebAssembly.Memory[],
    numThreads: number,
  ): Promise<PackThreads> {
    const works = Array.from({ length: numThreads - 1 }, (): PackHelperData => {
      const slots = Array.from({ length: SLOTS }, () => new Int32Array(new SharedArrayBuffer(4 * Cell.count)));
      return { module, memories, slots };
    });
    const workers = await readyWorkers(new URL('./packing_worker.js', import.meta.url), works);
    return new PackThreads(
      memories.map((memory) => instantiate(module, memory)),
      works.map(({ slots }, i) => new Helper(workers[i]!, slots)),
    );
  }

  /**
   * Returns the index of a free staging region, below {@link stagingsFor}: one of the least busy helper, or 0, the caller's own, when
   * no helper is free.
   */
  next(): number {
    const free = this.#helpers.map(({ numFree }) => numFree);
    const most = Math.max(0, ...free);
    if (most === 0) return 0;
    const helper = free.indexOf(most);
    return 1 + helper * SLOTS + this.#helpers[helper]!.next;
  }

  /**
   * Runs a job on the rows in staging region `staging`, an index from {@link next}. A job in region 0 is done on return; others are
   * queued for a helper.
   */
  run(staging: number, shard: number, job: PackJob): void {
    if (staging === 0) pack(this.#kernels[shard]!, job);
    else this.#helpers[Math.floor((staging - 1) / SLOTS)]!.submit(shard, job);
  }

  /** Waits until all submitted jobs are done. @throws Error when a helper does not finish a job within LOST_MS. */
  waitForAll(): void {
    for (const helper of this.#helpers) helper.waitForAll();
  }

  async close(): Promise<void> {
    await Promise.all(this.#helpers.map((helper) => helper.close()));
  }
}

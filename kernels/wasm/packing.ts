/**
 * Rows into panels, on several threads while a model is loaded: each has a staging region, and whoever reads the file packs by itself when
 * all others have something to do.
 */
import type { Worker } from 'node:worker_threads';
import { instantiate, type Kernels } from './kernel_exports.ts';
import { formatCodes } from './panels.ts';
import { readyWorkers } from './ready_workers.ts';

/** More of them wait for the file. */
const MAX_THREADS = 8;
/** Helpers take longer to start than less than this takes to load. */
let minBytes = 64 << 20;

/** For drills: small models are packed by several threads too. */
export function narrowPacking(bytes: number): void {
  minBytes = bytes;
}

export function packingThreads(numThreads: number, weightBytes: number): number {
  return weightBytes < minBytes ? 1 : Math.min(numThreads, MAX_THREADS);
}

/** Rows that lie in a staging region. */
export type PackJob =
  /** f32 (`source` 0), f16 (1) or bf16 (2) at `from`; `values` is where f32 is, or what is widened goes. */
  | {
      readonly kind: 'floats';
      readonly args: readonly [
        source: number,
        from: number,
        values: number,
        code: number,
        count: number,
        inner: number,
        to: number,
        firstOutput: number,
        room: number,
      ];
    }
  /** As `pack_stored` takes them; into uint4 as `pack_uint4` does. */
  | { readonly kind: 'stored'; readonly args: Parameters<Kernels['pack_stored']> }
  | { readonly kind: 'columns'; readonly args: Parameters<Kernels['pack_columns']> };

/** By the numbers that helpers are told. */
const KINDS = ['floats', 'stored', 'columns'] as const satisfies readonly PackJob['kind'][];

const UINT4 = formatCodes.uint4;

/** Cells of a helper, u32: what it has to do, for which memory, and its arguments. */
const Cell = { state: 0, kind: 1, piece: 2, args: 3, count: 16 } as const;
const State = { idle: 0, job: 1, stop: 2 } as const;
/** A job takes milliseconds. */
const LOST_MS = 60_000;

export interface PackWork {
  readonly module: WebAssembly.Module;
  readonly memories: readonly WebAssembly.Memory[];
  readonly cells: Int32Array;
}

function pack(kernels: Kernels, { kind, args }: PackJob): void {
  if (kind === 'columns') {
    kernels.pack_columns(...args);
    return;
  }
  if (kind === 'stored') {
    const [code, ...rest] = args;
    if (code === UINT4) kernels.pack_uint4(...rest);
    else kernels.pack_stored(...args);
    return;
  }
  const [source, from, values, code, count, inner, to, firstOutput, room] = args;
  if (source > 0) kernels.widen(source, from, count * inner, values);
  kernels.pack_rows(code, values, count, inner, to, firstOutput, room);
}

/** The body of a helper: does jobs until it is told to stop. */
export function servePacking({ module, memories, cells }: PackWork): void {
  const kernels = memories.map((memory) => instantiate(module, memory));
  const words = new Uint32Array(cells.buffer, cells.byteOffset, cells.length);
  for (;;) {
    Atomics.wait(cells, Cell.state, State.idle);
    const state = Atomics.load(cells, Cell.state);
    if (state === State.stop) return;
    if (state === State.idle) continue;
    const args: unknown = [...words.subarray(Cell.args)];
    const own = kernels[words[Cell.piece] ?? 0];
    if (own) pack(own, { kind: KINDS[words[Cell.kind] ?? 0], args } as PackJob);
    Atomics.store(cells, Cell.state, State.idle);
    Atomics.notify(cells, Cell.state);
  }
}

interface Helper {
  readonly worker: Worker;
  readonly cells: Int32Array;
}

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
    const works = Array.from({ length: numThreads - 1 }, (): PackWork => {
      return { module, memories, cells: new Int32Array(new SharedArrayBuffer(4 * Cell.count)) };
    });
    const workers = await readyWorkers('./packing_worker.js', works);
    return new PackThreads(
      memories.map((memory) => instantiate(module, memory)),
      works.map(({ cells }, i) => ({ worker: workers[i]!, cells })),
    );
  }

  /** The caller's thread among them. */
  get count(): number {
    return 1 + this.#helpers.length;
  }

  /** Whose staging region is free: 0 is the caller's own. */
  next(): number {
    return 1 + this.#helpers.findIndex(({ cells }) => Atomics.load(cells, Cell.state) === State.idle);
  }

  /** `thread`: of {@link next}. The caller's own is done when this returns. */
  run(thread: number, piece: number, job: PackJob): void {
    const cells = this.#helpers[thread - 1]?.cells;
    if (!cells) {
      pack(this.#kernels[piece]!, job);
      return;
    }
    cells[Cell.kind] = KINDS.indexOf(job.kind);
    cells[Cell.piece] = piece;
    job.args.forEach((value, i) => {
      cells[Cell.args + i] = value;
    });
    Atomics.store(cells, Cell.state, State.job);
    Atomics.notify(cells, Cell.state);
  }

  /** Until all that was given is done. @throws Error when a helper is lost. */
  settle(): void {
    for (const { cells } of this.#helpers)
      if (Atomics.wait(cells, Cell.state, State.job, LOST_MS) === 'timed-out')
        throw new Error('a packing thread is lost');
  }

  async close(): Promise<void> {
    for (const { cells } of this.#helpers) {
      Atomics.store(cells, Cell.state, State.stop);
      Atomics.notify(cells, Cell.state);
    }
    await Promise.all(this.#helpers.map(({ worker }) => worker.terminate()));
  }
}

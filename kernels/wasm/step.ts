/**
 * A step: a list of operations that every thread walks, a barrier between them. Threads split outputs, never sums (E2).
 *
 * The list lives in shared cells, one row of OP_CELLS per operation, written once at load. What varies per step (row counts,
 * tokens, tiles) lies in `control` and in the memory regions that the operations point to. The engine thread is thread 0: it
 * fills those, wakes the others once, works along.
 */
import { Barrier } from './barrier.ts';
import { AttentionTasks, headsAtOnce, productTasks, ROW_BLOCK, spanBlocks } from './task_split.ts';

export const OP_CELLS = 20;
export const MAX_OPS = 4_096;

export const OpCode = {
  embed: 0,
  rmsNorm: 1,
  linear: 2,
  ropeStore: 3,
  attention: 4,
  siluMul: 5,
  gather: 6,
  candidates: 7,
  /** For {@link measurePeaks}: a loop on every thread, or nothing but the barrier. */
  multiplyAdd: 8,
  multiplyAddInt: 9,
  multiplyAddInt4: 10,
  read: 11,
  nothing: 12,
} as const;

/** Cells of `control`. */
export const Control = {
  stepCount: 0,
  stop: 1,
  numRows: 2,
  numSamples: 3,
  numTiles: 4,
  attention: 5,
  count: 6,
} as const;

/** Cells of one attention tile: consecutive rows of one sequence. */
export const TILE_CELLS = 4;
/** Rows that share one unpacking of a block; 16 rows amortise it and keep the running sums in cache. */
export const TILE_ROWS = 16;
/** Columns are dealt in whole vectors. */
const UNIT = 4;
/** Codes of weight formats: f32, f16, int8, int4. */
const FIRST_INT_FORMAT = 2;
/** Where quantised rows lie in a thread's scratch: after sums [ROW_BLOCK][8], a cache line and 16 groups of int8. */
export const QUANTISED_AT = ROW_BLOCK * 32 + 64 + 16 * 272;
/** What the read loop takes at a time. */
const READ_BYTES = 128;

type Kernel = (...args: number[]) => number;

export type KernelExports = Readonly<
  Record<
    | 'attention_merge'
    | 'attention_span'
    | 'attention_tile'
    | 'candidates'
    | 'embed'
    | 'gather'
    | 'is_fused'
    | 'linear_float'
    | 'linear_int'
    | 'multiply_add_loop'
    | 'multiply_add_loop_int'
    | 'multiply_add_loop_int4'
    | 'pack_rows'
    | 'quantise'
    | 'read_loop'
    | 'rms_norm'
    | 'rope_store'
    | 'silu_mul',
    Kernel
  >
>;

export function instantiate(module: WebAssembly.Module, memory: WebAssembly.Memory): KernelExports {
  return new WebAssembly.Instance(module, { env: { memory } }).exports as unknown as KernelExports;
}

/** What the threads share. `barrier` is the cells of one {@link Barrier}. */
export interface SharedStep {
  readonly module: WebAssembly.Module;
  readonly memory: WebAssembly.Memory;
  readonly control: Int32Array;
  readonly barrier: Int32Array;
  readonly ops: Int32Array;
  readonly numOps: number;
  /** Per operation, how many of its tasks are taken in this step. */
  readonly tasks: Int32Array;
  readonly numThreads: number;
  readonly numSpins: number;
  /** One scratch region per thread, this far apart. */
  readonly scratch: number;
  readonly scratchBytes: number;
}

/** One thread's view of the step: its own instance over the shared memory. */
export class StepThread {
  readonly #shared: SharedStep;
  readonly #thread: number;
  readonly #barrier: Barrier;
  readonly #kernels: KernelExports;
  readonly #u32: Uint32Array;
  readonly #floats: Float32Array;
  readonly #scratch: number;

  constructor(shared: SharedStep, thread: number) {
    this.#shared = shared;
    this.#thread = thread;
    this.#barrier = new Barrier(shared.barrier, shared.numThreads, shared.numSpins);
    this.#kernels = instantiate(shared.module, shared.memory);
    this.#u32 = new Uint32Array(shared.memory.buffer);
    this.#floats = new Float32Array(shared.ops.buffer);
    this.#scratch = shared.scratch + thread * shared.scratchBytes;
  }

  /** Walks the list once; `onDone` is for profiles. */
  walk(onDone?: (op: number) => void): void {
    try {
      for (let op = 0; op < this.#shared.numOps; op++) {
        this.#run(op * OP_CELLS);
        this.#barrier.arrive();
        onDone?.(op);
      }
    } catch (error) {
      // The others would wait for this one for ever.
      this.#barrier.break();
      throw error;
    }
  }

  /** For the other threads: sleep until the next step, walk it, until told to stop. */
  serve(): void {
    const { control } = this.#shared;
    for (let seen = 0; ;) {
      Atomics.wait(control, Control.stepCount, seen);
      const step = Atomics.load(control, Control.stepCount);
      if (step === seen) continue;
      seen = step;
      if (Atomics.load(control, Control.stop) === 1) return;
      this.walk();
    }
  }

  /** For the engine thread: wake the others once, walk along. */
  run(onDone?: (op: number) => void): void {
    const { control, numThreads, tasks } = this.#shared;
    tasks.fill(0);
    if (numThreads > 1) {
      Atomics.add(control, Control.stepCount, 1);
      Atomics.notify(control, Control.stepCount);
    }
    this.walk(onDone);
  }

  stop(): void {
    const { control } = this.#shared;
    Atomics.store(control, Control.stop, 1);
    Atomics.add(control, Control.stepCount, 1);
    Atomics.notify(control, Control.stepCount);
  }

  /** Thread t owns [count·t/n, count·(t+1)/n). */
  #share(count: number, unit = 1): [number, number] {
    const { numThreads } = this.#shared;
    const numUnits = Math.ceil(count / unit);
    const bound = (thread: number): number => Math.min(count, Math.floor((numUnits * thread) / numThreads) * unit);
    return [bound(this.#thread), bound(this.#thread + 1)];
  }

  #run(at: number): void {
    const { ops, control } = this.#shared;
    const kernels = this.#kernels;
    const arg = (i: number): number => ops[at + i]!;
    const rows = control[Control.numRows]!;
    switch (arg(0)) {
      case OpCode.embed: {
        const [start, end] = this.#share(rows);
        kernels.embed(arg(1), arg(2), arg(3), arg(4), arg(5), arg(6), start, end);
        return;
      }
      case OpCode.rmsNorm: {
        const [start, end] = this.#share(control[arg(8)]!);
        kernels.rms_norm(arg(1), arg(2), arg(3), arg(4), arg(5), arg(6), this.#floats[at + 7]!, start, end);
        return;
      }
      case OpCode.linear:
        this.#linear(at);
        return;
      case OpCode.ropeStore: {
        const [start, end] = this.#share(rows);
        const a = ops.subarray(at + 1, at + 15);
        kernels.rope_store(...a, start, end);
        return;
      }
      case OpCode.attention:
        this.#attention(at);
        return;
      case OpCode.siluMul:
        this.#siluMul(at, rows);
        return;
      case OpCode.gather: {
        const [start, end] = this.#share(control[Control.numSamples]!);
        kernels.gather(arg(1), arg(2), arg(3), arg(4), start, end);
        return;
      }
      case OpCode.candidates:
        this.#candidates(at);
        return;
      case OpCode.multiplyAdd:
        kernels.multiply_add_loop(arg(1), this.#scratch);
        return;
      case OpCode.multiplyAddInt:
        kernels.multiply_add_loop_int(arg(1), this.#scratch);
        return;
      case OpCode.multiplyAddInt4:
        kernels.multiply_add_loop_int4(arg(1), this.#scratch);
        return;
      case OpCode.read: {
        const [start, end] = this.#share(arg(2), READ_BYTES);
        kernels.read_loop(arg(1) + start, arg(1) + end);
        return;
      }
      case OpCode.nothing:
        return;
      default:
        throw new Error(`no operation code ${arg(0)}`);
    }
  }

  /** The next task of the operation at `at`; each is given to one thread. */
  #nextTask(at: number): number {
    return Atomics.add(this.#shared.tasks, at / OP_CELLS, 1);
  }

  #linear(at: number): void {
    const { ops, control, numThreads } = this.#shared;
    const cells = ops.subarray(at, at + OP_CELLS);
    const [x, xStride, w, format, bias, out] = [cells[1]!, cells[2]!, cells[3]!, cells[4]!, cells[5]!, cells[6]!];
    const [outStride, inner, isAccumulating, numPanels] = [cells[7]!, cells[8]!, cells[9]!, cells[11]!];
    const numRows = control[cells[10]!]!;
    const { rowsPerTask, panelsPerTask, numPanelTasks, numTasks } = productTasks(numRows, inner, numPanels, numThreads);
    const isQuantised = format >= FIRST_INT_FORMAT;
    // f16 and int4 are the odd ones of their kind.
    const isOdd = format & 1;
    const quantised = this.#scratch + QUANTISED_AT;
    let quantisedRow = -1;
    for (let task = this.#nextTask(at); task < numTasks; task = this.#nextTask(at)) {
      const row = Math.floor(task / numPanelTasks) * rowsPerTask;
      const rows = Math.min(rowsPerTask, numRows - row);
      const panel = (task % numPanelTasks) * panelsPerTask;
      const xRow = x + row * xStride;
      const rest = [bias, out + row * outStride, outStride, rows, inner, isAccumulating, panel];
      const panelEnd = Math.min(numPanels, panel + panelsPerTask);
      if (!isQuantised) {
        this.#kernels.linear_float(xRow, xStride, w, isOdd, ...rest, panelEnd, this.#scratch);
        continue;
      }
      if (row !== quantisedRow) this.#kernels.quantise(xRow, xStride, rows, inner, isOdd, quantised, this.#scratch);
      quantisedRow = row;
      this.#kernels.linear_int(quantised, w, isOdd, ...rest, panelEnd, this.#scratch);
    }
  }

  /** Few rows are split by columns. */
  #siluMul(at: number, rows: number): void {
    const { ops, numThreads } = this.#shared;
    const [gateUp, stride, out, outStride, inner] = [...ops.subarray(at + 1, at + 6)] as [
      number,
      number,
      number,
      number,
      number,
    ];
    const isByRows = rows >= 2 * numThreads;
    const [start, end] = isByRows ? this.#share(rows) : [0, rows];
    const [first, last] = isByRows ? [0, inner] : this.#share(inner, UNIT);
    this.#kernels.silu_mul(gateUp + first * 4, stride, inner * 4, out + first * 4, outStride, last - first, start, end);
  }

  #attention(at: number): void {
    const { ops, control } = this.#shared;
    const cells = ops.subarray(at, at + OP_CELLS);
    const tiles = (cells[14]! >>> 0) / 4;
    const numTiles = control[Control.numTiles]!;
    const kvHeads = cells[8]!;
    const split = control[Control.attention];
    if (split === AttentionTasks.spans) {
      this.#attentionSpans(at, tiles, numTiles);
      return;
    }
    const headsPerTask = split === AttentionTasks.tiles ? kvHeads : 1;
    const tasksPerTile = kvHeads / headsPerTask;
    for (let task = this.#nextTask(at); task < numTiles * tasksPerTile; task = this.#nextTask(at)) {
      const head = (task % tasksPerTile) * headsPerTask;
      const tile = tiles + Math.floor(task / tasksPerTile) * TILE_CELLS;
      this.#attentionTile(at, tile, head, head + headsPerTask);
    }
  }

  #attentionTile(at: number, tile: number, kvHeadStart: number, kvHeadEnd: number): void {
    const cells = this.#shared.ops.subarray(at, at + OP_CELLS);
    const [q, qStride, out, outStride] = [cells[1]!, cells[2]!, cells[3]!, cells[4]!];
    const rowStart = this.#u32[tile]!;
    this.#kernels.attention_tile(
      q + rowStart * qStride,
      qStride,
      out + rowStart * outStride,
      outStride,
      ...cells.subarray(5, 8),
      this.#u32[tile + 3]!,
      this.#u32[tile + 1]!,
      this.#u32[tile + 2]!,
      kvHeadStart,
      kvHeadEnd,
      ...cells.subarray(8, 12),
      this.#floats[at + 12]!,
      cells[13]!,
      cells[15]!,
      this.#scratch,
    );
  }

  /** Spans of all tiles, then, when they are there, what they make together. */
  #attentionSpans(at: number, tiles: number, numTiles: number): void {
    const { ops, numThreads } = this.#shared;
    const cells = ops.subarray(at, at + OP_CELLS);
    const [q, qStride, out, outStride] = [cells[1]!, cells[2]!, cells[3]!, cells[4]!];
    const [kvHeads, group, headDim, blockSize] = [cells[8]!, cells[9]!, cells[10]!, cells[11]!];
    const [window, records, spanBytes, maxSpans] = [cells[15]!, cells[16]!, cells[17]!, cells[18]!];
    const spanTokens = spanBlocks(blockSize) * blockSize;
    const recordsOf = (tile: number): number => records + tile * maxSpans * spanBytes;
    const spansOf = (tile: number): [number, number] => {
      const position = this.#u32[tiles + tile * TILE_CELLS + 2]!;
      const first = window > 0 && position >= window ? position + 1 - window : 0;
      return [Math.floor(first / spanTokens), Math.floor(position / spanTokens) + 1];
    };
    let numSpans = 0;
    for (let tile = 0; tile < numTiles; tile++) numSpans += spansOf(tile)[1] - spansOf(tile)[0];
    const numHeads = headsAtOnce(numSpans, kvHeads, numThreads);
    const recordBytes = spanBytes / (kvHeads * group);
    let mine = this.#nextTask(at);
    let task = 0;
    for (let tile = 0; tile < numTiles; tile++) {
      const cell = tiles + tile * TILE_CELLS;
      const [start, end] = spansOf(tile);
      for (let head = 0; head < kvHeads; head += numHeads) {
        for (let span = start; span < end; span++, task++) {
          if (task !== mine) continue;
          mine = this.#nextTask(at);
          this.#kernels.attention_span(
            q + this.#u32[cell]! * qStride,
            ...cells.subarray(5, 8),
            this.#u32[cell + 3]!,
            this.#u32[cell + 2]!,
            head,
            head + numHeads,
            ...cells.subarray(8, 12),
            this.#floats[at + 12]!,
            cells[13]!,
            window,
            span,
            recordsOf(tile) + (span - start) * spanBytes + head * group * recordBytes,
            this.#scratch,
          );
        }
      }
    }
    this.#barrier.arrive();
    const [first, last] = this.#share(numTiles * kvHeads);
    for (let part = first; part < last; part++) {
      const [tile, head] = [Math.floor(part / kvHeads), (part % kvHeads) * group];
      const [start, end] = spansOf(tile);
      this.#kernels.attention_merge(
        recordsOf(tile) + head * recordBytes,
        end - start,
        spanBytes,
        group,
        headDim,
        out + this.#u32[tiles + tile * TILE_CELLS]! * outStride + head * headDim * 4,
        this.#scratch,
      );
    }
  }

  #candidates(at: number): void {
    const { ops, control } = this.#shared;
    const [logits, stride, vocab] = [ops[at + 1]!, ops[at + 2]!, ops[at + 3]!];
    const [counts, ids, values, stats, maxCandidates] = [...ops.subarray(at + 4, at + 9)] as [
      number,
      number,
      number,
      number,
      number,
    ];
    const [start, end] = this.#share(control[Control.numSamples]!);
    for (let sample = start; sample < end; sample++) {
      const count = this.#u32[(counts >>> 0) / 4 + sample]!;
      const list = sample * maxCandidates * 4;
      this.#kernels.candidates(logits + sample * stride, vocab, count, ids + list, values + list, stats + sample * 8);
    }
  }
}

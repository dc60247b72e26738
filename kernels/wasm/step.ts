/**
 * A step: a list of operations that every thread walks, a barrier between them. Threads split outputs, never sums (E2).
 *
 * The list lives in shared cells, one row of OP_CELLS per operation, written once at load. What varies per step (row counts,
 * tokens, tiles) lies in `control` and in the memory regions that the operations point to. The engine thread is thread 0: it
 * fills those, wakes the others once, works along.
 */
import { attention } from './attention_step.ts';
import { product } from './product_step.ts';
import { Control, OP_CELLS, OpCode, type SharedStep } from './step_cells.ts';
import { StepContext } from './step_context.ts';

/** Columns are dealt in whole vectors. */
const UNIT = 4;
/** What the read loop takes at a time. */
const READ_BYTES = 128;

/** One thread's view of the step: its own instance over the shared memory. */
export class StepThread {
  readonly #shared: SharedStep;
  readonly #context: StepContext;

  constructor(shared: SharedStep, thread: number) {
    this.#shared = shared;
    this.#context = new StepContext(shared, thread);
  }

  /** Walks the list once; `onDone` is for profiles. */
  walk(onDone?: (op: number) => void): void {
    try {
      for (let op = 0; op < this.#shared.numOps; op++) {
        this.#run(op * OP_CELLS);
        this.#context.barrier.arrive();
        onDone?.(op);
      }
    } catch (error) {
      // The others would wait for this one for ever.
      this.#context.barrier.break();
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

  #run(at: number): void {
    const { ops, control } = this.#shared;
    const context = this.#context;
    const { kernels, scratch } = context;
    const arg = (i: number): number => ops[at + i]!;
    const rows = control[Control.numRows]!;
    switch (arg(0)) {
      case OpCode.embed: {
        const [start, end] = context.share(rows);
        kernels.embed(arg(1), arg(2), arg(3), arg(4), arg(5), arg(6), start, end);
        return;
      }
      case OpCode.rmsNorm: {
        const [start, end] = context.share(control[arg(8)]!);
        kernels.rms_norm(arg(1), arg(2), arg(3), arg(4), arg(5), arg(6), context.float(at, 7), start, end);
        return;
      }
      case OpCode.linear:
        product(context, at);
        return;
      case OpCode.ropeStore: {
        const [start, end] = context.share(rows);
        const a = ops.subarray(at + 1, at + 15);
        kernels.rope_store(...a, start, end);
        return;
      }
      case OpCode.attention:
        attention(context, at);
        return;
      case OpCode.siluMul:
        this.#siluMul(at, rows);
        return;
      case OpCode.gather: {
        const [start, end] = context.share(control[Control.numSamples]!);
        kernels.gather(arg(1), arg(2), arg(3), arg(4), start, end);
        return;
      }
      case OpCode.candidates:
        this.#candidates(at);
        return;
      case OpCode.multiplyAdd:
        kernels.multiply_add_loop(arg(1), scratch);
        return;
      case OpCode.multiplyAddInt:
        kernels.multiply_add_loop_int(arg(1), scratch);
        return;
      case OpCode.multiplyAddInt4:
        kernels.multiply_add_loop_int4(arg(1), scratch);
        return;
      case OpCode.read: {
        const [start, end] = context.share(arg(2), READ_BYTES);
        kernels.read_loop(arg(1) + start, arg(1) + end);
        return;
      }
      case OpCode.nothing:
        return;
      default:
        throw new Error(`no operation code ${arg(0)}`);
    }
  }

  /** Few rows are split by columns. */
  #siluMul(at: number, rows: number): void {
    const { kernels, shared } = this.#context;
    const { ops, numThreads } = shared;
    const [gateUp, stride, out, outStride, inner] = [...ops.subarray(at + 1, at + 6)] as [
      number,
      number,
      number,
      number,
      number,
    ];
    const isByRows = rows >= 2 * numThreads;
    const [start, end] = isByRows ? this.#context.share(rows) : [0, rows];
    const [first, last] = isByRows ? [0, inner] : this.#context.share(inner, UNIT);
    kernels.silu_mul(gateUp + first * 4, stride, inner * 4, out + first * 4, outStride, last - first, start, end);
  }

  #candidates(at: number): void {
    const { kernels, shared, u32 } = this.#context;
    const { ops, control } = shared;
    const [logits, stride, vocab] = [ops[at + 1]!, ops[at + 2]!, ops[at + 3]!];
    const [counts, ids, values, stats, maxCandidates] = [...ops.subarray(at + 4, at + 9)] as [
      number,
      number,
      number,
      number,
      number,
    ];
    const [start, end] = this.#context.share(control[Control.numSamples]!);
    for (let sample = start; sample < end; sample++) {
      const count = u32[(counts >>> 0) / 4 + sample]!;
      const list = sample * maxCandidates * 4;
      kernels.candidates(logits + sample * stride, vocab, count, ids + list, values + list, stats + sample * 8);
    }
  }
}

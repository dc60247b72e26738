/**
 * A step: a list of operations that every thread walks, a barrier between them. Threads split outputs, never sums (E2).
 *
 * The list is made once, at load, and every thread has it. What varies per step (row counts, tokens, tiles) lies in `control` and in
 * the memory regions that the operations point to. The engine thread is thread 0: it fills those, wakes the others once, works along.
 */
import assert from 'node:assert/strict';
import { runOf } from './operations.ts';
import { Control, type SharedStep } from './shared_step.ts';
import { StepContext } from './step_context.ts';

/** Half-open range [first, end) of a list of operations. */
export interface OpRange {
  readonly first: number;
  readonly end: number;
}

/** One thread's view of the step: its own instance over the memory of every memory shard. */
export class StepThread {
  readonly #shared: SharedStep;
  readonly #shards: readonly { readonly context: StepContext; readonly runs: readonly (() => void)[] }[];

  constructor(shared: SharedStep, thread: number) {
    this.#shared = shared;
    this.#shards = shared.shards.map((shard) => {
      const context = new StepContext(shared, shard, thread);
      const runs = shard.operations.map((op) => {
        const run = runOf(op);
        return () => {
          run(context, op);
        };
      });
      return { context, runs };
    });
  }

  /** Walks the list, or the part of it that the step is; `onDone` is told of each operation. */
  walk(onDone?: (op: number) => void): void {
    const { control } = this.#shared;
    // Read once: behind the last barrier the next step's may be there already.
    const [first, end] = [control[Control.firstOp]!, control[Control.endOp]!];
    const { context, runs } = this.#shards[control[Control.shard]!]!;
    try {
      for (let op = first; op < end; op++) {
        runs[op]!();
        context.barrier.arrive();
        onDone?.(op);
      }
    } catch (error) {
      // The others would wait for this one for ever.
      context.barrier.break();
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
  run(shard: number, ops: OpRange, onDone?: (op: number) => void): void {
    const { control, numThreads, shards } = this.#shared;
    assert(ops.first < ops.end, 'a step has an operation: without a barrier nobody waits for the others');
    control[Control.shard] = shard;
    control[Control.firstOp] = ops.first;
    control[Control.endOp] = ops.end;
    shards[shard]?.tasks.fill(0);
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
}

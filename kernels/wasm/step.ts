/**
 * A step: a list of operations that every thread runs in order, a barrier after each. Threads split outputs, never sums (E2).
 *
 * The list is made once, at load, and every thread has a copy. Values that vary per step (row counts, tokens, tiles) lie in `control`
 * and in the memory regions that the operations point to. The engine thread is thread 0: it writes those values, wakes the other
 * threads once per call of `run`, and works along.
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

  /** Runs the operations that `control` names, with a barrier after each. `onDone` is called with the index of each finished operation. */
  walk(onDone?: (op: number) => void): void {
    const { control } = this.#shared;
    // Read once: after the last barrier, `control` may already have the values of the next step.
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

  /** Body of a helper thread: sleeps until the next step, runs it, and returns when {@link stop} was called. */
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

  /** Called by the engine thread: wakes the others once and runs operations `ops` of a memory shard along with them. */
  run(shard: number, ops: OpRange, onDone?: (op: number) => void): void {
    const { control, numThreads, shards } = this.#shared;
    assert(
      ops.first < ops.end,
      'a step needs at least one operation: without a barrier no thread waits for the others',
    );
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

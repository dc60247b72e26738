/**
 * A step: a list of operations that every thread runs in order, with barriers where one needs what other threads have done
 * (step_plan.ts). Threads split outputs, never sums (E2).
 *
 * The list is made once, at load, and every thread has a copy. Values that vary per step (row counts, tokens, tiles) lie in `control`
 * and in the memory regions that the operations point to. The engine thread is thread 0: it writes those values, wakes the other
 * threads once per call of `run`, and works along.
 */
import assert from 'node:assert/strict';
import { Control, Order, type SharedStep } from './shared_step.ts';
import { StepContext } from './step_context.ts';
import { FEW_ROWS } from './step_order.ts';
import { turnsOf, type StepTurns } from './step_turns.ts';

/** Half-open range [first, end) of a list of operations. */
export interface OpRange {
  readonly first: number;
  readonly end: number;
}

/** One thread's view of the step: its own instance over the memory of every memory shard. */
export class StepThread {
  readonly #shared: SharedStep;
  readonly #shards: readonly { readonly context: StepContext; readonly turns: Readonly<Record<number, StepTurns>> }[];

  constructor(shared: SharedStep, thread: number) {
    this.#shared = shared;
    this.#shards = shared.shards.map((shard) => {
      const context = new StepContext(shared, shard, thread);
      return { context, turns: turnsOf(context, shard, thread) };
    });
  }

  /**
   * Runs the operations that `control` names, in its order. `onDone` is called with the index of each operation when all threads are done
   * with it.
   */
  walk(onDone?: (op: number) => void): void {
    const { control } = this.#shared;
    // Read once: after the last barrier, `control` may already have the values of the next step.
    const [first, end] = [control[Control.firstOp]!, control[Control.endOp]!];
    const { context, turns } = this.#shards[control[Control.shard]!]!;
    const { runs, endsGroup } = turns[control[Control.order]!]!;
    try {
      for (let op = first, group = first; op < end; op++) {
        runs[op]!();
        if (endsGroup?.[op] === false) continue;
        context.barrier.arrive();
        for (; group <= op; group++) onDone?.(group);
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

  /**
   * Called by the engine thread: wakes the others once and runs operations `ops` of a memory shard along with them; `isSingle`: each by
   * itself.
   */
  run(shard: number, ops: OpRange, onDone?: (op: number) => void, isSingle = false): void {
    const { control, numThreads, shards } = this.#shared;
    assert(
      ops.first < ops.end,
      'a step needs at least one operation: without a barrier no thread waits for the others',
    );
    control[Control.shard] = shard;
    control[Control.firstOp] = ops.first;
    control[Control.endOp] = ops.end;
    control[Control.order] = isSingle ? Order.single : this.#orderOf(shard, ops);
    shards[shard]?.tasks.fill(0);
    if (numThreads > 1) {
      Atomics.add(control, Control.stepCount, 1);
      Atomics.notify(control, Control.stepCount);
    }
    this.walk(onDone);
  }

  #orderOf(shard: number, { first, end }: OpRange): number {
    const { control, shards } = this.#shared;
    const plan = shards[shard]?.plan;
    if (!plan) return Order.single;
    const isFew = Math.max(control[Control.numRows]!, control[Control.numSamples]!) <= FEW_ROWS;
    const { endsGroup } = isFew ? plan.few : plan.many;
    const isCut = (op: number): boolean => op > 0 && !endsGroup[op - 1];
    if (isCut(first) || isCut(end)) return Order.single;
    return isFew ? Order.few : Order.many;
  }

  stop(): void {
    const { control } = this.#shared;
    Atomics.store(control, Control.stop, 1);
    Atomics.add(control, Control.stepCount, 1);
    Atomics.notify(control, Control.stepCount);
  }
}

/** The work of one thread at each operation of a memory shard, by order of the step (step_plan.ts). */
import { dividesItself } from './accesses.ts';
import type { BoundOperation, Following } from './bound_operation.ts';
import { columnsOf, runOf } from './operations.ts';
import { Order, type StepShard } from './shared_step.ts';
import type { StepContext } from './step_context.ts';
import type { Joined, StepOrder } from './step_order.ts';

/** The work of one thread, by index of the operation. Without `endsGroup` all threads wait after each operation. */
export interface StepTurns {
  readonly runs: readonly (() => void)[];
  readonly endsGroup?: readonly boolean[];
}

/** Returns the turns of thread `thread` by {@link Order}; a shard without a plan has only those of single operations. */
export function turnsOf(
  context: StepContext,
  { operations, ownOperations, plan }: StepShard,
  thread: number,
): Readonly<Record<number, StepTurns>> {
  const runs = operations.map((op) => {
    const run = runOf(op);
    return () => {
      run(context, op);
    };
  });
  const own = ownOperations?.[thread] ?? operations;
  return {
    [Order.single]: { runs },
    ...(plan
      ? { [Order.many]: turnsIn(plan.many, operations, context), [Order.few]: turnsIn(plan.few, own, context) }
      : {}),
  };
}

function turnsIn(
  { joined, isRepeated, endsGroup }: StepOrder,
  operations: readonly BoundOperation[],
  context: StepContext,
): StepTurns {
  const runs: (() => void)[] = [];
  operations.forEach((op, i) => {
    // An operation that runs in the tasks of another has its turn already.
    if (runs.length > i) return;
    const after = operations.slice(i + 1, i + 1 + joined[i]!.count);
    runs.push(turnOf(op, after, joined[i]!, isRepeated[i]!, context), ...after.map(() => () => undefined));
  });
  return { runs, endsGroup };
}

/** Returns the turn of an operation with those `after` it that run in its tasks. */
function turnOf(
  op: BoundOperation,
  after: readonly BoundOperation[],
  joined: Joined,
  isRepeated: boolean,
  context: StepContext,
): () => void {
  if (joined.kind === 'columns' && after.length > 0) {
    const run = runOf(op);
    const product = { ...op, following: followingOf(joined, after, context) };
    return () => {
      run(context, product);
    };
  }
  const runs = [op, ...after].map((one) => ({ one, run: runOf(one) }));
  const runAll = (): void => {
    for (const { one, run } of runs) run(context, one);
  };
  if (dividesItself(op.kind)) return runAll;
  if (isRepeated)
    return () => {
      context.runPart(0, 1, runAll);
    };
  return () => {
    context.claimParts(op.index, runAll);
  };
}

function followingOf({ unit, apart }: Joined, operations: readonly BoundOperation[], context: StepContext): Following {
  const runs = operations.map((op) => ({ op, run: columnsOf(op) }));
  return {
    unit,
    apart,
    run: (row, rowEnd, column, columnEnd) => {
      for (const { op, run } of runs) run(context, op, row, rowEnd, column, columnEnd);
    },
  };
}

/**
 * The order of work of a step, and where threads must wait: derived at load from what the operations of a memory shard read and write.
 *
 *   norm ─► qkv ─► rope_store ┃ attention ┃ o ┃ norm ─► gate_up ─► silu_mul ┃ down ┃      ┃: a group ends
 *
 * A group is a range of operations whose tasks threads run without waiting; the next one begins when all threads are done with the
 * group.
 * Operations without a conflict share a group (accesses.ts). So do three kinds that depend on each other:
 *
 *   columns    operations on the columns of a product's output run within the product's tasks, on what a task has just computed
 *   rows       consecutive operations that touch each row by itself run together, on the rows of one task
 *   repeated   in a step of few rows every thread copies or normalises all rows itself, into a buffer of its own that only operations of the
 *              same group read
 *
 * All of them split outputs, never sums, so results keep their bits (E2).
 */
import { inputsOf, type Operation, type Program } from '../program.ts';
import { hiddenOf, samplingOf } from '../program_kinds.ts';
import { accessesOf, conflicts, outputsOf, splitsRows } from './accesses.ts';
import { followsProduct } from './operations.ts';
import type { Joined, StepOrder, StepPlan } from './step_order.ts';
import { LANES } from './panels.ts';
import { PANEL_UNIT } from './task_split.ts';

/** Returns the plan of a memory shard's program. */
export function planSteps(program: Program): StepPlan {
  const { operations } = program;
  const many = orderOf(program, new Set());
  const repeated = new Set([...operations.keys()].filter((op) => canRepeat(program, operations[op]!)));
  // An operation whose output another group reads is repeated no more, which moves the ends of groups.
  for (;;) {
    const few = orderOf(program, repeated);
    const escaping = [...repeated].filter((op) => !isReadInGroup(operations, op, few));
    if (escaping.length === 0) return { many, few };
    for (const op of escaping) repeated.delete(op);
  }
}

/** Whether the operation reads nothing that it writes, and writes nothing that the host reads. */
function canRepeat(program: Program, op: Operation): boolean {
  if (op.kind !== 'gather_samples' && op.kind !== 'rms_norm') return false;
  const readByHost = [hiddenOf(program)?.name, samplingOf(program)?.logits];
  return !readByHost.includes(op.out) && !inputsOf(op).includes(op.out);
}

/** Returns the operations that read what operation `first` writes to its only output. */
function readersOf(operations: readonly Operation[], first: number): number[] {
  const [name] = outputsOf(operations[first]!);
  const readers: number[] = [];
  for (let op = first + 1; name !== undefined && op < operations.length; op++) {
    if (inputsOf(operations[op]!).includes(name)) readers.push(op);
    if (outputsOf(operations[op]!).includes(name)) break;
  }
  return readers;
}

function isReadInGroup(operations: readonly Operation[], first: number, { endsGroup }: StepOrder): boolean {
  const readers = readersOf(operations, first);
  const [name] = outputsOf(operations[first]!);
  return (
    readers.length > 0 &&
    readers.every((op) => !endsGroup.slice(first, op).includes(true) && !outputsOf(operations[op]!).includes(name!))
  );
}

/** Returns the order in which the operations `repeated` are repeated. */
function orderOf(program: Program, repeated: ReadonlySet<number>): StepOrder {
  const { operations } = program;
  const own = operations.map((): string[] => []);
  for (const op of repeated)
    for (const user of [op, ...readersOf(operations, op)]) own[user]!.push(outputsOf(operations[op]!)[0]!);
  const indexOf = new Map(operations.map((op, i) => [op, i]));
  const isShared = (op: Operation, name: string): boolean => !own[indexOf.get(op)!]!.includes(name);
  const joined = operations.map((): Joined => ({ ...alone }));
  const endsGroup = operations.map((_, i) => i === operations.length - 1);
  let since: Operation[] = [];
  let op = 0;
  while (op < operations.length) {
    joined[op] = joinedWith(program, op, repeated);
    const end = op + 1 + joined[op]!.count;
    const work = operations.slice(op, end);
    const isMixed = takesOwn(since, work, isShared) || takesOwn(work, since, isShared);
    if (isMixed || conflicts(accessesOf(since, isShared), accessesOf(work, isShared))) {
      endsGroup[op - 1] = true;
      since = [];
    }
    since.push(...work);
    op = end;
  }
  return { joined, isRepeated: operations.map((_, op) => repeated.has(op)), own, endsGroup };
}

/**
 * Whether some of `others` use, as all threads' buffer, one that some of `owners` use as each thread's own: thread 0 has the program's buffer for
 * its own.
 */
function takesOwn(
  owners: readonly Operation[],
  others: readonly Operation[],
  isShared: (op: Operation, name: string) => boolean,
): boolean {
  const namesIn = (op: Operation): string[] => [...inputsOf(op), ...outputsOf(op)];
  const own = new Set(owners.flatMap((op) => namesIn(op).filter((name) => !isShared(op, name))));
  return others.some((op) => namesIn(op).some((name) => own.has(name) && isShared(op, name)));
}

const alone: Joined = { kind: 'rows', count: 0, unit: PANEL_UNIT, apart: 0 };

/** Returns the operations after `first` that run in its tasks. */
function joinedWith(program: Program, first: number, repeated: ReadonlySet<number>): Joined {
  const { operations } = program;
  const isRows = (op: number): boolean => op < operations.length && splitsRows(operations[op]!) && !repeated.has(op);
  if (!isRows(first)) return columnsAfter(program, first);
  let end = first + 1;
  while (isRows(end)) end++;
  return { ...alone, count: end - first - 1 };
}

function columnsAfter(program: Program, first: number): Joined {
  const product = program.operations[first]!;
  const read = new Set(inputsOf(product));
  let [count, unit, apart] = [0, PANEL_UNIT, 0];
  for (const op of program.operations.slice(first + 1)) {
    const columns = followsProduct(program, op, product);
    if (!columns || (count > 0 && columns.apart !== apart * LANES)) break;
    // Other tasks of the product read its input until the last is done.
    if (outputsOf(op).some((name) => read.has(name))) break;
    [count, unit, apart] = [count + 1, commonMultiple(unit, columns.unit / LANES), columns.apart / LANES];
  }
  return { kind: 'columns', count, unit, apart };
}

function commonMultiple(a: number, b: number): number {
  let multiple = a;
  while (multiple % b !== 0) multiple += a;
  return multiple;
}

/**
 * Orders of an engine's queue. One sort answers three questions: which waiting sequence is admitted next and which prompt gets the
 * rows of a step first (the first one), and whose device blocks are taken when others lack some (the last one). An order changes when
 * rows are computed, never their values (E2).
 *
 *   priority, less one level for each AGED_MS since the sequence came
 *     └─ sequences older than AGED_MS, first come first
 *          └─ rank of the order:
 *               first_come       none: the order of the list
 *               shortest_first   rows left, with the tokens that the answer is expected to have (SJF; by what is left: SRTF)
 *               slices           turns of SLICE_ROWS rows each (slice-level scheduling, SCLS)
 *               feedback         levels that grow with the rows computed (multi-level feedback with skip-join, FastServe)
 *               shared_prefix    size of the group that lacks the same next block (BatchLLM)
 *
 * Sequences of equal rank keep the order of the list, which is that of arrival. No order starves a sequence: every AGED_MS its priority
 * level drops by one, and only finitely many sequences are older.
 */

/** Names of the orders, the default one first. */
export const queueOrderNames = ['first_come', 'shortest_first', 'slices', 'feedback', 'shared_prefix'] as const;
/** Name of an order. */
export type QueueOrderName = (typeof queueOrderNames)[number];

/** Facts about a sequence that orders read. */
export interface QueuedSequence {
  /** Priority of its request; a lower one comes first. */
  readonly priority: number;
  /** Arrival, in ms on the engine's clock. */
  readonly arrivedMs: number;
  /** Rows of its prompt in all. */
  readonly promptRows: number;
  /** Rows left to compute, plus the expected tokens still to be generated (0 where unknown). */
  readonly rowsLeft: number;
  /** Rows that were computed for it, those computed again after a preemption too. */
  readonly rowsRun: number;
}

/** How an order reads sequences. */
export interface SequenceReader<S> {
  readonly read: (sequence: S) => QueuedSequence;
  /** Returns the name of the first full block that a sequence lacks; undefined for none. Called once for each sequence. */
  readonly nextBlockOf: (sequence: S) => string | undefined;
}

/** An order of the sequences of one engine. */
export interface QueueOrder<S> {
  /**
   * Returns the sequences of a list, which is in order of arrival, sorted; the list is not changed. `held`: sequences that hold device
   * blocks, for an order that counts them.
   */
  sorted(list: readonly S[], nowMs: number, held?: readonly S[]): readonly S[];
}

/** Returns the order of that name. */
export function queueOrderOf<S extends object>(name: QueueOrderName, reader: SequenceReader<S>): QueueOrder<S> {
  return new RankedOrder(reader, ranksOf[name](reader));
}

/** A sequence older than this, in ms, goes before younger ones of its level; each further AGED_MS raises it by one level. */
const AGED_MS = 30_000;
/** Rows of a turn: about those of a step. */
const SLICE_ROWS = 512;
/** Rows of the first level of feedback, and the number of levels; each has twice as many as the one before it. */
const LEVEL_ROWS = 256;
const NUM_LEVELS = 12;

/** Ranks of the sequences of a list, lower first, compared number by number. */
type Ranks<S> = (list: readonly S[]) => readonly (readonly number[])[];

const ranksOf: Record<QueueOrderName, <S extends object>(reader: SequenceReader<S>) => Ranks<S> | undefined> = {
  first_come: () => undefined,
  shortest_first:
    ({ read }) =>
    (list) =>
      list.map((sequence) => [read(sequence).rowsLeft]),
  slices: sliceRanks,
  feedback: feedbackRanks,
  shared_prefix: prefixRanks,
};

/** Sorts by priority, age and the ranks of one order; undefined: as the list is. */
class RankedOrder<S extends object> implements QueueOrder<S> {
  readonly #reader: SequenceReader<S>;
  readonly #ranks: Ranks<S> | undefined;

  constructor(reader: SequenceReader<S>, ranks: Ranks<S> | undefined) {
    this.#reader = reader;
    this.#ranks = ranks;
  }

  sorted(list: readonly S[], nowMs: number): readonly S[] {
    if (list.length < 2) return list;
    const facts = list.map((sequence) => this.#reader.read(sequence));
    const priorities = [...new Set(facts.map(({ priority }) => priority))].sort((a, b) => a - b);
    if (!this.#ranks && priorities.length === 1) return list;
    const ranks = this.#ranks?.(list);
    const levels = new Map(priorities.map((priority, level) => [priority, level]));
    const keyed = list.map((sequence, i) => {
      const { priority, arrivedMs } = facts[i]!;
      const numAged = Math.max(0, Math.floor((nowMs - arrivedMs) / AGED_MS));
      const level = levels.get(priority)! - numAged;
      return { sequence, key: numAged > 0 ? [level, 0, arrivedMs] : [level, 1, ...(ranks?.[i] ?? [])] };
    });
    return keyed.sort((a, b) => compare(a.key, b.key)).map(({ sequence }) => sequence);
  }
}

/** Returns ranks by turns: a sequence whose turn is used up goes after all others. */
function sliceRanks<S extends object>({ read }: SequenceReader<S>): Ranks<S> {
  const turns = new WeakMap<S, { readonly turn: number; readonly end: number }>();
  let numTurns = 0;
  return (list) =>
    list.map((sequence) => {
      const { rowsRun } = read(sequence);
      let turn = turns.get(sequence);
      if (!turn || rowsRun >= turn.end) {
        turn = { turn: numTurns++, end: rowsRun + SLICE_ROWS };
        turns.set(sequence, turn);
      }
      return [turn.turn];
    });
}

/**
 * Returns ranks by levels: a sequence begins at the first level whose rows suffice for its prompt, passing those above it, and falls
 * by one when it has had a level's rows; within a level first come first.
 */
function feedbackRanks<S extends object>({ read }: SequenceReader<S>): Ranks<S> {
  const levels = new WeakMap<S, { readonly level: number; readonly entry: number; readonly end: number }>();
  let numEntries = 0;
  const lowest = NUM_LEVELS - 1;
  return (list) =>
    list.map((sequence) => {
      const { rowsRun, promptRows } = read(sequence);
      let entered = levels.get(sequence);
      if (!entered || rowsRun >= entered.end) {
        const first = Math.max(0, Math.ceil(Math.log2(promptRows / LEVEL_ROWS)));
        const level = Math.min(lowest, entered ? entered.level + 1 : first);
        // No sequence falls below the lowest level, so that its first one goes on to its end.
        const end = level === lowest ? Infinity : rowsRun + LEVEL_ROWS * 2 ** level;
        entered = { level, entry: numEntries++, end };
        levels.set(sequence, entered);
      }
      return [entered.level, entered.entry];
    });
}

/**
 * Returns ranks by groups, the largest first, of equal ones the one that came first. A sequence stays in the group that it had when it
 * came: once the shared block is computed, the others of its group hit it while it is cached.
 */
function prefixRanks<S extends object>({ nextBlockOf }: SequenceReader<S>): Ranks<S> {
  const groups = new WeakMap<S, string | symbol>();
  const groupOf = (sequence: S): string | symbol => {
    let group = groups.get(sequence);
    if (group === undefined) groups.set(sequence, (group = nextBlockOf(sequence) ?? Symbol('alone')));
    return group;
  };
  return (list) => {
    const sizes = new Map<string | symbol, { readonly first: number; size: number }>();
    list.forEach((sequence, first) => {
      const group = groupOf(sequence);
      const known = sizes.get(group);
      if (known) known.size++;
      else sizes.set(group, { first, size: 1 });
    });
    return list.map((sequence) => {
      const { size, first } = sizes.get(groupOf(sequence))!;
      return [-size, first];
    });
  };
}

function compare(a: readonly number[], b: readonly number[]): number {
  for (let i = 0; i < Math.min(a.length, b.length); i++) {
    const difference = a[i]! - b[i]!;
    if (difference !== 0) return difference;
  }
  return 0;
}

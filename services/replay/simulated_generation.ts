/**
 * Sequences of a simulated instance that generate. Each has a row in every step, so that a step gives all of them a token at the same time:
 * their tokens are counted by steps, and a sequence is visited only when it joins, fills a block or ends.
 *
 *   join ──► steps: number, gaps between their ends ──► fills a block, at a known step ──► ends, at a known step
 */
import type { SimulatedSequence } from './simulated_sequence.ts';

/** Gaps of the steps that are kept at first; twice as many when they are too few. */
const FIRST_GAPS = 1_024;

/** Sequences that generate on one instance, in the order in which they joined, but for those moved to the places of others that ended. */
export class SimulatedGeneration {
  readonly #list: SimulatedSequence[] = [];
  readonly #blockTokens: number;
  readonly #ends = new StepCalendar();
  readonly #filled = new StepCalendar();
  /** Steps that have ended, whether anything generated in them or not. */
  numSteps = 0;
  /** Tokens of KV that the rows of the next step read. */
  contextTokens = 0;
  /** Sequences of each tenant that has some, and the tokens of KV that their rows read. */
  readonly #tenants = new Map<string, { sequences: number; contextTokens: number }>();
  #lastMs = 0;
  /** Milliseconds from the end of the step before to that of each step after `#firstStep`; bounded by the longest answer under way (P1). */
  #gaps = new Float32Array(FIRST_GAPS);
  #firstStep = 0;

  /** `blockTokens`: tokens of a device block. */
  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
  }

  get list(): readonly SimulatedSequence[] {
    return this.#list;
  }

  /** Sequences of each tenant that has some, and the tokens of KV that their rows of the next step read. */
  get tenants(): ReadonlyMap<string, { readonly sequences: number; readonly contextTokens: number }> {
    return this.#tenants;
  }

  /** Adds a sequence that got a token at the end of the last step, and has not ended. */
  join(sequence: SimulatedSequence): void {
    if (this.#list.length === 0) this.#firstStep = this.numSteps;
    this.#list.push(sequence);
    sequence.output.countBy(this);
    this.contextTokens += sequence.length;
    this.#countTenant(sequence, 1);
    this.#ends.add(this.#endOf(sequence), sequence);
    this.#filled.add(this.#filledAt(sequence), sequence);
  }

  /**
   * Records the end of a step: a token for each sequence. Takes the sequences out that have got their last one, and returns them, the last
   * one of the list first.
   */
  stepped(nowMs: number): readonly SimulatedSequence[] {
    this.numSteps++;
    if (this.#list.length > 0) this.#note(nowMs - this.#lastMs);
    this.#lastMs = nowMs;
    this.contextTokens += this.#list.length;
    for (const one of this.#tenants.values()) one.contextTokens += one.sequences;
    const ended = this.#inOrder(this.#ends.take(this.numSteps)).reverse();
    for (const sequence of ended) {
      const at = this.#list.indexOf(sequence);
      const last = this.#list.pop();
      if (last && last !== sequence) this.#list[at] = last;
      this.#left(sequence);
    }
    return ended;
  }

  /** Returns the sequences whose next token needs a further block, in the order of the list; to be called once between two steps. */
  takeFilled(): readonly SimulatedSequence[] {
    return this.#inOrder(this.#filled.take(this.numSteps));
  }

  /** Records that a sequence has a further block. */
  grew(sequence: SimulatedSequence): void {
    this.#filled.add(this.#filledAt(sequence), sequence);
  }

  /** Takes a sequence out that is preempted. */
  remove(sequence: SimulatedSequence): void {
    this.#ends.remove(this.#endOf(sequence), sequence);
    this.#filled.remove(this.#filledAt(sequence), sequence);
    this.#list.splice(this.#list.indexOf(sequence), 1);
    this.#left(sequence);
  }

  #left(sequence: SimulatedSequence): void {
    this.contextTokens -= sequence.length;
    this.#countTenant(sequence, -1);
    sequence.output.countAlone();
    const gaps = this.#gaps.subarray(sequence.output.joinedAt - this.#firstStep, this.numSteps - this.#firstStep);
    sequence.options.onTokens(sequence, gaps, this.#lastMs);
  }

  /** Adds a sequence to those of its tenant (1), or takes it from them (-1). */
  #countTenant({ options, length }: SimulatedSequence, change: 1 | -1): void {
    const { tenant } = options.sharer;
    const one = this.#tenants.get(tenant) ?? { sequences: 0, contextTokens: 0 };
    one.sequences += change;
    one.contextTokens += change * length;
    if (one.sequences > 0) this.#tenants.set(tenant, one);
    else this.#tenants.delete(tenant);
  }

  /** Returns the step that ends with the last token of a sequence. */
  #endOf({ options, generated }: SimulatedSequence): number {
    return this.numSteps + options.outputTokens - generated;
  }

  /** Returns the step after which a sequence needs a further block. */
  #filledAt({ blocks, length }: SimulatedSequence): number {
    return this.numSteps + Math.max(0, blocks.length * this.#blockTokens - length + 1);
  }

  #inOrder(sequences: SimulatedSequence[]): SimulatedSequence[] {
    if (sequences.length < 2) return sequences;
    return sequences
      .map((sequence) => ({ sequence, at: this.#list.indexOf(sequence) }))
      .sort((a, b) => a.at - b.at)
      .map(({ sequence }) => sequence);
  }

  #note(gapMs: number): void {
    const at = this.numSteps - 1 - this.#firstStep;
    if (at >= this.#gaps.length) {
      this.#makeRoom();
      this.#note(gapMs);
    } else this.#gaps[at] = gapMs;
  }

  /** Drops the gaps before all sequences of the list, or doubles the room where these are few. */
  #makeRoom(): void {
    const first = this.#list.reduce((least, { output }) => Math.min(least, output.joinedAt), this.numSteps);
    const kept = this.#gaps.subarray(first - this.#firstStep);
    const gaps = 2 * kept.length > this.#gaps.length ? new Float32Array(2 * this.#gaps.length) : this.#gaps;
    gaps.set(kept);
    this.#gaps = gaps;
    this.#firstStep = first;
  }
}

/** Sequences by the step at which something happens to them. */
class StepCalendar {
  readonly #byStep = new Map<number, SimulatedSequence[]>();

  add(step: number, sequence: SimulatedSequence): void {
    const others = this.#byStep.get(step);
    if (others) others.push(sequence);
    else this.#byStep.set(step, [sequence]);
  }

  /** Takes the sequences of a step out. */
  take(step: number): SimulatedSequence[] {
    const sequences = this.#byStep.get(step);
    if (!sequences) return [];
    this.#byStep.delete(step);
    return sequences;
  }

  /** Takes a sequence out, if it is still there. */
  remove(step: number, sequence: SimulatedSequence): void {
    const others = this.#byStep.get(step)?.filter((one) => one !== sequence) ?? [];
    if (others.length > 0) this.#byStep.set(step, others);
    else this.#byStep.delete(step);
  }
}

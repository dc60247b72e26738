/**
 * Recent token sequences, prompts with their answers, to find the one that a prompt continues although the client has rewritten text
 * in it: a line of the first message that changes with each request, reasoning that a template drops, a call's arguments with other
 * white space. Text after the first change gets no cache hits any more, although most of it is the same.
 *
 *   earlier   prompt ─────────────────────────┬─ answer ──┐
 *             same      ✗   reappears    ✗    reappears   │
 *   later     ──────────┬───────────────────────────────────────── new text
 *                       └ start: the first change
 *
 * A prompt is compared with sequences under its own chain root only, that is of its model and salt. Bounded (P1): MAX_TOKENS and
 * MAX_SEQUENCES in all; the oldest are dropped first, and a sequence that another one continues is replaced.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import type { Digest } from '../../../shared/kv/block_key.ts';
import { sparseHashes } from './fingerprints.ts';
import { commonPrefix, sharedRuns, type SharedRun } from './shared_runs.ts';

const MAX_TOKENS = 4 << 20;
const MAX_SEQUENCES = 8_192;
/** Shortest sequences that are remembered, and fewest tokens without a hit for which a prompt is compared: two blocks. */
const MIN_TOKENS = 64;
/** Fewest reappearing tokens that are reported: a block. */
const MIN_REAPPEARING = 32;
/** Sequences that a prompt is compared with, those that share most fingerprints with it. */
const MAX_COMPARED = 4;
/** Last tokens of an answer that its next turn may lack: an end token, a stop string, the white space that a template trims. */
const MAX_TRIMMED = 32;
/** Least tokens of answers by which a prompt is known to be of the same chat. */
const MIN_ANSWER = 8;
/** Answers that are known of a chat, the last ones (P1). */
const MAX_ANSWERS = 64;

/** A prompt and the tokens generated for it. */
export interface Sequence {
  /** Where its block chain starts: names model and salt. */
  readonly root: Digest;
  readonly tokens: Uint32Array;
  readonly promptLength: number;
  /** Keys of its first blocks, two words each, to ask who still has them. */
  readonly keys: Int32Array;
}

/** Where a prompt departs from the sequence that it continues. */
export interface RewrittenPrefix {
  /** Index of the first token that differs. */
  readonly start: number;
  /** Tokens of the prompt that stand in the earlier sequence: those before `start`, and those after it in order. */
  readonly sharedTokens: number;
  readonly earlier: Sequence;
  /** Those after `start`. */
  readonly runs: readonly SharedRun[];
}

/** Tokens [start, end) of a sequence. */
interface TokenRange {
  readonly start: number;
  readonly end: number;
}

interface Remembered extends Sequence {
  readonly hashes: Int32Array;
  /** Tokens that were generated for the chat, this turn's and those of earlier turns, in order; at most MAX_ANSWERS. */
  readonly answers: readonly TokenRange[];
}

/** A prompt to be compared. */
export interface ComparedPrompt {
  readonly root: Digest;
  readonly tokens: Uint32Array;
  /** Tokens from the first on that are cache hits. A sequence that differs within them is not the one that the prompt continues. */
  readonly heldTokens: number;
}

/** The recent sequences of one model, found again by fingerprints. */
export class RecentSequences {
  readonly #sequences = new Set<Remembered>();
  /** Per chain root: the newest sequence that has a fingerprint. */
  readonly #byHash = new Map<Digest, Map<number, Remembered>>();
  readonly #maxTokens: number;
  #numTokens = 0;

  constructor(maxTokens = MAX_TOKENS) {
    this.#maxTokens = maxTokens;
  }

  get numTokens(): number {
    return this.#numTokens;
  }

  get size(): number {
    return this.#sequences.size;
  }

  /** Returns where the prompt departs from the sequence that it continues; undefined when it continues none, or one as it was. */
  async find({ root, tokens, heldTokens }: ComparedPrompt, clock: Clock): Promise<RewrittenPrefix | undefined> {
    if (tokens.length - heldTokens < MIN_TOKENS || !this.#byHash.has(root)) return undefined;
    const hashes = await sparseHashes(tokens, heldTokens, clock);
    let best: RewrittenPrefix | undefined;
    for (const earlier of this.#sharing(root, hashes)) {
      // A comparison of 60k tokens takes up to a millisecond.
      await clock.turn();
      const start = commonPrefix(earlier.tokens, tokens);
      if (start < heldTokens) continue;
      const runs = reappearing(earlier, tokens, start);
      const sharedTokens = start + totalOf(runs);
      if (best && (sharedTokens < best.sharedTokens || (sharedTokens === best.sharedTokens && start <= best.start)))
        continue;
      best = { start, sharedTokens, earlier, runs };
    }
    return best && best.sharedTokens - best.start >= MIN_REAPPEARING ? best : undefined;
  }

  /**
   * Remembers a sequence in place of those that it continues; `rewritten` is what {@link find} returned for its prompt. The caller must
   * not change `tokens` afterwards.
   */
  async remember(sequence: Sequence, rewritten: RewrittenPrefix | undefined, clock: Clock): Promise<void> {
    const { root, tokens } = sequence;
    if (tokens.length < MIN_TOKENS || tokens.length > this.#maxTokens) return;
    const hashes = await sparseHashes(tokens, 0, clock);
    const isEarlier = (one: Remembered): boolean =>
      one === rewritten?.earlier ||
      commonPrefix(one.tokens, tokens) >= Math.max(one.promptLength, one.tokens.length - MAX_TRIMMED);
    const replaced = this.#sharing(root, hashes).filter(isEarlier);
    const answers = replaced.map((one) => answersIn(sequence, one, rewritten));
    const earlierAnswers = answers.reduce((most, own) => (own.length > most.length ? own : most), []);
    const answer = { start: sequence.promptLength, end: tokens.length };
    const added: Remembered = { ...sequence, hashes, answers: [...earlierAnswers, answer].slice(-MAX_ANSWERS) };
    this.#sequences.add(added);
    this.#numTokens += tokens.length;
    const byHash = this.#byHash.get(root) ?? new Map<number, Remembered>();
    this.#byHash.set(root, byHash);
    for (const hash of hashes) byHash.set(hash, added);
    for (const earlier of replaced) this.#drop(earlier);
    for (const oldest of this.#sequences) {
      if (this.#numTokens <= this.#maxTokens && this.#sequences.size <= MAX_SEQUENCES) break;
      this.#drop(oldest);
    }
  }

  /** Returns the sequences that have most of the fingerprints, the one with most of them first. */
  #sharing(root: Digest, hashes: Int32Array): Remembered[] {
    const byHash = this.#byHash.get(root);
    const numShared = new Map<Remembered, number>();
    for (const hash of hashes) {
      const sequence = byHash?.get(hash);
      if (sequence) numShared.set(sequence, (numShared.get(sequence) ?? 0) + 1);
    }
    const all = [...numShared].sort(([, one], [, other]) => other - one);
    return all.slice(0, MAX_COMPARED).map(([sequence]) => sequence);
  }

  #drop(sequence: Remembered): void {
    if (!this.#sequences.delete(sequence)) return;
    this.#numTokens -= sequence.tokens.length;
    const byHash = this.#byHash.get(sequence.root);
    for (const hash of sequence.hashes) if (byHash?.get(hash) === sequence) byHash.delete(hash);
    if (byHash?.size === 0) this.#byHash.delete(sequence.root);
  }
}

/**
 * Returns the runs of an earlier sequence after `start` that stand in a later prompt; none when that is another chat. It is the same
 * one when some text that was generated reappears after `start`, and at least half of what the client wrote: another question under
 * the same system prompt or about the same document has no generated text of it, a summary lacks what was summarised.
 */
function reappearing({ tokens, answers }: Remembered, later: Uint32Array, start: number): readonly SharedRun[] {
  if (tokens.length - start < MIN_REAPPEARING || later.length - start < MIN_REAPPEARING) return [];
  const runs = sharedRuns(tokens, later, start);
  const numGenerated = overlap([{ earlierStart: start, length: tokens.length - start }], answers);
  const ofGenerated = overlap(runs, answers);
  const isSameChat = ofGenerated >= Math.min(MIN_ANSWER, Math.max(1, numGenerated - 2));
  const numWritten = tokens.length - start - numGenerated;
  return isSameChat && 2 * (totalOf(runs) - ofGenerated) >= numWritten ? runs : [];
}

/** Returns where the answers of an earlier sequence stand in the prompt of one that continues it. */
function answersIn(
  { tokens, promptLength }: Sequence,
  { tokens: earlier, answers }: Remembered,
  rewritten: RewrittenPrefix | undefined,
): TokenRange[] {
  const isRewritten = rewritten?.earlier.tokens === earlier;
  const length = isRewritten ? rewritten.start : Math.min(promptLength, commonPrefix(earlier, tokens));
  const runs = [{ earlierStart: 0, laterStart: 0, length }, ...(isRewritten ? rewritten.runs : [])];
  return answers.flatMap(({ start, end }) =>
    runs.flatMap((run) => {
      const from = Math.max(start, run.earlierStart);
      const to = Math.min(end, run.earlierStart + run.length);
      const moved = run.laterStart - run.earlierStart;
      return from < to ? [{ start: from + moved, end: to + moved }] : [];
    }),
  );
}

/** Returns how many tokens of the earlier sequence are in one of the runs, and in one of the ranges. */
function overlap(runs: readonly Omit<SharedRun, 'laterStart'>[], ranges: readonly TokenRange[]): number {
  let total = 0;
  for (const { earlierStart, length } of runs)
    for (const { start, end } of ranges)
      total += Math.max(0, Math.min(end, earlierStart + length) - Math.max(start, earlierStart));
  return total;
}

function totalOf(runs: readonly SharedRun[]): number {
  return runs.reduce((sum, { length }) => sum + length, 0);
}

/**
 * Masks of allowed tokens for outputs that follow a grammar, computed on threads of their own.
 *
 * A compiled grammar cannot move between threads, and while one is compiled its thread does nothing else. So a new grammar goes to a
 * thread without outputs, which is started if there may be one more, else to the thread with the fewest: only their tokens wait. The
 * outputs of a thread that is lost, because the library failed or took too much CPU time, are opened in others from their tokens.
 */
import type { Clock } from '../../base/clock.ts';
import { Failure } from '../../base/failure.ts';
import { abortable } from '../../base/signal.ts';
import type { Threads } from '../../base/threads.ts';
import { Grammars, type Grammar } from './grammars.ts';
import { GrammarThread, ThreadLost } from './grammar_thread.ts';
import { MaskThread } from './mask_thread.ts';
import { MAX_TRIES, OpenMask, threadsEnded, type Seat } from './open_mask.ts';
import { vocabSizeOf } from './token_table.ts';
import type { TokenMask } from './token_mask.ts';
import { LOAD_CPU_MS, type TokenGrammar, type VocabularySource } from './vocabulary.ts';

/** Settings of a {@link MaskService}. */
export interface MaskServiceOptions {
  readonly threads: Threads;
  readonly clock: Clock;
  readonly vocabulary: VocabularySource;
  /** Threads at most; each has a copy of the vocabulary. They are started when they are first needed. */
  readonly maxThreads?: number;
  /** Milliseconds of CPU time that the compile of one grammar may take: far over the router's limit, which refuses what is too much. */
  readonly compileCpuMs?: number;
  /** Milliseconds of CPU time that the mask of one step of one output may take. Slow grammars take 130; a thread that takes more hangs. */
  readonly stepCpuMs?: number;
  /** Outputs that may be open at once (P1). */
  readonly maxOpen?: number;
}

/** Opens grammars and computes which tokens may come next. */
export class MaskService {
  readonly #options: Required<MaskServiceOptions>;
  readonly #grammars = new Grammars();
  /** At most `maxThreads` (P1). */
  #threads: MaskThread[] = [];
  /** Outputs that are open or will be: at most `maxOpen` (P1). */
  readonly #masks = new Set<OpenMask>();
  /** Where further threads have the vocabulary from. */
  #vocabulary: Promise<VocabularySource> | undefined;
  readonly #numWords: number;
  #nextId = 0;
  #isClosed = false;

  constructor(options: MaskServiceOptions) {
    this.#options = { maxThreads: 2, compileCpuMs: 20_000, stepCpuMs: 10_000, maxOpen: 1_024, ...options };
    const { vocabulary } = options;
    const vocabSize = vocabulary.kind === 'table' ? vocabSizeOf(vocabulary.table) : vocabulary.vocabSize;
    this.#numWords = Math.ceil(vocabSize / 32);
  }

  /**
   * Opens the state of a grammar after the tokens of `output`. @throws Failure `invalid_request` when the grammar cannot be compiled,
   * takes too much CPU time to compile, does not allow `output`, or the model has no tokenizer; `overloaded` when too many outputs are open;
   * `unavailable` when its threads end whatever they do; `cancelled` when `signal` aborts.
   */
  async open({ ebnf, endTokens }: TokenGrammar, output: readonly number[], signal?: AbortSignal): Promise<TokenMask> {
    const { maxOpen } = this.#options;
    if (this.#isClosed || signal?.aborted) throw cancelled();
    if (this.#masks.size >= maxOpen)
      throw new Failure('overloaded', `${maxOpen} outputs follow grammars here: try again later`);
    const mask = new OpenMask(
      { seat: (one) => this.#seat(one), closed: (one) => this.#masks.delete(one) },
      this.#grammars.of(ebnf),
      endTokens,
      output,
    );
    this.#masks.add(mask);
    try {
      await abortable(mask.start(), signal, cancelled);
    } catch (error) {
      mask.close();
      throw error;
    }
    return mask;
  }

  /** Ends the threads. Open outputs fail with `cancelled`. */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const mask of this.#masks) mask.close();
    await Promise.all(this.#threads.map((thread) => thread.end()));
  }

  async #seat(mask: OpenMask): Promise<Seat> {
    const { grammar } = mask;
    for (let tries = 0; tries < MAX_TRIES; tries++) {
      if (this.#isClosed || mask.isClosed) throw cancelled();
      grammar.check(this.#options.clock.nowMs());
      const thread = this.#threadFor(grammar);
      try {
        const seat = await this.#open(thread, mask);
        if (thread.isLost) continue;
        thread.masks.add(mask);
        return seat;
      } catch (error) {
        if (!(error instanceof ThreadLost)) throw error;
      }
    }
    throw threadsEnded();
  }

  async #open(thread: MaskThread, mask: OpenMask): Promise<Seat> {
    const { grammar, endTokens, output } = mask;
    const id = this.#nextId++;
    // New memory each time: a lost thread may still write to the old one.
    const words = new Uint32Array(new SharedArrayBuffer(4 * this.#numWords));
    const state = await thread.open({ id, grammar, endTokens, output, words, isWanted: () => !mask.isClosed });
    if (state && 'refused' in state) {
      // The next try finds that it is refused.
      grammar.refuse(state.refused);
      throw thread.lose(state.refused);
    }
    if (state) return { thread, id, words, state };
    if (mask.isClosed) throw cancelled();
    throw new Failure('invalid_request', 'the grammar does not allow the output that there is so far');
  }

  #threadFor(grammar: Grammar): MaskThread {
    const knowing = this.#threads.filter((thread) => thread.knows(grammar));
    if (knowing.length > 0) return leastBusy(knowing);
    const idle = this.#threads.find(({ numMasks }) => numMasks === 0);
    if (idle) return idle;
    return this.#threads.length < this.#options.maxThreads ? this.#start() : leastBusy(this.#threads);
  }

  #start(): MaskThread {
    const { threads, clock, vocabulary, compileCpuMs, stepCpuMs } = this.#options;
    const calls = new GrammarThread(threads, clock, (lost) => {
      this.#onLost(thread, lost);
    });
    const source = this.#vocabulary ?? Promise.resolve(vocabulary);
    const read = source.then((from) => calls.call('load', from, LOAD_CPU_MS));
    this.#vocabulary ??= read.then(
      (table) => ({ kind: 'table', table }),
      (error: unknown) => {
        // A later output tries again.
        this.#vocabulary = undefined;
        throw error;
      },
    );
    this.#vocabulary.catch(() => undefined);
    read.catch(() => calls.lose('it cannot read the vocabulary'));
    const thread = new MaskThread(calls, read, { compileCpuMs, stepCpuMs });
    this.#threads.push(thread);
    return thread;
  }

  #onLost(thread: MaskThread, { grammar: id, how, message }: ThreadLost): void {
    this.#threads = this.#threads.filter((one) => one !== thread);
    const grammar = [...this.#masks].find((mask) => mask.grammar.id === id)?.grammar;
    const wasOpen = [...thread.masks].some((mask) => mask.grammar === grammar);
    // A machine without time for its threads says nothing about a grammar.
    if (how === 'spent' && !wasOpen) grammar?.refuseSpent(this.#options.compileCpuMs, this.#options.clock.nowMs());
    else if (how !== 'late') grammar?.died(message);
    for (const mask of thread.masks) mask.reopen();
    thread.masks.clear();
  }
}

function leastBusy(threads: readonly MaskThread[]): MaskThread {
  return threads.reduce((least, one) => (one.numMasks < least.numMasks ? one : least));
}

function cancelled(): Failure {
  return new Failure('cancelled', 'the output is not wanted any more');
}

/**
 * Tries grammars before they are sent to an instance, on a thread that may be lost: one at a time, each for a limited CPU time. After a
 * grammar that fails, the next one has a new thread.
 */
import type { Clock } from '../../base/clock.ts';
import { FairTurns, type Turn } from '../../base/fair_turns.ts';
import { Failure } from '../../base/failure.ts';
import { abortable } from '../../base/signal.ts';
import type { Threads } from '../../base/threads.ts';
import { Grammars, type Grammar } from './grammars.ts';
import { GrammarThread, ThreadLost } from './grammar_thread.ts';
import { LOAD_CPU_MS, type VocabularySource } from './vocabulary.ts';

/** Settings of a {@link TrialCompiler}. */
export interface TrialCompilerOptions {
  readonly threads: Threads;
  readonly clock: Clock;
  readonly vocabulary: VocabularySource;
  /** Milliseconds of CPU time that the compile of one grammar may take. */
  readonly compileCpuMs?: number;
  /** Grammars that may wait at once (P1). */
  readonly maxWaiting?: number;
}

/**
 * Milliseconds of CPU time of one compile. Schemas of real programs take 0.05 to 0.5 s with a vocabulary of 128,000; other programs on the
 * same cores make that up to twice as much.
 */
const COMPILE_CPU_MS = 4_000;
/** Milliseconds after which a client may try again when the machine was too busy. */
const RETRY_MS = 2_000;
/** Threads that one grammar is tried in: it is refused before, unless threads end for other reasons. */
const MAX_TRIES = 4;

interface TrialThread {
  readonly calls: GrammarThread;
  /** Resolves when it has its vocabulary. */
  readonly ready: Promise<void>;
}

/** Tries grammars with the vocabulary of one model. */
export class TrialCompiler {
  readonly #options: Required<TrialCompilerOptions>;
  readonly #grammars = new Grammars();
  /** Trials under way by grammar: at most `maxWaiting` wait (P1). */
  readonly #trials = new Map<Grammar, Promise<void>>();
  readonly #turns: FairTurns;
  #thread: TrialThread | undefined;
  /** Where further threads have the vocabulary from. */
  #vocabulary: VocabularySource;
  #isClosed = false;

  constructor(options: TrialCompilerOptions) {
    this.#options = { compileCpuMs: COMPILE_CPU_MS, maxWaiting: 64, ...options };
    this.#vocabulary = options.vocabulary;
    const { clock, maxWaiting } = this.#options;
    this.#turns = new FairTurns(clock, maxWaiting, () => {
      return new Failure('overloaded', `${maxWaiting} grammars wait for their trial: try again later`);
    });
  }

  /**
   * Resolves when the grammar compiles and the vocabulary can begin it. Grammars that were tried before are answered at once, others in turn. @throws
   * Failure `invalid_request` with the reason when it cannot be used, `overloaded` when too many wait or the machine has no time, `cancelled` when `signal` aborts.
   */
  async check(ebnf: string, signal?: AbortSignal, turn: Turn = { key: '' }): Promise<void> {
    if (this.#isClosed || signal?.aborted) throw cancelled();
    const grammar = this.#grammars.of(ebnf, turn.key);
    grammar.check(this.#options.clock.nowMs());
    if (grammar.isTried) return;
    const running = this.#trials.get(grammar);
    if (running) this.#turns.join(ebnf, turn);
    await abortable(running ?? this.#begin(grammar, { ...turn, name: ebnf }), signal, cancelled);
  }

  /** Ends the thread. Waiting grammars fail with `cancelled`. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#thread?.calls.close();
  }

  #begin(grammar: Grammar, turn: Turn): Promise<void> {
    const trial = this.#turns
      .run(turn, (begins) => this.#try(grammar, begins))
      .finally(() => {
        this.#trials.delete(grammar);
      });
    this.#trials.set(grammar, trial);
    return trial;
  }

  async #try(grammar: Grammar, begins: () => void): Promise<void> {
    const { clock, compileCpuMs } = this.#options;
    for (let tries = 0; tries < MAX_TRIES; tries++) {
      if (this.#isClosed) throw cancelled();
      grammar.check(clock.nowMs());
      const thread = (this.#thread ??= this.#start());
      try {
        await thread.ready;
        // A thread that another grammar used up is not replaced at the cost of this one.
        if (tries === 0) begins();
        const refusal = await thread.calls.call('check', grammar.ebnf, compileCpuMs);
        if (!refusal) {
          grammar.isTried = true;
          return;
        }
        grammar.refuse(refusal.refused);
        thread.calls.lose(refusal.refused);
      } catch (error) {
        if (!(error instanceof ThreadLost)) throw error;
        if (error.how === 'late')
          throw new Failure('overloaded', 'the machine has no time to compile the grammar: try again', {
            retryAfterMs: RETRY_MS,
          });
        // Without a grammar it was the vocabulary.
        if (error.grammar === 0) continue;
        if (error.how === 'spent') grammar.refuseSpent(compileCpuMs, clock.nowMs());
        else grammar.died(error.message);
      }
    }
    throw new Failure('internal', `the grammar could not be tried: ${MAX_TRIES} threads ended`);
  }

  #start(): TrialThread {
    const { threads, clock } = this.#options;
    const calls = new GrammarThread(threads, clock, () => {
      this.#thread = undefined;
    });
    const ready = calls.call('load', this.#vocabulary, LOAD_CPU_MS).then((table) => {
      this.#vocabulary = { kind: 'table', table };
    });
    ready.catch(() => calls.lose('it cannot read the vocabulary'));
    return { calls, ready };
  }
}

function cancelled(): Failure {
  return new Failure('cancelled', 'the grammar is not wanted any more');
}

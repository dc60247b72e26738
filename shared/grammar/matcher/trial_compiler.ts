/** Tries to compile grammars before they are sent to an instance, on a thread that may be lost. */
import type { Clock } from '../../base/clock.ts';
import type { Threads } from '../../base/threads.ts';
import type { VocabularySource } from './vocabulary.ts';

/** Settings of a {@link TrialCompiler}. */
export interface TrialCompilerOptions {
  readonly threads: Threads;
  readonly clock: Clock;
  readonly vocabulary: VocabularySource;
  /** Milliseconds that the compile of one grammar may take. */
  readonly compileMs?: number;
  /** Grammars that may wait at once (P1). */
  readonly maxWaiting?: number;
}

/** Tries grammars with the vocabulary of one model. */
export class TrialCompiler {
  constructor(options: TrialCompilerOptions) {
    void options;
  }

  /**
   * Resolves when the grammar compiles and the vocabulary can begin it. Grammars that were tried before are answered at once. @throws
   * Failure `invalid_request` with the reason when it cannot be used, `overloaded` when too many wait, `cancelled` when `signal` aborts.
   */
  check(ebnf: string, signal?: AbortSignal): Promise<void> {
    void ebnf;
    void signal;
    return Promise.reject(new Error('to come'));
  }

  /** Ends the thread. Waiting grammars fail with `cancelled`. */
  close(): Promise<void> {
    return Promise.resolve();
  }
}

/** Masks of allowed tokens for outputs that follow a grammar, computed on threads of their own. */
import type { Clock } from '../../base/clock.ts';
import type { Threads } from '../../base/threads.ts';
import type { TokenMask } from './token_mask.ts';
import type { TokenGrammar, VocabularySource } from './vocabulary.ts';

/** Settings of a {@link MaskService}. */
export interface MaskServiceOptions {
  readonly threads: Threads;
  readonly clock: Clock;
  readonly vocabulary: VocabularySource;
  /** Threads at most; each has a copy of the vocabulary. They are started when they are first needed. */
  readonly maxThreads?: number;
  /** Milliseconds that the compile of one grammar may take. */
  readonly compileMs?: number;
  /** Outputs that may be open at once (P1). */
  readonly maxOpen?: number;
}

/** Opens grammars and computes which tokens may come next. */
export class MaskService {
  constructor(options: MaskServiceOptions) {
    void options;
  }

  /**
   * Opens the state of a grammar after the tokens of `output`. @throws Failure `invalid_request` when the grammar cannot be compiled,
   * cannot be compiled in time, does not allow `output`, or the model has no tokenizer; `overloaded` when too many outputs are open;
   * `cancelled` when `signal` aborts.
   */
  open(grammar: TokenGrammar, output: readonly number[], signal?: AbortSignal): Promise<TokenMask> {
    void grammar;
    void output;
    void signal;
    return Promise.reject(new Error('to come'));
  }

  /** Ends the threads. Open states fail with `cancelled`. */
  close(): Promise<void> {
    return Promise.resolve();
  }
}

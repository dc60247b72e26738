/**
 * A grammar thread: one instance of the library with one vocabulary, grammars that were compiled in it, and states of outputs.
 *
 * The caller decides what is kept (P1): it drops grammars and closes states. When the library fails, the thread is
 * of no use any more: its methods throw Errors that are no Failures.
 */
import { asFailure, Failure } from '../../base/failure.ts';
import { checkGrammarText } from './grammar_text.ts';
import { readVocabulary, type VocabularySource } from './vocabulary.ts';
import type { TokenTable } from './token_table.ts';
import { dispose, LibraryError, XGrammar, type Compiled, type Matcher } from './xgrammar.ts';

/** Start parameters of a grammar thread. */
export interface MaskWorkerData {
  /** [1] i32: the id of the grammar that the library works on; 0 when it does not. Tells which one a thread died of. */
  readonly working: Int32Array;
}

/** An output to open, after the tokens that it has so far. */
export interface OpenRequest {
  /** Id of the output's state. */
  readonly id: number;
  /** Id of the grammar. */
  readonly grammar: number;
  /** Text of the grammar; undefined when this thread has compiled it before. */
  readonly ebnf: string | undefined;
  readonly endTokens: readonly number[];
  readonly output: readonly number[];
  /** [ceil(vocab / 32)] Shared memory for the mask. */
  readonly words: Uint32Array;
  /** Ids of grammars that are dropped first. */
  readonly drop: readonly number[];
}

/** Next tokens of several outputs, and outputs that are closed before. */
export interface AcceptRequest {
  readonly closed: readonly number[];
  readonly steps: readonly { readonly id: number; readonly token: number }[];
}

/** State of an output after its latest token, when the grammar allows it. */
export interface MaskState {
  /** Only end tokens may come next. */
  readonly isComplete: boolean;
  /** No token may come next, and the text is not complete. */
  readonly isStuck: boolean;
}

/** The library refuses a grammar, and the thread is of no use any more. */
export interface Refusal {
  readonly refused: string;
}

interface State {
  readonly grammar: number;
  readonly matcher: Matcher;
  readonly endTokens: readonly number[];
  readonly words: Uint32Array;
}

/** The methods of a grammar thread. */
export class MaskWorker {
  readonly #working: Int32Array;
  readonly #load: (table: TokenTable) => Promise<XGrammar>;
  readonly #grammars = new Map<number, Compiled>();
  readonly #states = new Map<number, State>();
  #library: XGrammar | undefined;

  constructor({ working }: MaskWorkerData, load: (table: TokenTable) => Promise<XGrammar>) {
    this.#working = working;
    this.#load = load;
  }

  /**
   * Reads the vocabulary and loads the library; comes first. Returns the vocabulary, for other threads. @throws Failure
   * `invalid_request` when the model has no tokenizer, `internal` when its files cannot be read
   */
  async load(source: VocabularySource): Promise<TokenTable> {
    const table = await readVocabulary(source).catch((error: unknown) => {
      throw asFailure(error);
    });
    this.#library = await this.#load(table);
    return table;
  }

  get #loaded(): XGrammar {
    if (this.#library) return this.#library;
    throw new Error('the vocabulary is not loaded');
  }

  /**
   * Opens the state of an output, and compiles its grammar when it is new. @returns undefined when the grammar does not allow the
   * output; then no state is open. @throws Failure `invalid_request` for a text that is too large
   */
  async open(request: OpenRequest): Promise<MaskState | Refusal | undefined> {
    const { id, grammar, ebnf, endTokens, output, words, drop } = request;
    for (const old of drop) this.#drop(old);
    return this.#work(grammar, async () => {
      const compiled = this.#grammars.get(grammar) ?? (await this.#compile(grammar, ebnf));
      if ('refused' in compiled) return compiled;
      const matcher = await this.#loaded.start(compiled);
      const ends = endTokens.filter((token) => token < this.#loaded.vocabSize);
      const state = { grammar, matcher, endTokens: ends, words };
      if (!output.every((token) => acceptIn(state, token))) {
        matcher.close();
        return undefined;
      }
      this.#states.set(id, state);
      return this.#fill(state);
    });
  }

  async #compile(grammar: number, ebnf: string | undefined): Promise<Compiled | Refusal> {
    if (ebnf === undefined) throw new Error(`there is no grammar ${grammar}`);
    const compiled = await this.#compiled(ebnf);
    if (!('refused' in compiled)) this.#grammars.set(grammar, compiled);
    return compiled;
  }

  async #compiled(ebnf: string): Promise<Compiled | Refusal> {
    checkGrammarText(ebnf);
    try {
      return await this.#loaded.compile(ebnf);
    } catch (error) {
      // Without a reason it is not the text that the library objects to.
      if (error instanceof LibraryError && error.reason !== undefined) return { refused: error.reason };
      throw error;
    }
  }

  /**
   * Appends tokens to outputs, in order. @returns the state of each, undefined where the grammar does not allow the token, or the
   * output is not open.
   */
  async accept({ closed, steps }: AcceptRequest): Promise<(MaskState | undefined)[]> {
    for (const id of closed) this.#close(id);
    const states: (MaskState | undefined)[] = [];
    for (const { id, token } of steps) {
      const state = this.#states.get(id);
      const next =
        state &&
        (await this.#work(state.grammar, async () => (acceptIn(state, token) ? this.#fill(state) : undefined)));
      states.push(next);
    }
    return states;
  }

  /** Compiles a grammar and drops it. @throws Failure `invalid_request` when no token of the vocabulary can begin a text. */
  async check(ebnf: string): Promise<Refusal | undefined> {
    return this.#work(1, async () => {
      const compiled = await this.#compiled(ebnf);
      if ('refused' in compiled) return compiled;
      const matcher = await this.#loaded.start(compiled);
      const words = new Uint32Array(Math.ceil(this.#loaded.vocabSize / 32));
      const mayEnd = await matcher.fill(words);
      matcher.close();
      dispose(compiled);
      if (mayEnd || words.some((word) => word !== 0)) return undefined;
      throw new Failure('invalid_request', "the grammar has no text that the model's tokens can begin");
    });
  }

  async #work<T>(grammar: number, work: () => Promise<T>): Promise<T> {
    Atomics.store(this.#working, 0, grammar);
    try {
      const result = await work();
      Atomics.store(this.#working, 0, 0);
      return result;
    } catch (error) {
      // The id stays where the library failed, so that the caller sees which grammar the thread died of.
      if (error instanceof Failure) Atomics.store(this.#working, 0, 0);
      throw error;
    }
  }

  async #fill({ matcher, endTokens, words }: State): Promise<MaskState> {
    const mayEnd = await matcher.fill(words);
    for (const token of endTokens) words[token >> 5] = (words[token >> 5] ?? 0) & ~(1 << (token & 31));
    const isEmpty = words.every((word) => word === 0);
    if (mayEnd) for (const token of endTokens) words[token >> 5] = (words[token >> 5] ?? 0) | (1 << (token & 31));
    return { isComplete: mayEnd && isEmpty, isStuck: isEmpty && !mayEnd && !matcher.isTerminated };
  }

  #drop(grammar: number): void {
    const compiled = this.#grammars.get(grammar);
    this.#grammars.delete(grammar);
    if (compiled) dispose(compiled);
  }

  #close(id: number): void {
    this.#states.get(id)?.matcher.close();
    this.#states.delete(id);
  }
}

function acceptIn({ matcher, endTokens }: State, token: number): boolean {
  return endTokens.includes(token) ? matcher.end() : matcher.accept(token);
}

/** Entry point of a grammar thread. */
export function start(data: MaskWorkerData): MaskWorker {
  return new MaskWorker(data, (table) => XGrammar.load(table));
}

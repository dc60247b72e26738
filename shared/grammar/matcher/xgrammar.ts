/**
 * The library `@mlc-ai/web-xgrammar` 0.1.27, contained.
 *
 * It is a UMD module in a package of ES modules, so the build copies it to a name that Node loads. It is WebAssembly without
 * exceptions: whatever it refuses aborts in the middle, leaks stack and leaves the instance unfit, and says why only on
 * `console.error`. An instance that failed once is therefore thrown away, with the vocabulary in it.
 */
import { createRequire } from 'node:module';
import type * as Library from '@mlc-ai/web-xgrammar';
import { messageOf } from '../../base/failure.ts';
import { bytesOfToken, vocabSizeOf, type TokenTable } from './token_table.ts';

const COPY = './xgrammar.cjs';
const require = createRequire(import.meta.url);

/** Lines of the library that are kept: an abort writes its reason in one or two. */
const MAX_LINES = 4;
/** Location in the library's source, which precedes its reasons. */
const LOCATION = /^\[FATAL\] \S+?:\d+: /;

/** The library failed, and its instance with it. `reason` is its own; undefined when it gave none. */
export class LibraryError extends Error {
  readonly reason: string | undefined;

  constructor(message: string, reason: string | undefined, options?: ErrorOptions) {
    super(message, options);
    this.name = 'LibraryError';
    this.reason = reason;
  }
}

/** A grammar that is ready for matchers. */
export interface Compiled {
  readonly handle: Library.CompiledGrammar;
}

/**
 * An instance of the library with the vocabulary of one model. Every method throws LibraryError when the library fails, and from then
 * on always.
 */
export class XGrammar {
  readonly vocabSize: number;
  readonly #library: typeof Library;
  readonly #compiler: Library.GrammarCompiler;
  readonly #lines: string[];
  #failure: LibraryError | undefined;

  private constructor(
    vocabSize: number,
    parts: { library: typeof Library; compiler: Library.GrammarCompiler; lines: string[] },
  ) {
    this.vocabSize = vocabSize;
    this.#library = parts.library;
    this.#compiler = parts.compiler;
    this.#lines = parts.lines;
  }

  /**
   * Loads a new instance. The token after the last of the vocabulary stands for the end of a text, so that grammars can have end tokens
   * of their own.
   */
  static async load(table: TokenTable): Promise<XGrammar> {
    const path = require.resolve(COPY);
    // Instances share nothing, and each copy of the module has one.
    Reflect.deleteProperty(require.cache, path);
    const library = require(path) as typeof Library;
    const vocabSize = vocabSizeOf(table);
    const vocabulary: (Uint8Array | string)[] = Array.from({ length: vocabSize + 1 }, (_, id) => {
      const bytes = id < vocabSize ? bytesOfToken(table, id) : [];
      return bytes.length === 0 ? '' : (bytes as Uint8Array);
    });
    const lines: string[] = [];
    // Bytes are taken as they are, although the library declares texts. Its cache would wait forever for a grammar that failed before.
    const info = await withConsole(lines, () =>
      library.TokenizerInfo.createTokenizerInfo(vocabulary as string[], 'raw', false, vocabSize + 1, [vocabSize]),
    );
    const compiler = await library.GrammarCompiler.createGrammarCompiler(info, false);
    return new XGrammar(vocabSize, { library, compiler, lines });
  }

  /** Compiles an EBNF text whose first rule is `root`. Takes from a millisecond to minutes, and cannot be stopped. */
  compile(ebnf: string): Promise<Compiled> {
    return this.#run(async () => {
      const grammar = await this.#library.Grammar.fromEBNF(ebnf);
      const handle = await this.#compiler.compileGrammar(grammar);
      grammar.dispose();
      return { handle };
    });
  }

  /** Opens the state at the start of a grammar. It keeps the grammar, also after its `dispose`. */
  start({ handle }: Compiled): Promise<Matcher> {
    return this.#run(async () => {
      const matcher = await this.#library.GrammarMatcher.createGrammarMatcher(handle);
      return new Matcher(this.vocabSize, matcher, {
        run: (work) => this.#run(work),
        runNow: (work) => this.#runNow(work),
      });
    });
  }

  async #run<T>(work: () => Promise<T>): Promise<T> {
    if (this.#failure) throw this.#failure;
    this.#lines.length = 0;
    try {
      return await work();
    } catch (cause) {
      throw this.#failed(cause);
    }
  }

  #runNow<T>(work: () => T): T {
    if (this.#failure) throw this.#failure;
    this.#lines.length = 0;
    try {
      return work();
    } catch (cause) {
      throw this.#failed(cause);
    }
  }

  #failed(cause: unknown): LibraryError {
    const fatal = this.#lines.find((line) => LOCATION.test(line));
    const message = `the grammar library failed: ${fatal ?? messageOf(cause)}`;
    this.#failure = new LibraryError(message, fatal?.replace(LOCATION, '').trim(), { cause });
    return this.#failure;
  }
}

/** Runs calls of the library, whose failures become LibraryErrors. */
interface Runner {
  readonly run: <T>(work: () => Promise<T>) => Promise<T>;
  readonly runNow: <T>(work: () => T) => T;
}

/** The state of one text within a grammar. */
export class Matcher {
  readonly #vocabSize: number;
  readonly #matcher: Library.GrammarMatcher;
  readonly #runner: Runner;
  #isTerminated = false;

  constructor(vocabSize: number, matcher: Library.GrammarMatcher, runner: Runner) {
    this.#vocabSize = vocabSize;
    this.#matcher = matcher;
    this.#runner = runner;
  }

  get isTerminated(): boolean {
    return this.#isTerminated;
  }

  /** Appends the bytes of a token. False: the grammar does not allow it, and nothing has changed. */
  accept(token: number): boolean {
    if (this.#isTerminated || token >= this.#vocabSize) return false;
    return this.#runner.runNow(() => this.#matcher.acceptToken(token));
  }

  /** Ends the text. False: it is not complete, or has ended before. */
  end(): boolean {
    if (this.#isTerminated) return false;
    this.#isTerminated = this.#runner.runNow(() => this.#matcher.acceptToken(this.#vocabSize));
    return this.#isTerminated;
  }

  /**
   * Writes which tokens may come next, one bit per token, least significant first; other bits are set to 0.
   * @param words [ceil(vocab / 32)]
   * @returns whether the text may end here
   */
  fill(words: Uint32Array): Promise<boolean> {
    return this.#runner.run(async () => {
      if (this.#isTerminated) {
        words.fill(0);
        return false;
      }
      const mask = await this.#matcher.getNextTokenBitmask();
      const mayEnd = isSet(mask, this.#vocabSize);
      words.set(mask.subarray(0, words.length));
      const numTail = this.#vocabSize % 32;
      const last = words.length - 1;
      if (numTail > 0) words[last] = (words[last] ?? 0) & ((1 << numTail) - 1);
      return mayEnd;
    });
  }

  /** Frees the state. */
  close(): void {
    this.#matcher.dispose();
  }
}

/** Frees a grammar that no matcher will be opened for any more. */
export function dispose({ handle }: Compiled): void {
  handle.dispose();
}

function isSet(mask: Int32Array, bit: number): boolean {
  return (((mask[bit >> 5] ?? 0) >>> (bit & 31)) & 1) === 1;
}

/**
 * Runs an instance's first call, during which the library takes the console's functions for good, and has it write to `lines` instead.
 * At most MAX_LINES are kept (P1).
 */
async function withConsole<T>(lines: string[], first: () => Promise<T>): Promise<T> {
  const { log, error } = console;
  const keep = (...words: unknown[]): void => {
    if (lines.length < MAX_LINES) lines.push(words.map(String).join(' '));
  };
  Object.assign(console, { log: keep, error: keep });
  try {
    return await first();
  } finally {
    Object.assign(console, { log, error });
  }
}

/** The library that makes masks, as these tests use it: the build's copy, which Node loads as CommonJS, with one token per byte. */
import { createRequire } from 'node:module';
import type * as Library from '@mlc-ai/web-xgrammar';
import { projectPath } from '../support/project.ts';

const END = 0;

/** Compiles and matches with tokens of `texts`, after one per byte. */
export class LibraryMatcher {
  readonly #library: typeof Library;
  readonly #compiler: Library.GrammarCompiler;
  readonly #compiled = new Map<string, Library.CompiledGrammar>();
  readonly tokens: readonly Uint8Array[];

  private constructor(library: typeof Library, compiler: Library.GrammarCompiler, tokens: readonly Uint8Array[]) {
    this.#library = library;
    this.#compiler = compiler;
    this.tokens = tokens;
  }

  static async load(texts: readonly string[] = []): Promise<LibraryMatcher> {
    const library = loadLibrary();
    const bytes = Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte));
    const tokens = [new Uint8Array(), ...bytes, ...texts.map((text) => new TextEncoder().encode(text))];
    // Bytes in place of texts are taken, although the type asks for texts.
    const vocabulary = tokens as unknown as string[];
    const info = await library.TokenizerInfo.createTokenizerInfo(vocabulary, 'raw', false, tokens.length, [END]);
    return new LibraryMatcher(library, await library.GrammarCompiler.createGrammarCompiler(info, false), tokens);
  }

  async #matcher(ebnf: string): Promise<Library.GrammarMatcher> {
    const compiled = this.#compiled.get(ebnf) ?? (await this.#compiler.compileGrammar(ebnf));
    this.#compiled.set(ebnf, compiled);
    return await this.#library.GrammarMatcher.createGrammarMatcher(compiled);
  }

  /** Whether the grammar matches the whole text. */
  async accepts(ebnf: string, text: string): Promise<boolean> {
    const matcher = await this.#matcher(ebnf);
    const isPrefix = text === '' || matcher._acceptString(text);
    const isWhole = isPrefix && allowedIn(await matcher.getNextTokenBitmask(), END);
    matcher.dispose();
    return isWhole;
  }

  /** Returns the ids of the tokens that may follow the text. */
  async allowedAfter(ebnf: string, text: string): Promise<readonly number[]> {
    const matcher = await this.#matcher(ebnf);
    if (text !== '' && !matcher._acceptString(text)) throw new Error(`not a prefix: ${JSON.stringify(text)}`);
    const mask = await matcher.getNextTokenBitmask();
    matcher.dispose();
    return [...this.tokens.keys()].filter((id) => allowedIn(mask, id));
  }

  /** Returns whether the grammar takes these texts one after the other. */
  async acceptsPrefix(ebnf: string, text: string): Promise<boolean> {
    const matcher = await this.#matcher(ebnf);
    const isPrefix = matcher._acceptString(text);
    matcher.dispose();
    return isPrefix;
  }
}

function allowedIn(mask: Int32Array, id: number): boolean {
  return (((mask[id >> 5] ?? 0) >>> (id & 31)) & 1) === 1;
}

function loadLibrary(): typeof Library {
  const require = createRequire(import.meta.url);
  const path = projectPath('dist/shared/grammar/matcher/xgrammar.cjs');
  // Each load of the module is an instance of its own.
  Reflect.deleteProperty(require.cache, path);
  return require(path) as typeof Library;
}

/**
 * The library, contained: masks against a naive check of every token, end tokens, and what remains after a failure. In the thread of
 * the test. Budget: 10 s.
 */
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import type * as Library from '@mlc-ai/web-xgrammar';
import { beforeAll, describe, expect, test } from 'vitest';
import { bytesOfToken, tokenTable, vocabSizeOf, type TokenTable } from '../../../shared/grammar/matcher/token_table.ts';
import { dispose, LibraryError, XGrammar } from '../../../shared/grammar/matcher/xgrammar.ts';
import { readTextFiles } from '../../../shared/model/text_files.ts';
import { sized } from '../../support/long.ts';
import { vocabularyFolder } from '../../support/downloads.ts';
import { projectPath } from '../../support/project.ts';
import { allowedIn, byteTable, END, tokensOf, VOCAB_SIZE } from './byte_table.ts';

const JSON_TEXT = `
root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" (pair ("," pair)*)? "}"
pair ::= string ":" value
array ::= "[" (value ("," value)*)? "]"
string ::= "\\"" character* "\\""
character ::= [^"\\\\\\x00-\\x1f] | "\\\\" (["\\\\/bfnrt] | "u" [0-9a-fA-F]{4})
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?
`;

const grammars: readonly (readonly [string, string, readonly string[]])[] = [
  ['JSON', JSON_TEXT, ['', '{"', '{"name":', '{"name":"ab', '{"name":"\\u00', '[1', '[1.5,tr', 'null']],
  ['bytes of characters', 'root ::= ("é" | [\\xe6-\\xe7] [\\x97-\\x98] [\\xa5-\\xa6])+ "!"?', ['', 'é', '日']],
  ['repetition', 'root ::= ("ab" | "abc" | "x"){2,5} "\\n"', ['', 'ab', 'abab', 'abcx', 'xxxxx']],
  ['left recursion', 'root ::= root "b" "c" | "a"', ['', 'a', 'abc', 'abcb']],
];

/** Asks the library for each token alone whether its bytes may come next, in a matcher of its own. */
class NaiveMask {
  readonly #table: TokenTable;
  readonly #matcher: Library.GrammarMatcher;

  private constructor(table: TokenTable, matcher: Library.GrammarMatcher) {
    this.#table = table;
    this.#matcher = matcher;
  }

  static async open(table: TokenTable, ebnf: string): Promise<NaiveMask> {
    const require = createRequire(import.meta.url);
    const library = require(projectPath('dist/shared/grammar/matcher/xgrammar.cjs')) as typeof Library;
    const bytes = Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte) as unknown as string);
    const info = await library.TokenizerInfo.createTokenizerInfo(bytes, 'raw', false, 256, []);
    const compiler = await library.GrammarCompiler.createGrammarCompiler(info, false);
    return new NaiveMask(table, await library.GrammarMatcher.createGrammarMatcher(await compiler.compileGrammar(ebnf)));
  }

  accept(token: number): void {
    assert(this.#matcher._acceptString(bytesOfToken(this.#table, token) as unknown as string));
  }

  allows(token: number): boolean {
    const bytes = bytesOfToken(this.#table, token);
    if (bytes.length === 0) return false;
    const isAllowed = this.#matcher._acceptString(bytes as unknown as string);
    if (isAllowed) this.#matcher.rollBack(1);
    return isAllowed;
  }
}

/** Walks the bytes of a text and compares masks before each and at the end. */
async function compare(
  library: XGrammar,
  table: TokenTable,
  ebnf: string,
  text: string,
  every: number,
): Promise<number> {
  const compiled = await library.compile(ebnf);
  const [matcher, naive] = [await library.start(compiled), await NaiveMask.open(table, ebnf)];
  dispose(compiled);
  const idOfByte = new Map(
    Array.from({ length: vocabSizeOf(table) }, (_, id) => [bytesOfToken(table, id), id] as const).flatMap(
      ([bytes, id]) => (bytes.length === 1 ? [[bytes[0], id] as const] : []),
    ),
  );
  const words = new Uint32Array(Math.ceil(vocabSizeOf(table) / 32));
  let numAllowed = 0;
  const tokens = tokensOf(text).map((byte) => idOfByte.get(byte) ?? -1);
  for (const token of tokens) {
    assert(matcher.accept(token), `${JSON.stringify(text)} follows the grammar`);
    naive.accept(token);
  }
  await matcher.fill(words);
  const allowed = new Set(allowedIn(words));
  for (let id = text.length % every; id < vocabSizeOf(table); id += every) {
    assert.equal(allowed.has(id), naive.allows(id), `token ${id} after ${JSON.stringify(text)}`);
    if (allowed.has(id)) numAllowed++;
  }
  assert(
    [...allowed].every((id) => id < vocabSizeOf(table)),
    'no bit is beyond the vocabulary',
  );
  matcher.close();
  return numAllowed;
}

describe.each(grammars)('%s', (_name, ebnf, texts) => {
  test('the mask has the tokens that the grammar takes one by one, and no other bit', async () => {
    const library = await XGrammar.load(byteTable);
    let numAllowed = 0;
    for (const text of texts) numAllowed += await compare(library, byteTable, ebnf, text, 1);
    expect(numAllowed).toBeGreaterThan(texts.length);
  });
});

test('the same with a vocabulary of 150,000', async () => {
  const table = tokenTable(readTextFiles(vocabularyFolder('qwen3')), 151_936);
  const library = await XGrammar.load(table);
  for (const text of ['', '{"name":"ab', '[1', '{"a":"'])
    expect(await compare(library, table, JSON_TEXT, text, sized(1, 11))).toBeGreaterThan(0);
});

describe('a text', () => {
  let library: XGrammar;
  beforeAll(async () => {
    library = await XGrammar.load(byteTable);
  });

  test('ends when it is complete, once, and not before', async () => {
    const matcher = await library.start(await library.compile('root ::= "a" "b"?'));
    const words = new Uint32Array(Math.ceil(VOCAB_SIZE / 32));
    assert.equal(await matcher.fill(words), false);
    assert.equal(matcher.end(), false);
    assert(matcher.accept(97));
    assert.equal(await matcher.fill(words), true);
    assert.deepEqual(allowedIn(words), [98]);
    assert(matcher.accept(98));
    assert.equal(await matcher.fill(words), true);
    assert.deepEqual(allowedIn(words), []);
    assert.equal(matcher.isTerminated, false);
    assert(matcher.end());
    assert(matcher.isTerminated);
    assert.equal(matcher.end(), false);
    assert.equal(matcher.accept(98), false);
    assert.equal(await matcher.fill(words), false);
    assert(words.every((word) => word === 0));
  });

  test('takes no special token and no id that there is not', async () => {
    const matcher = await library.start(await library.compile('root ::= [^]*'));
    for (const token of [END, VOCAB_SIZE - 1, VOCAB_SIZE, VOCAB_SIZE + 1]) assert.equal(matcher.accept(token), false);
    assert.equal(matcher.isTerminated, false);
    assert(matcher.accept(97));
  });
});

test.each([
  ['a rule that is not there', 'root ::= other', /Rule "other" is not defined/],
  ['no root', 'start ::= "a"', /\broot\b/],
  ['a parenthesis that is open', 'root ::= ("a"', /line 1/],
  ['an escape that there is not', 'root ::= "\\q"', /escape/],
])('%s is refused with the reason, and its instance with it', async (_name, ebnf, reason) => {
  const [first, second] = [await XGrammar.load(byteTable), await XGrammar.load(byteTable)];
  const isReasonable = (error: unknown): boolean => error instanceof LibraryError && reason.test(error.reason ?? '');
  await assert.rejects(first.compile(ebnf), isReasonable);
  await assert.rejects(first.compile('root ::= "a"'), isReasonable);
  // Another instance, loaded before, is untouched.
  const matcher = await second.start(await second.compile('root ::= "a"'));
  assert(matcher.accept(97));
});

test('the console is the test’s own again', async () => {
  const { log, error } = console;
  await XGrammar.load(byteTable);
  assert.equal(console.log, log);
  assert.equal(console.error, error);
});

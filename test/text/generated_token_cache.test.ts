/** Tokens that a model generated are taken up by a chat's next turn, at any router, and text is never another for it. Budget: 10 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { generatedTokens, type Answer } from '../../shared/text/encoder/generated_token_cache.ts';
import { scopeNumber } from '../../shared/kv/format.ts';
import { TokenizerTools } from '../../shared/text/tokenizer_tools.ts';
import { readTextFiles } from '../../shared/model/text_files.ts';
import { decodeAnswer, encodeAnswer } from '../../services/router/remembered_answers.ts';
import { goldenFolder } from '../support/golden.ts';

const files = readTextFiles(goldenFolder('tokenizers/llama3'));
const open = (): TokenizerTools => new TokenizerTools(files);
const encode = (tools: TokenizerTools, text: string, answerScope: bigint | undefined = 0n): number[] => [
  ...tools.encode({ text, addSpecialTokens: false, maxCharacters: 1e6, answerScope }),
];
const chat = (...turns: string[]): string =>
  `<|begin_of_text|>${turns.map((text, i) => `<|start_header_id|>${i % 2 ? 'assistant' : 'user'}<|end_header_id|>\n\n${text}`).join('<|eot_id|>')}`;

const tools = open();
const EOT = encode(tools, '<|eot_id|>');
const prompt = Uint32Array.from(encode(tools, chat('What is the harbour?', '')));
/** The answer letter by letter, as no tokenizer has it. */
const words = 'the harbour is the place where the ships are';
const generated = [...Array.from(words).flatMap((letter) => encode(tools, letter)), ...EOT];

function remembered(at: TokenizerTools, tokens: readonly number[] = generated, scope = 0n): Answer | undefined {
  const found = generatedTokens(prompt, tokens, new Set(at.delimiters()), scope);
  return found && at.remember(found);
}

test('the next turn begins with the very tokens of the one before', () => {
  const own = open();
  const next = chat('What is the harbour?', words, 'And the light?', '');
  const before = encode(own, next);
  assert(remembered(own));
  const after = encode(own, next);
  expect(after.slice(0, prompt.length + generated.length)).toEqual([...prompt, ...generated]);
  expect(after).not.toEqual(before);
  expect(own.detokenize(Uint32Array.from(after))).toBe(own.detokenize(Uint32Array.from(before)));
  // The rest is as it was.
  expect(after.slice(prompt.length + generated.length)).toEqual(
    before.slice(before.lastIndexOf(EOT[0]!, -8) + 1).slice(-(after.length - prompt.length - generated.length)),
  );
});

test('another prompt, another answer, or more of it: the tokenizer’s own', () => {
  const own = open();
  remembered(own);
  const plain = open();
  for (const text of [
    chat('What is the harbour!', words, 'And?', ''),
    chat('What is the harbour?', `${words}.`, 'And?', ''),
    chat('What is the harbour?', words.slice(1), 'And?', ''),
    chat(words),
    words,
  ])
    expect(encode(own, text)).toEqual(encode(plain, text));
});

test('it is of its own scope: neither another tenant, nor who shares, nor a prompt of none gets the tokens', () => {
  const [own, plain] = [open(), open()];
  const scopes = [scopeNumber({ tenant: 'one', salt: '' }), scopeNumber({ tenant: 'two', salt: '' }), 0n, undefined];
  const [first] = scopes;
  assert(first !== undefined && remembered(own, generated, first)?.scope === first);
  const next = chat('What is the harbour?', words, 'And the light?', '');
  const begins = scopes.map((scope) => encode(own, next, scope).slice(0, prompt.length + generated.length));
  expect(begins[0]).toEqual([...prompt, ...generated]);
  for (const other of begins.slice(1)) expect(other).toEqual(encode(plain, next).slice(0, other.length));
});

test('another router learns it over the bus', () => {
  const answer = remembered(open(), generated, 0n);
  assert(answer);
  const message = encodeAnswer({ model: 'm', ...answer });
  assert(message);
  const other = open();
  const { model, ...heard } = decodeAnswer(message);
  expect(model).toBe('m');
  other.learn(heard);
  const next = chat('What is the harbour?', words, 'And the light?', '');
  expect(encode(other, next).slice(0, prompt.length + generated.length)).toEqual([...prompt, ...generated]);
  for (let end = 0; end < message.length; end += 7) {
    // Whatever is cut off, it is refused or shorter text.
    try {
      expect(decodeAnswer(message.subarray(0, end)).text.length).toBeLessThan(answer.text.length);
    } catch (error) {
      assert.match(String(error), /are no answer/);
    }
  }
  expect(encodeAnswer({ model: 'm', ...answer, text: 'x'.repeat(1 << 20) })).toBeUndefined();
});

test('what the tokenizer has by itself is not remembered, nor half a character', () => {
  const own = open();
  expect(remembered(own, [...encode(own, words), ...EOT])).toBeUndefined();
  const [first] = encode(own, '🦜');
  expect(encode(own, '🦜').length).toBeGreaterThan(1);
  expect(remembered(own, [first!, ...encode(own, 'x')])).toBeUndefined();
  expect(remembered(own, EOT)).toBeUndefined();
  expect(remembered(own, [])).toBeUndefined();
});

test('memory is bounded: the oldest goes', () => {
  const own = open();
  const ids = Uint32Array.from([1, 2, 3]);
  for (let i = 0; i < 30_000; i++)
    own.learn({ scope: 0n, prefix: BigInt(i), text: 'x'.repeat(500), ids, headLength: 0, prefixLength: 1 });
  remembered(own);
  const next = chat('What is the harbour?', words, 'And the light?', '');
  expect(encode(own, next).slice(prompt.length, prompt.length + generated.length)).toEqual(generated);
});

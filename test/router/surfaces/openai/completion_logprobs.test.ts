/** Offsets of tokens in a text, and their names. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { completionLogprobs } from '../../../../services/router/surfaces/openai/completion_logprobs.ts';
import { PromptOffsets } from '../../../../services/router/api/prompt_offsets.ts';
import { charactersOf, escapedBytes } from '../../../../shared/model/token_bytes.ts';
import type { TokenName } from '../../../../shared/text/text.ts';

function named(bytes: Uint8Array | string, name = '', isAdded = false): TokenName {
  const own = typeof bytes === 'string' ? Buffer.from(bytes) : bytes;
  return { bytes: [...own], text: charactersOf(own), escaped: escapedBytes(own), name: name || String(bytes), isAdded };
}

test.each<readonly [string, string, readonly TokenName[], readonly number[]]>([
  ['as they are', 'hi there', [named('hi'), named(' there')], [0, 2]],
  [
    'a character of three tokens',
    'a🙂b',
    ['61', 'f09f', '99', '82', '62'].map((hex) => named(Buffer.from(hex, 'hex'))),
    [0, 1, 1, 1, 2],
  ],
  [
    'a token in front that is not in the text',
    'hi you',
    [named('<s>', '', true), named('hi'), named(' you')],
    [0, 0, 2],
  ],
  ['one that is', '<s>hi', [named('<s>', '', true), named('hi')], [0, 3]],
  ['a space that the tokenizer puts in front', 'hi you', [named(' hi'), named(' you')], [0, 2]],
  ['spaces that belong to nobody', 'a  <m> b', [named('a'), named('<m>', '', true), named(' b')], [0, 1, 6]],
  ['letters that are changed', 'HI you', [named('hi'), named(' you')], [0, 2]],
  ['beyond the base plane, in characters', '𝒳𝒴z', [named('𝒳'), named('𝒴'), named('z')], [0, 1, 2]],
])('%s', (_name, text, names, offsets) => {
  const prompt = new PromptOffsets(text);
  assert.deepEqual(
    names.map((name) => prompt.next(name)),
    offsets,
  );
});

test('alternatives of one text are two keys, parts of characters are their bytes, and the chosen one is among them', () => {
  const names = [
    named(' true', '▁true'),
    named('true', 'true'),
    named(' ', '▁'),
    named(' ', '<0x20>'),
    named(Buffer.of(0xf0, 0x9f), 'ðŁ'),
  ];
  const sampled = { token: 2, logprob: [-3], topTokens: [0, 1, 3, 4], topLogprobs: [-0.5, -1, -2, -4], position: 0 };
  const lists = completionLogprobs(
    [sampled],
    (id) => names[id]!,
    () => 5,
    4,
  );
  assert.deepEqual(lists, {
    tokens: [' '],
    token_logprobs: [-3],
    top_logprobs: [{ ' true': -0.5, true: -1, '<0x20>': -2, ' ': -3, 'bytes:\\xf0\\x9f': -4 }],
    text_offset: [5],
  });
});

/** Our own encoder against the library, which is its oracle: every kind of tokenizer, random texts, texts that begin alike. Budget: 30 s. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { createBytePairs } from '../../shared/text/encoder/byte_pairs.ts';
import { FastEncoder } from '../../shared/text/encoder/fast_encoder.ts';
import { openLibrary } from '../../shared/text/encoder/library.ts';
import type { LibraryTokenizer } from '../../shared/text/encoder/library_tokenizer.ts';
import { TokenizerTools } from '../../shared/text/tokenizer_tools.ts';
import { Random } from '../../shared/base/random.ts';
import { readTextFiles } from '../../shared/model/text_files.ts';
import { goldenFolder } from '../support/golden.ts';
import { projectPath } from '../support/project.ts';

function libraryOf(
  folder: string,
  change: (tokenizer: Record<string, unknown>) => void = () => undefined,
): LibraryTokenizer {
  const { tokenizer, config } = readTextFiles(folder);
  const json = JSON.parse(tokenizer) as Record<string, unknown>;
  change(json);
  return openLibrary(json, JSON.parse(config));
}

const folders = [
  ...readdirSync(goldenFolder('tokenizers')).map((kind) => [kind, goldenFolder(`tokenizers/${kind}`)] as const),
  ['harbour', projectPath('config/models/harbour')] as const,
];

const prose = readFileSync(projectPath('README.md'), 'utf8') + readFileSync(projectPath('shared/kv/record.ts'), 'utf8');
const alphabet = [
  ...Array.from('abcdefgh tion ing THE 0123456789 \n\n\t\r  .,;:!?\'"(){}[]<>|=+-*/\\_#@'),
  ...Array.from('éàüßñçøåÅ你好世界。ここмиршй한국عربية🙂👩‍👧ﬁ½²Ⅷ\u00a0\u2003\u3000\u0000\u0301e\u0301\u200d\ufeff\u0085'),
];

/** Bits of prose, of an alphabet with everything in it, and of what a tokenizer has added. */
function randomText(random: Random, added: readonly string[]): string {
  const parts: string[] = [];
  for (let i = 0; i < 1 + random.below(12); i++) {
    const kind = random.below(6);
    const start = random.below(prose.length);
    if (kind === 0 && added.length > 0) parts.push(added[random.below(added.length)] ?? '');
    else if (kind === 1) parts.push(' '.repeat(random.below(40)), '\n'.repeat(random.below(4)));
    else if (kind <= 3) parts.push(prose.slice(start, start + random.below(200)));
    else for (let j = random.below(40); j > 0; j--) parts.push(alphabet[random.below(alphabet.length)] ?? '');
  }
  return parts.join('');
}

describe.each(folders)('%s', (_name, folder) => {
  const library = libraryOf(folder);
  const added = library.tokenizer.added_tokens.map(({ content }) => content);
  const fast = FastEncoder.create(library);
  assert(fast);

  function same(text: string, isWhole: boolean): void {
    const wanted = library.encode(text, { add_special_tokens: isWhole }).ids;
    assert.deepEqual([...fast!.encode(text, isWhole)], wanted, JSON.stringify(text));
  }

  test('it is taken', () => {
    expect(fast.isRight).toBe(true);
  });

  test('random texts', () => {
    const random = new Random(41);
    for (let turn = 0; turn < 400; turn++) same(randomText(random, added), turn % 2 === 0);
  });

  test('long texts that begin alike, and end otherwise', () => {
    const random = new Random(43);
    const base = prose.slice(0, 14_000);
    same(base, false);
    for (let turn = 0; turn < 12; turn++) {
      const at = random.below(base.length);
      same(base.slice(0, at) + randomText(random, added) + base.slice(at + random.below(50)), false);
    }
    for (const at of [4_096, 4_224, 4_225, 8_192, 4_095])
      for (const more of ['', ' ', '  x', '\n', 'a', '🙂', '1']) same(base.slice(0, at) + more, false);
  });

  test('a chunk that ends in white space goes on in one way or another', () => {
    for (const run of [1, 100, 126, 127, 128, 200]) {
      const begins = `${'a'.repeat(4_095)}\n${' '.repeat(run)}`;
      for (const more of ['x', '\nx', '\n', '', '  \n\ny']) same(begins + more + prose.slice(0, 300), false);
    }
    for (const more of ["'ll", 'L', 'Lll', '你B', 'é', '12'])
      same(`${'AB '.repeat(1_405)}${'你'.repeat(9)}${more}`, false);
  });

  test('pretokens without an end', () => {
    for (const text of [
      'a'.repeat(9_000),
      ' '.repeat(9_000),
      '\n'.repeat(5_000),
      '🙂'.repeat(3_000),
      '1'.repeat(5_000),
    ])
      same(`x ${text} y`, false);
  });
});

test('a tokenizer of another kind is left to the library', () => {
  const folder = goldenFolder('tokenizers/gpt2');
  const kinds: ((json: Record<string, unknown>) => void)[] = [
    (json) => {
      json['pre_tokenizer'] = { type: 'BertPreTokenizer' };
    },
    (json) => {
      json['pre_tokenizer'] = { type: 'ByteLevel', add_prefix_space: true, use_regex: true };
    },
    (json) => {
      json['model'] = { ...(json['model'] as object), dropout: 0.1 };
    },
  ];
  for (const change of kinds) expect(FastEncoder.create(libraryOf(folder, change))).toBeUndefined();
});

test('merges go by rank and from the left, in short pretokens and long ones', () => {
  const tokens = ['a', 'b', 'aa', 'ab', 'aab', 'bb', 'aaaa'];
  const ids = new Map(tokens.map((token, id) => [token, id]));
  const pairs = createBytePairs(ids, [
    ['a', 'a'],
    ['aa', 'aa'],
    ['aa', 'b'],
    ['b', 'b'],
  ]);
  assert(pairs);
  const merged = (text: string): string => {
    const symbols = Int32Array.from(text, (letter) => ids.get(letter) ?? -1);
    return [...symbols.subarray(0, pairs.merge(symbols, symbols.length))].map((id) => tokens[id] ?? '?').join(' ');
  };
  expect(merged('aaab')).toBe('aa ab'.replace('ab', 'a b'));
  expect(merged('aab')).toBe('aab');
  expect(merged(`${'a'.repeat(50)}b`)).toBe(`${'aaaa '.repeat(12)}aab`);
  expect(merged(`a?${'b'.repeat(41)}`)).toBe(`a ?${' bb'.repeat(20)} b`);
  expect(createBytePairs(ids, [['b', 'a']])).toBeUndefined();
});

describe('patterns that no tokenizer here has', () => {
  const split = (Regex: string) => ({ type: 'Split', pattern: { Regex }, behavior: 'Isolated', invert: false });
  const cutBy = (...patterns: string[]): LibraryTokenizer =>
    libraryOf(goldenFolder('tokenizers/llama3'), (tokenizer) => {
      tokenizer['pre_tokenizer'] = {
        type: 'Sequence',
        pretokenizers: [
          ...patterns.map(split),
          { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false },
        ],
      };
    });

  test('one that looks far ahead is left to the library', () => {
    const far = cutBy(String.raw`\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))|[^\p{N}]+|\p{N}`);
    expect(FastEncoder.create(far)).toBe(undefined);
    expect(FastEncoder.create(cutBy(String.raw`\p{N}{1,3}|[^\p{N}]+(?!\S)|[^\p{N}]+`))).not.toBe(undefined);
  });

  test('one within another begins where the other does, however long a text is, and however often', () => {
    const library = cutBy(String.raw`\p{N}{1,3}|[^\p{N}]+`, String.raw`\p{N}{1,2}|[^\p{N}]+`);
    const encoder = FastEncoder.create(library);
    assert(encoder);
    for (const length of [10_000, 10_001, 9_000, 10_002]) {
      for (const text of ['1'.repeat(length), `a${'12345'.repeat(length / 5)} and more`]) {
        const expected = library.encode(text, { add_special_tokens: false }).ids;
        assert.deepEqual([...encoder.encode(text, false)], expected);
      }
    }
  });
});

test('a pretoken without an end needs no stack', () => {
  const tools = new TokenizerTools(readTextFiles(goldenFolder('tokenizers/unigram')));
  const text = `a ${'='.repeat(300_000)} b`;
  expect(tools.encode({ text, addSpecialTokens: false, maxCharacters: Infinity }).length).toBeGreaterThan(100_000);
});

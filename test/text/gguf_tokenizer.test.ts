/** Tokenizers as GGUF files hold them, against the reference's own ids of the same tokenizers. Budget: 10 s. */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { TokenizerTools } from '../../shared/text/tokenizer_tools.ts';
import { byteLetters } from '../../shared/model/byte_letters.ts';
import { textFilesOf } from '../../shared/model/gguf/gguf_tokenizer.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { ggufFile } from '../support/gguf_file.ts';
import { goldenFolder } from '../support/golden.ts';

interface Tokenizer {
  readonly added_tokens: readonly { readonly id: number; readonly content: string; readonly special: boolean }[];
  readonly model: {
    readonly vocab: Readonly<Record<string, number>> | readonly (readonly [string, number])[];
    readonly merges?: readonly (readonly [string, string])[];
  };
}

/** Builds the metadata that llama.cpp's converter writes. */
function metadataOf(kind: string, { added_tokens: added, model }: Tokenizer, more: object): Record<string, unknown> {
  const tokens: string[] = [];
  const scores: number[] = [];
  if (Array.isArray(model.vocab)) {
    for (const [at, [token, score]] of (model.vocab as readonly (readonly [string, number])[]).entries()) {
      tokens[at] = token;
      scores[at] = score;
    }
  } else
    for (const [token, at] of Object.entries(model.vocab as Readonly<Record<string, number>>)) {
      tokens[at] = token;
      scores[at] = -at;
    }
  for (const { id, content } of added) tokens[id] = content;
  const specials = new Map(added.map(({ id, special }) => [id, special]));
  const types = tokens.map((token, id) => {
    if (token === '<unk>') return 2;
    if (specials.has(id)) return specials.get(id) ? 3 : 4;
    return /^<0x[0-9A-F]{2}>$/.test(token) ? 6 : 1;
  });
  return {
    'tokenizer.ggml.model': kind,
    'tokenizer.ggml.tokens': tokens,
    'tokenizer.ggml.token_type': types,
    ...(kind === 'gpt2' || kind === 'gemma4'
      ? { 'tokenizer.ggml.merges': (model.merges ?? []).map((merge) => merge.join(' ')) }
      : {}),
    ...(kind === 'gpt2' ? {} : { 'tokenizer.ggml.scores': tokens.map((_, id) => scores[id] ?? 0) }),
    ...more,
  };
}

const id = (name: string, value: number): object => ({ [`tokenizer.ggml.${name}_token_id`]: value });
const noPrefix = { 'tokenizer.ggml.add_space_prefix': false };

test.each([
  ['llama3', 'gpt2', { 'tokenizer.ggml.pre': 'llama-bpe', ...id('bos', 1_200) }],
  ['qwen2', 'gpt2', { 'tokenizer.ggml.pre': 'qwen2' }],
  ['gpt2', 'gpt2', { 'tokenizer.ggml.pre': 'gpt-2' }],
  ['digits', 'gpt2', { 'tokenizer.ggml.pre': 'smollm' }],
  ['llama2', 'llama', { ...id('bos', 1), ...id('unknown', 0) }],
  ['phi3', 'llama', { ...id('bos', 1), ...id('unknown', 0), 'general.architecture': 'phi3' }],
  ['gemma', 'llama', { ...id('bos', 1), ...id('unknown', 0), ...noPrefix }],
  // Files that say false are wrong.
  ['gemma', 'gemma4', { ...id('bos', 1), ...id('unknown', 0), ...noPrefix, 'tokenizer.ggml.add_bos_token': false }],
  ['unigram', 't5', { ...id('bos', 1), ...id('unknown', 0), 'tokenizer.ggml.add_bos_token': true }],
])('%s as %s', (name, kind, more) => {
  const folder = goldenFolder(`tokenizers/${name}`);
  const json = JSON.parse(readFileSync(join(folder, 'tokenizer.json'), 'utf8')) as Tokenizer;
  const { cases } = JSON.parse(readFileSync(join(folder, 'golden.json'), 'utf8')) as {
    cases: { text: string; ids: number[]; ids_special: number[]; decoded: string }[];
  };
  const texts = textFilesOf(metadataOf(kind, json, more));
  assert(texts);
  const tools = new TokenizerTools(texts);
  let numSame = 0;
  for (const { text, ids, ids_special: withSpecial } of cases) {
    if (ids.length === 0) continue;
    // The file says no more of how it normalises than a compiled table, which is not read.
    if (name === 'unigram' && text !== text.normalize('NFKC').replace(/ {2,}/g, ' ')) continue;
    const encode = (addSpecialTokens: boolean): number[] => [
      ...tools.encode({ text, addSpecialTokens, maxCharacters: 1e6 }),
    ];
    assert.deepEqual(encode(false), ids, JSON.stringify(text));
    assert.deepEqual(encode(true), withSpecial, JSON.stringify(text));
    numSame++;
  }
  expect(numSame).toBeGreaterThan(cases.length / 2);
});

/** Texts with what pre-tokenizers tell apart: cases, contractions, marks, digits, scripts, runs of spaces and of lines, symbols. */
const texts = [
  "It's what WE'LL say: don't  stop, HTMLParser fooBar éÉ e\u0301te\u0301 o\u0308\u0308l",
  'x = y_1 + 12345.678;\n\n\tif (a != b) { /* no */ } // \r\n  <div class="a">\n/\n',
  '我喜欢JavaScript和Python编程，2024年！ひらがなカタカナ漢字ー한국어 текст мир हिन्दी العربية',
  'ǅwer ʰmod ªº 々〇 你好World世界hello測試ABC \u3000全角　スペース 🙂🙂 café\u0301',
  '   leading\n \n  and trailing   ',
];

/** Pre-tokenizers as the models' own files have them, in the notation of Hugging Face's or, for Kimi, of its own library. */
const published: Readonly<Record<string, readonly RegExp[]>> = {
  'deepseek-v3': [
    /\p{N}{1,3}/gu,
    /[一-龥\u3040-ゟ゠-ヿ]+/gu,
    /[!"#$%&'()*+,\-./:;<=>?@[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+/gu,
  ],
  'kimi-k2': [
    new RegExp(
      [
        '[\\p{Script=Han}]+',
        "[^\\r\\n\\p{L}\\p{N}]?[[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]&&[^\\p{Script=Han}]]*[[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]&&[^\\p{Script=Han}]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?",
        "[^\\r\\n\\p{L}\\p{N}]?[[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]&&[^\\p{Script=Han}]]+[[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]&&[^\\p{Script=Han}]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?",
        '\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+',
      ].join('|'),
      'gv',
    ),
  ],
  qwen35: [
    /(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+/gu,
  ],
  glm4: [
    /(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+/gu,
  ],
};

/** Splits a text by one pattern after the other; what no match covers is a pretoken too. */
function pretokensOf(text: string, patterns: readonly RegExp[]): string[] {
  return patterns.reduce<string[]>(
    (all, pattern) =>
      all.flatMap((part) => {
        const pieces: string[] = [];
        let end = 0;
        for (const match of part.matchAll(pattern)) {
          pieces.push(part.slice(end, match.index), match[0]);
          end = match.index + match[0].length;
        }
        return [...pieces, part.slice(end)].filter((piece) => piece !== '');
      }),
    [text],
  );
}

describe('text is split as the models of a pre-tokenizer split it', () => {
  test.each(Object.entries(published))('%s', (name, patterns) => {
    const ownTexts = name === 'qwen35' ? texts.map((text) => text.normalize('NFC')) : texts;
    const wanted = ownTexts.map((text) => pretokensOf(text, patterns));
    const letters = (piece: string): string => [...Buffer.from(piece)].map((byte) => byteLetters[byte]!).join('');
    const tokens = [...new Set([...byteLetters, ...wanted.flat().map(letters)])];
    const files = textFilesOf({
      'tokenizer.ggml.model': 'gpt2',
      'tokenizer.ggml.pre': name,
      'tokenizer.ggml.tokens': tokens,
      'tokenizer.ggml.merges': [],
      'tokenizer.ggml.token_type': tokens.map(() => 1),
    });
    assert(files);
    // Every pretoken is a token, taken without merges: another split would leave bytes.
    const made = JSON.parse(files.tokenizer) as { readonly model: object };
    const tokenizer = JSON.stringify({ ...made, model: { ...made.model, ignore_merges: true } });
    const tools = new TokenizerTools({ ...files, tokenizer });
    ownTexts.forEach((text, i) => {
      const ids = [...tools.encode({ text, addSpecialTokens: false, maxCharacters: 1e6 })];
      const pieces = ids.map((one) => tools.decode({ lists: [[one]], skipSpecialTokens: false })[0]);
      expect(pieces).toEqual(wanted[i]);
    });
  });
});

test('a file brings its template and its tokens', async () => {
  const model = await openModel(join(goldenFolder('gguf-q8_0'), 'model.gguf'));
  expect(model.eosTokenIds).toEqual([2, 0]);
  const tools = new TokenizerTools((await model.readTexts())!);
  const template = {
    messages: [{ role: 'user', content: 'hello' }],
    addGenerationPrompt: true,
    continueFinalMessage: false,
    addSpecialTokens: false,
    kwargs: {},
  };
  const ids = tools.chatPrompt({ template, maxCharacters: 1e5 }).ids;
  expect(tools.detokenize(ids)).toBe('<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n');
  expect(ids[0]).toBe(1);
});

test.each(['llama', 'gemma4'])(
  'tokens and merges that begin with a byte order mark are what they are: %s',
  async (kind) => {
    const folder = mkdtempSync(join(tmpdir(), 'gguf-'));
    const tokens = ['<unk>', '<s>', '</s>', '\ufeff', 'a', '\ufeffa'];
    const data = new Uint8Array(6 * 8 * 4);
    const file = ggufFile(
      {
        'general.architecture': 'llama',
        'llama.context_length': 8,
        'llama.embedding_length': 8,
        'llama.block_count': 1,
        'llama.feed_forward_length': 8,
        'llama.attention.head_count': 1,
        'llama.attention.layer_norm_rms_epsilon': { f32: 1e-5 },
        'tokenizer.ggml.model': kind,
        'tokenizer.ggml.bos_token_id': 1,
        'tokenizer.ggml.eos_token_id': 2,
        'tokenizer.ggml.unknown_token_id': 0,
        ...(kind === 'gemma4' ? { 'tokenizer.ggml.merges': ['\ufeff a'] } : {}),
        'tokenizer.ggml.tokens': tokens,
        'tokenizer.ggml.scores': [0, 0, 0, -1.5, -2, -3],
        'tokenizer.ggml.token_type': [2, 3, 3, 1, 1, 1],
      },
      new Map([['token_embd.weight', { type: 0, dims: [8, 6], data }]]),
    );
    writeFileSync(join(folder, 'model.gguf'), file);
    try {
      const model = await openModel(folder);
      expect(model.eosTokenIds).toEqual([2]);
      const { tokenizer } = (await model.readTexts())!;
      const { model: bpe } = JSON.parse(tokenizer) as { model: { vocab: object; merges: unknown } };
      expect(Object.keys(bpe.vocab)).toEqual(tokens);
      if (kind === 'gemma4') expect(bpe.merges).toEqual([['\ufeff', 'a']]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  },
);

test('a kind that is not there is refused with what there is', () => {
  const metadata = { 'tokenizer.ggml.tokens': ['a'], 'tokenizer.ggml.merges': [] };
  assert.throws(
    () => textFilesOf({ ...metadata, 'tokenizer.ggml.model': 'rwkv' }),
    /"rwkv" is not supported; there are/,
  );
  const unknown = { ...metadata, 'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.pre': 'viking' };
  assert.throws(() => textFilesOf(unknown), /pre "viking" is not supported .* put the model's tokenizer\.json/);
  expect(textFilesOf({})).toBeUndefined();
});

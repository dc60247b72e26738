/** The bytes of every token, against what the decoder makes of it. Vocabularies that people have. Budget: 20 s. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { openLibrary } from '../../../shared/text/encoder/library.ts';
import { bytesOfToken, tokenTable, vocabSizeOf } from '../../../shared/grammar/matcher/token_table.ts';
import { readTextFiles, type TextFiles } from '../../../shared/model/text_files.ts';
import { sized } from '../../support/long.ts';
import { vocabularyFolder } from '../../support/downloads.ts';

const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

function textOf(bytes: Uint8Array): string | undefined {
  try {
    // A decoder refuses shared memory.
    return strict.decode(Uint8Array.from(bytes));
  } catch {
    return undefined;
  }
}

describe.each([
  ['llama3_2', 128_256, 8, 256],
  ['qwen3', 151_936, 275, 14],
  ['mistral_nemo', 131_072, 8, 1_000],
  ['gemma3', 262_208, 72, 8],
] as const)('%s', (name, vocabSize, numWithout, numNamed) => {
  const texts = readTextFiles(vocabularyFolder(name));
  const table = tokenTable(texts, vocabSize);
  const library = openLibrary(JSON.parse(texts.tokenizer), JSON.parse(texts.config));

  test('each token has the bytes that the decoder writes for it after another, and what clients do not see has its name', () => {
    assert.equal(vocabSizeOf(table), vocabSize);
    const [letter = 0] = library.encode('x', { add_special_tokens: false }).ids;
    let [numParts, numNone, numSpecial] = [0, 0, 0];
    const special = new Set(library.tokenizer.added_tokens.map(({ content }) => content));
    for (let id = 0; id < vocabSize; id++) {
      const bytes = bytesOfToken(table, id);
      if (bytes.length === 0) numNone++;
      const isSpecial = bytes[0] === 0xf8;
      if (isSpecial) numSpecial++;
      assert.equal(
        isSpecial,
        bytes.some((byte) => byte >= 0xf8),
        `token ${id}`,
      );
      if (bytes.length === 0 || id % sized(1, 4) > 0) continue;
      const decoded = library.decode([letter, id], { skip_special_tokens: true });
      if (isSpecial) {
        assert.equal(decoded, 'x');
        const name = strict.decode(Uint8Array.from(bytes.subarray(1, -1)));
        assert.equal(bytes.at(-1), 0xf9);
        assert(special.has(name), `${name} is a special token`);
        continue;
      }
      const text = textOf(bytes);
      if (text === undefined) numParts++;
      else assert.equal(decoded, `x${text}`, `token ${id}`);
    }
    assert.deepEqual([numNone, numSpecial], [numWithout, numNamed]);
    // Parts of characters: as many as no text shows.
    expect(numParts).toBeGreaterThan(25);
  });
});

/** A tokenizer.json with SentencePiece's decoder, three tokens and added ones. */
function made(normalizer: object | null, config: object = {}): TextFiles {
  return {
    tokenizer: JSON.stringify({
      added_tokens: [
        { id: 0, content: '<unk>', special: false },
        { id: 4, content: '<call>', special: false },
        { id: 5, content: '<end>', special: true },
        { id: 6, content: '<turn>', special: false },
        { id: 7, content: '<raw>', special: false, normalized: false },
      ],
      normalizer,
      decoder: {
        type: 'Sequence',
        decoders: [
          { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
          { type: 'ByteFallback' },
          { type: 'Fuse' },
        ],
      },
      model: {
        type: 'BPE',
        unk_token: '<unk>',
        vocab: { '<unk>': 0, '▁the': 1, '<0xE2>': 2, x: 3, '<call>': 4, '<end>': 5, '<turn>': 6, '<raw>': 7, y: 8 },
      },
    }),
    config: JSON.stringify(config),
  };
}

function textsOf(texts: TextFiles, vocabSize: number): string[] {
  const table = tokenTable(texts, vocabSize);
  return Array.from({ length: vocabSize }, (_, id) => Buffer.from(bytesOfToken(table, id)).toString('latin1'));
}

test('spaces, bytes and added tokens have bytes; special ones have their names, the unknown one and missing ids have none', () => {
  const config = { eos_token: { content: '<turn>' } };
  const all = ['', ' the', '\xe2', 'x', '<call>', '\xf8<end>\xf9', '\xf8<turn>\xf9', '<raw>', 'y', '', ''];
  assert.deepEqual(textsOf(made(null, config), 11), all);
  assert.deepEqual(textsOf(made(null, { added_tokens_decoder: { 6: { special: true } } }), 11), all);
  assert.deepEqual(textsOf(made(null, { additional_special_tokens: ['<turn>'] }), 11), all);
  assert.equal(textsOf(made(null), 11)[6], '<turn>');
});

test('tokens beyond the logits are left out', () => {
  assert.deepEqual(textsOf(made(null), 3), ['', ' the', '\xe2']);
});

test('an added token that a normaliser changes for good has no bytes, since its text is not known', () => {
  const prepended = { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: '▁' }, { type: 'Replace' }] };
  assert.deepEqual(textsOf(made(prepended), 9).slice(4), ['', '\xf8<end>\xf9', '', '<raw>', 'y']);
  assert.equal(textsOf(made({ type: 'NFC' }), 9)[4], '<call>');
});

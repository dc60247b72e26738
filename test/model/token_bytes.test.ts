/** Single tokens as their bytes, by the decoders that tokenizers have. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { charactersOf, escapedBytes, isBytesOfTokens, tokenSpeller } from '../../shared/model/token_bytes.ts';

const sentencePiece = {
  type: 'Sequence',
  decoders: [
    { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
    { type: 'ByteFallback' },
    { type: 'Fuse' },
    { type: 'Strip', content: ' ', start: 1, stop: 0 },
  ],
};

test.each<readonly [string, unknown, string, number[]]>([
  ['byte-level letters', { type: 'ByteLevel' }, 'Ġhi', [0x20, 0x68, 0x69]],
  ['a part of a character', { type: 'ByteLevel' }, 'ðŁ', [0xf0, 0x9f]],
  ['in a sequence', { type: 'Sequence', decoders: [{ type: 'ByteLevel' }] }, 'Ċ', [0x0a]],
  ['SentencePiece keeps its space', sentencePiece, '▁cat', [...Buffer.from(' cat')]],
  ['a byte token', sentencePiece, '<0xEF>', [0xef]],
  ['what only looks like one', sentencePiece, '<0xEG>', [...Buffer.from('<0xEG>')]],
  ['Metaspace', { type: 'Metaspace', replacement: '▁' }, '▁cat', [...Buffer.from(' cat')]],
  ['a byte token of a tokenizer without bytes', { type: 'Metaspace' }, '<0x41>', [...Buffer.from('<0x41>')]],
  ['WordPiece goes on', { type: 'WordPiece', prefix: '##' }, '##ing', [...Buffer.from('ing')]],
  ['WordPiece begins', { type: 'WordPiece', prefix: '##' }, 'go', [...Buffer.from(' go')]],
  ['the end of a word', { type: 'BPEDecoder', suffix: '</w>' }, 'go</w>', [...Buffer.from('go ')]],
  ['no decoder', null, 'go', [...Buffer.from('go')]],
])('%s', (_name, decoder, token, bytes) => {
  assert.deepEqual([...tokenSpeller(decoder)(token)], bytes);
});

const mark = { type: 'Replace', pattern: { String: '▁' }, content: ' ' };
const strip = { type: 'Strip', content: ' ', start: 1, stop: 0 };

test.each<readonly [string, boolean, readonly unknown[]]>([
  ['SentencePiece', true, sentencePiece.decoders],
  ['without a space taken away', true, [mark, { type: 'ByteFallback' }, { type: 'Fuse' }]],
  ['byte-level', true, [{ type: 'ByteLevel' }]],
  ['Metaspace', true, [{ type: 'Metaspace', replacement: '▁' }]],
  ['byte-level after another step', false, [mark, { type: 'ByteLevel' }]],
  ['bytes put together before a step', false, [{ type: 'ByteFallback' }, mark, { type: 'Fuse' }]],
  ['a step after the whole', false, [mark, { type: 'Fuse' }, mark]],
  ['spaces taken from the end', false, [mark, { type: 'Fuse' }, { ...strip, stop: 1 }]],
  ['two spaces taken', false, [mark, { type: 'Fuse' }, { ...strip, start: 2 }]],
  ['a letter taken', false, [mark, { type: 'Fuse' }, { ...strip, content: 'H' }]],
  ['spaces taken from each token', false, [mark, strip]],
  ['a regular expression', false, [{ type: 'Replace', pattern: { Regex: 'a+' }, content: 'b' }, { type: 'Fuse' }]],
  ['WordPiece', false, [{ type: 'WordPiece', prefix: '##' }]],
  ['an unknown step', false, [{ type: 'Reverse' }]],
  ['no step', false, []],
])('whether a text is the bytes of its tokens is known of few decoders: %s', (_name, isKnown, decoders) => {
  assert.equal(isBytesOfTokens({ type: 'Sequence', decoders }), isKnown);
});

test('without a decoder it is not: tokens are joined with spaces', () => {
  assert.equal(isBytesOfTokens(null), false);
});

test('bytes are characters or none, U+FEFF is one, and what is none is spelled', () => {
  assert.equal(charactersOf(Buffer.from('\uFEFF')), '\uFEFF');
  assert.equal(charactersOf(Buffer.of(0xf0, 0x9f)), undefined);
  assert.equal(escapedBytes(Buffer.of(0xf0, 0x0a)), '\\xf0\\x0a');
});

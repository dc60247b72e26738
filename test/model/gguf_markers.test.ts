/** Markers in the vocabulary of a GGUF file, and types of tensors that are not read. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { unreadType } from '../../shared/model/gguf/gguf_blocks.ts';
import { isEnd, typesOf } from '../../shared/model/gguf/gguf_markers.ts';

test('markers of turns that have the type of words are control tokens; words, and tokens of other types, stay', () => {
  const tokens = [
    '<|im_start|>',
    '<|im_end|>',
    '<｜end▁of▁sentence｜>',
    '[e~[',
    '<start_of_turn>',
    'the',
    '<b>',
    '<|',
    '|>',
    '<| a |>',
  ];
  const want = [3, 3, 3, 3, 3, 1, 1, 1, 1, 1];
  assert.deepEqual(
    typesOf(
      tokens,
      tokens.map(() => 1),
    ),
    want,
  );
  assert.deepEqual(typesOf(['<|im_end|>', '<|tool_call|>', '<0x0A>'], [4, 4, 6]), [4, 4, 6]);
  assert.deepEqual(typesOf(['<|im_end|>'], []), [], 'a file without types');
});

test('ends of turns are known by their text', () => {
  for (const end of ['<|im_end|>', '<|eot_id|>', '<｜end▁of▁sentence｜>', '[e~[', '</s>'])
    assert.equal(isEnd(end), true, end);
  for (const other of ['<|im_start|>', 'end', '<|endoftext', '']) assert.equal(isEnd(other), false, other);
});

test('a type that is not read is named, or its number, besides those that are', () => {
  assert.match(
    unreadType('blk.0.ffn_gate.weight', 21),
    /blk\.0\.ffn_gate\.weight is stored in IQ3_S \(type 21\).*F32, F16.*Q4_K/,
  );
  assert.match(unreadType('x', 77), /a type of number 77/);
});

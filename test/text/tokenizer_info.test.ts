/** Descriptions of tokenizers as clients of vLLM read them. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { tokenizerInfo } from '../../shared/text/tokenizer_info.ts';

const added = [
  { id: 7, content: '<s>', special: true, normalized: false },
  { id: 8, content: '<tool>', special: false, lstrip: true },
];

test('tokens are texts, added tokens lie by id, and a length that is no integer is left out', () => {
  const info = tokenizerInfo(
    {
      tokenizer_class: 'LlamaTokenizer',
      bos_token: { content: '<s>', lstrip: false },
      eos_token: '</s>',
      additional_special_tokens: [{ content: '<a>' }, '<b>'],
      model_max_length: 1e30,
      add_bos_token: true,
    },
    added,
    undefined,
  );
  assert.deepEqual(info, {
    tokenizer_class: 'LlamaTokenizer',
    bos_token: '<s>',
    eos_token: '</s>',
    additional_special_tokens: ['<a>', '<b>'],
    add_bos_token: true,
    added_tokens_decoder: {
      7: { content: '<s>', special: true, lstrip: false, rstrip: false, single_word: false, normalized: false },
      8: { content: '<tool>', special: false, lstrip: true, rstrip: false, single_word: false, normalized: false },
    },
  });
});

test('the template is the one that chats use; what the configuration says of an added token wins', () => {
  const info = tokenizerInfo(
    {
      chat_template: [{ name: 'default', template: 'a' }],
      model_max_length: 512,
      added_tokens_decoder: { 8: { content: '<tool>', special: true } },
    },
    added,
    'a',
  );
  assert.deepEqual([info['chat_template'], info['model_max_length']], ['a', 512]);
  assert.equal(info['tokenizer_class'], 'PreTrainedTokenizerFast');
  assert.deepEqual((info['added_tokens_decoder'] as Record<string, unknown>)['8'], {
    content: '<tool>',
    special: true,
  });
});

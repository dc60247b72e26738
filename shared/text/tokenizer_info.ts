/** Description of a tokenizer in the keys of tokenizer_config.json (vLLM's `/tokenizer_info`). */
import type { AddedTokenJson } from '../model/tokenizer_json.ts';

/** Returns the content of an added token, which files write as an object; any other value as it is. */
function asText(value: unknown): unknown {
  const isToken = typeof value === 'object' && value !== null && 'content' in value;
  return isToken ? value.content : Array.isArray(value) ? value.map(asText) : value;
}

/**
 * Returns tokenizer_config.json with tokens as texts, the added tokens of tokenizer.json by id, and the source of the chat template,
 * whichever file has it.
 */
export function tokenizerInfo(
  config: Readonly<Record<string, unknown>>,
  addedTokens: readonly AddedTokenJson[],
  template: string | undefined,
): Record<string, unknown> {
  const added = addedTokens.map(({ id, content, special = false, lstrip = false, rstrip = false, ...others }) => {
    const { single_word: isWord = false, normalized = false } = others;
    return [String(id), { content, special, lstrip, rstrip, single_word: isWord, normalized }];
  });
  const { added_tokens_decoder: ofConfig, model_max_length: length, ...rest } = config;
  return {
    tokenizer_class: 'PreTrainedTokenizerFast',
    ...Object.fromEntries(Object.entries(rest).map(([key, value]) => [key, asText(value)])),
    // Files without a length have 1e30, which is no integer to a client.
    ...(Number.isSafeInteger(length) ? { model_max_length: length } : {}),
    added_tokens_decoder: { ...(Object.fromEntries(added) as object), ...(ofConfig as object | undefined) },
    ...(template === undefined ? {} : { chat_template: template }),
  };
}

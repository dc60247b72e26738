/** Markers of turns in the vocabulary of a GGUF file. Converters of fine-tuned models often give them the type of plain words. */

/** Texts of tokens that end a generation, as in llama.cpp; used because files often name only one of them. */
const ENDS = new Set([
  ...['<|eot_id|>', '<|im_end|>', '<|end|>', '<|return|>', '<|call|>', '<end_of_turn>', '<|endoftext|>', '</s>'],
  ...['<|eom_id|>', '<EOT>', '_<EOT>', '[EOT]', '[EOS]', '<|end_of_text|>', '<end_of_utterance>', '<eos>', '<turn|>'],
  ...['<｜end▁of▁sentence｜>', '[e~[', '<|flush|>', '<|calls|>'],
  // Gemma 4 ends a turn with calls there.
  '<|tool_response>',
]);
/** Texts of tokens that begin a turn, besides those between bars. */
const BEGINS = new Set([
  '<start_of_turn>',
  '<|turn>',
  ']~b]',
  ']~!b[',
  '[INST]',
  '[/INST]',
  '[SYSTEM_PROMPT]',
  '[/SYSTEM_PROMPT]',
]);
/** Names between bars, which no text has as a word: `<|im_start|>`, `<｜User｜>`. */
const BARRED = /^<(?:\|[^\s<>|]{1,40}\||｜[^\s<>｜]{1,40}｜)>$/;

/** Types of tokens that are words of the vocabulary, and that of control tokens. */
const NORMAL = 1;
const CONTROL = 3;

/** Whether a token of this text ends a generation. */
export function isEnd(token: string): boolean {
  return ENDS.has(token);
}

/** Returns the types of all tokens, as ggml numbers them; markers that have the type of words are control tokens. */
export function typesOf(tokens: readonly string[], types: readonly number[]): readonly number[] {
  const isMarker = (token: string): boolean => ENDS.has(token) || BEGINS.has(token) || BARRED.test(token);
  return types.map((type, id) => (type === NORMAL && isMarker(tokens[id] ?? '') ? CONTROL : type));
}

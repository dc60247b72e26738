/** Failures as the request log and spans keep them: without what they quote of a prompt, which only the client is told. */
import { Failure, messageOf, isFailureCode } from '../../../shared/base/failure.ts';

/** Messages that quote a prompt, each with what is kept of it. They come from threads as text, so only the text tells. */
const QUOTING: readonly (readonly [RegExp, string])[] = [
  // api/body_parts.ts: the parser's message shows some characters around the error.
  [/^(the body is not JSON): .*$/s, '$1'],
  [/^(.*: )token id \d+ (is outside the vocabulary of \d+)$/s, '$1a token id $2'],
  // surfaces/responses/response_input.ts: the type of an item may be any value. surfaces/anthropic/message_turns.ts: that of a block any text.
  [/^(input\.\d+\.type: ).*( is not supported; use message, .*)$/s, '$1this$2'],
  [/^(messages\.\d+\.[\w.]+: a block of )type .*( is not supported here; .*)$/s, '$1this type$2'],
  // shared/text/grammar/schema_text.ts: the parser's message shows the start of a schema that is no JSON.
  [/^(.*: the schema is no JSON): .*$/s, '$1'],
  // shared/text/chat_renderer.ts: a template may raise any text, with parts of the messages in it.
  [/^(messages: the chat template refuses them): .*$/s, '$1'],
];

/** Returns a failure whose message quotes nothing of a prompt: the same object where it quotes nothing. */
export function unquoted(failure: unknown): unknown {
  const message = failure === undefined ? '' : messageOf(failure);
  const [pattern, kept] = QUOTING.find(([one]) => one.test(message)) ?? [];
  if (!pattern || kept === undefined) return failure;
  const { code = '' } = failure as { readonly code?: string };
  // A copy: a part of a string holds the whole of it in memory.
  const copy = Buffer.from(message.replace(pattern, kept)).toString();
  return new Failure(isFailureCode(code) ? code : 'invalid_request', copy);
}

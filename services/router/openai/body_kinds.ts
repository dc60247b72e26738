/** Which endpoint reads its body how. */
import { readChatBody, readCompletionBody, readDetokenizeBody, readTokenizeBody } from './parameters.ts';
import type { BodyLimits } from './parameter_failure.ts';

const readers = {
  chat: readChatBody,
  completion: readCompletionBody,
  tokenize: readTokenizeBody,
  detokenize: readDetokenizeBody,
} as const;

export type BodyKind = keyof typeof readers;
export type BodyOf<K extends BodyKind> = ReturnType<(typeof readers)[K]>;

export function readBody<K extends BodyKind>(kind: K, bytes: Uint8Array, limits: BodyLimits): BodyOf<K> {
  return readers[kind](bytes, limits) as BodyOf<K>;
}

/** Body readers by endpoint. */
import { readEmbeddingBody } from './embedding_parameters.ts';
import { readChatBody, readCompletionBody, readDetokenizeBody, readTokenizeBody } from './parameters.ts';
import type { BodyLimits } from './parameter_failure.ts';

const readers = {
  chat: readChatBody,
  completion: readCompletionBody,
  embedding: readEmbeddingBody,
  tokenize: readTokenizeBody,
  detokenize: readDetokenizeBody,
} as const;

/** Endpoint whose body can be read. */
export type BodyKind = keyof typeof readers;
/** Parsed body of an endpoint. */
export type BodyOf<K extends BodyKind> = ReturnType<(typeof readers)[K]>;

/** Parses and validates a request body. @throws ParameterFailure naming the refused parameter. */
export function readBody<K extends BodyKind>(kind: K, bytes: Uint8Array, limits: BodyLimits): BodyOf<K> {
  return readers[kind](bytes, limits) as BodyOf<K>;
}

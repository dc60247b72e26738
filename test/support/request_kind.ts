/** Kinds of requests, for tests that open traces themselves. */
import type { RequestKind } from '../../services/router/record/request_kind.ts';

const operations: Readonly<Record<string, RequestKind['operation']>> = {
  '/v1/chat/completions': 'chat',
  '/v1/completions': 'text_completion',
  '/v1/embeddings': 'embeddings',
};

/** Returns the kind of the requests of an endpoint: one that generates, or embeds. */
export function kindOf(endpoint: string): RequestKind {
  const operation = operations[endpoint];
  const counts = operation === undefined ? 'none' : operation === 'embeddings' ? 'embedding' : 'generation';
  return { endpoint, counts, operation };
}

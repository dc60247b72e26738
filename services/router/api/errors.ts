/** Failures as answers, in the form of any API. */
import { errorStatus, Failure } from '../../../shared/base/failure.ts';
import { RejectedFailure } from '../conductor/rejected_failure.ts';

/** Form of the errors of an API. `requestId` names the request; null when it has no name yet. */
export interface ErrorForm {
  /** JSON schema of the body of an error response, and its name in the description of the API. */
  readonly schema: { readonly name: string; readonly json: object };
  /** Returns the body of an error response. */
  body(error: unknown, requestId: string | null): object;
  /** Returns the headers of an error response. */
  headers(error: unknown, requestId: string | null): Record<string, string>;
  /** Returns the event that ends a stream. */
  event(error: unknown, requestId: string | null): string;
}

/** Content type of JSON answers. */
export const jsonType = 'application/json; charset=utf-8';

/**
 * Returns the headers of an error answer; a 429 or 503 includes `retry-after` in seconds, 1 where nothing better is known. One that will
 * be refused again has none, and tells the clients of OpenAI and Anthropic not to repeat it.
 */
export function errorHeaders(error: unknown): Record<string, string> {
  const status = errorStatus(error);
  const isLater = status === 429 || status === 503;
  const isFinal = error instanceof RejectedFailure && error.isFinal;
  const retryAfterMs = error instanceof Failure ? (error.retryAfterMs ?? 0) : 0;
  const seconds = Math.max(1, Math.ceil(retryAfterMs / 1_000));
  return {
    'content-type': jsonType,
    ...(isFinal ? { 'x-should-retry': 'false' } : isLater ? { 'retry-after': String(seconds) } : {}),
    // RFC 9110: a 401 says how to authenticate.
    ...(status === 401 ? { 'www-authenticate': 'Bearer' } : {}),
  };
}

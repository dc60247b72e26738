/** Failures as OpenAI error objects. */
import { Failure, messageOf } from '../../../shared/base/failure.ts';
import { ParameterFailure } from './parameter_failure.ts';

/** An error answer in OpenAI's form. */
export interface ErrorBody {
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    readonly code: string | null;
  };
}

/** Form of the errors of an API. `requestId` names the request; null when it has no name yet. */
export interface ErrorForm {
  /** Returns the body of an error response. */
  body(error: unknown, requestId: string | null): object;
  /** Returns the headers of an error response. */
  headers(error: unknown, requestId: string | null): Record<string, string>;
  /** Returns the event that ends a stream. */
  event(error: unknown, requestId: string | null): string;
}

/** Errors in the form of OpenAI's chats and completions. */
export const openaiErrors: ErrorForm = {
  body: errorBody,
  headers: errorHeaders,
  event: (error) => `data: ${JSON.stringify(errorBody(error))}\n\n`,
};

/** Returns the HTTP status of an error: a Failure's own status, a `statusCode` from 400 to 599, else 500. */
export function errorStatus(error: unknown): number {
  if (error instanceof Failure) return error.status;
  const { statusCode } = error as { statusCode?: number };
  return statusCode !== undefined && statusCode >= 400 && statusCode < 600 ? statusCode : 500;
}

/** Content type of JSON answers. */
export const jsonType = 'application/json; charset=utf-8';

/** Returns the headers of an error answer; a 429 or 503 includes `retry-after` in seconds, 1 where nothing better is known. */
export function errorHeaders(error: unknown): Record<string, string> {
  const status = errorStatus(error);
  const isLater = status === 429 || status === 503;
  const retryAfterMs = error instanceof Failure ? (error.retryAfterMs ?? 0) : 0;
  const seconds = Math.max(1, Math.ceil(retryAfterMs / 1_000));
  return { 'content-type': jsonType, ...(isLater ? { 'retry-after': String(seconds) } : {}) };
}

/** Returns the OpenAI error object for any error. */
export function errorBody(error: unknown): ErrorBody {
  const status = errorStatus(error);
  const code =
    error instanceof Failure
      ? error.code === 'context_too_long'
        ? 'context_length_exceeded'
        : error.code
      : (codes[status] ?? null);
  return {
    error: {
      message: messageOf(error),
      type: typeOf(status),
      param: error instanceof ParameterFailure ? error.param : null,
      code,
    },
  };
}

/** Error codes of errors that are not a Failure, by HTTP status. */
const codes: Record<number, string> = {
  400: 'invalid_request',
  403: 'forbidden',
  404: 'not_found',
  405: 'method_not_allowed',
  408: 'request_timeout',
  413: 'body_too_large',
  414: 'url_too_long',
  415: 'unsupported_media_type',
  417: 'expectation_failed',
  431: 'headers_too_large',
};

function typeOf(status: number): string {
  if (status === 401) return 'authentication_error';
  if (status === 404) return 'not_found_error';
  if (status === 429) return 'rate_limit_error';
  if (status < 500) return 'invalid_request_error';
  return status === 503 ? 'service_unavailable_error' : 'server_error';
}

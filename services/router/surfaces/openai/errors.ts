/** Failures as OpenAI error objects. */
import { errorStatus, Failure, toldOf } from '../../../../shared/base/failure.ts';
import { errorHeaders, type ErrorForm } from '../../api/errors.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';

/** An error answer in OpenAI's form. */
export interface ErrorBody {
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    readonly code: string | null;
  };
}

const errorSchema = {
  type: 'object',
  required: ['error'],
  properties: {
    error: {
      type: 'object',
      required: ['message', 'type', 'param', 'code'],
      properties: {
        message: { type: 'string' },
        type: { type: 'string' },
        param: { type: ['string', 'null'] },
        code: { type: ['string', 'null'] },
      },
    },
  },
};

/** Errors in the form of OpenAI's chats and completions. */
export const openaiErrors: ErrorForm = {
  schema: { name: 'Error', json: errorSchema },
  body: errorBody,
  headers: errorHeaders,
  event: (error) => `data: ${JSON.stringify(errorBody(error))}\n\n`,
};

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
      message: toldOf(error),
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

/** Errors in Anthropic's form. */
import { errorStatus, Failure, toldOf } from '../../../../shared/base/failure.ts';
import { errorHeaders, type ErrorForm } from '../../api/errors.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';

const messageErrorSchema = {
  type: 'object',
  required: ['type', 'error', 'request_id'],
  properties: {
    type: { const: 'error' },
    error: {
      type: 'object',
      required: ['type', 'message'],
      properties: { type: { type: 'string' }, message: { type: 'string' } },
    },
    request_id: { type: ['string', 'null'] },
  },
};

/** Errors in Anthropic's form. */
export const messageErrors: ErrorForm = {
  schema: { name: 'MessageError', json: messageErrorSchema },
  body: messageErrorBody,
  headers: (error, requestId) => ({
    ...errorHeaders(error),
    ...(requestId === null ? {} : { 'request-id': requestId }),
  }),
  event: (error, requestId) => `event: error\ndata: ${JSON.stringify(messageErrorBody(error, requestId))}\n\n`,
};

/** Returns Anthropic's error object for any error. */
function messageErrorBody(error: unknown, requestId: string | null): object {
  return {
    type: 'error',
    error: { type: typeOf(errorStatus(error)), message: textOf(error), ...detailsOf(error) },
    request_id: requestId,
  };
}

/** Returns the details by which Anthropic's client knows to send the whole conversation in place of a thread. */
function detailsOf(error: unknown): object {
  if (!(error instanceof ParameterFailure) || error.param !== 'thread') return {};
  return { details: { error_code: 'thread_unsupported_request', unsupported: ['thread'] } };
}

/** Parameters of chats at the beginning of a message, and their names here. */
const names: readonly (readonly [chat: RegExp, own: string])[] = [
  [/^response_format(\.json_schema)?/, 'output_config.format'],
  [/^stop(?=[:.])/, 'stop_sequences'],
  [/^(tools\.\d+)\.function(?=\.)/, '$1'],
];

function textOf(error: unknown): string {
  const text = names.reduce((message, [chat, own]) => message.replace(chat, own), toldOf(error));
  // Clients look for these words to shorten the conversation.
  return error instanceof Failure && error.code === 'context_too_long' ? `prompt is too long: ${text}` : text;
}

const types: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  408: 'timeout_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
  504: 'timeout_error',
  529: 'overloaded_error',
};

function typeOf(status: number): string {
  return types[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error');
}

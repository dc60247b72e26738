/** Errors of `/v1/responses`: an answer's are OpenAI's, an event has its own form. */
import type { ErrorForm } from '../../api/errors.ts';
import { errorBody, openaiErrors } from '../openai/errors.ts';

/** Errors in the form of responses. The event is one of a stream that had none before: later failures are `response.failed`. */
export const responseErrors: ErrorForm = {
  ...openaiErrors,
  event: (error) => {
    const { code, message, param } = errorBody(error).error;
    const event = { type: 'error', code, message, param, sequence_number: 0 };
    return `event: error\ndata: ${JSON.stringify(event)}\n\n`;
  },
};

/** The form of errors that a path has. */
import { messageErrors } from './anthropic/message_errors.ts';
import { responseErrors } from './responses/response_errors.ts';
import type { ErrorForm } from '../api/errors.ts';
import { openaiErrors } from './openai/errors.ts';

/** Returns the form of the errors of a path, which may have a query behind it. */
export function errorFormOf(path: string): ErrorForm {
  if (/^\/v1\/messages(?:[/?]|$)/.test(path)) return messageErrors;
  return /^\/v1\/responses(?:[/?]|$)/.test(path) ? responseErrors : openaiErrors;
}

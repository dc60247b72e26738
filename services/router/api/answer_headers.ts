/** Headers of answers. */
import type { Caller } from '../access/caller.ts';
import { requestHeader } from '../record/request_json.ts';
import type { RequestTrace } from '../record/request_trace.ts';

/** Longest value of the `x-penstock-ignored` header, in characters; the rest is cut. */
const MAX_IGNORED_CHARACTERS = 1_024;

/** Returns the `x-penstock-ignored` header with the names of ignored keys; empty when there are none. */
export function ignoredHeaders(ignored: readonly string[]): Record<string, string> {
  if (ignored.length === 0) return {};
  const names = ignored.map((name) => name.replaceAll(/[^\x21-\x2b\x2d-\x7e]/g, '?')).join(', ');
  return { 'x-penstock-ignored': names.slice(0, MAX_IGNORED_CHARACTERS) };
}

/**
 * Headers of a finished answer: request id, a one-line summary of the request (of the first prompt when there are several; where it ran is
 * for admins), and ignored keys.
 */
export function finishedHeaders(
  trace: RequestTrace,
  ignored: readonly string[],
  { isAdmin }: Pick<Caller, 'isAdmin'>,
): Record<string, string> {
  return {
    'x-request-id': trace.shownId,
    'x-penstock-request': requestHeader(trace.record, isAdmin),
    ...ignoredHeaders(ignored),
  };
}

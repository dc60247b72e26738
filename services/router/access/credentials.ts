/** The key that a request comes with. */
import { Failure } from '../../../shared/base/failure.ts';
import type { Asking, AskingHeaders } from './caller.ts';

/** Longest key, in characters: a longer header is not looked at. */
const MAX_KEY = 512;
/** Parameters of a URL in which clients of other servers put a key. */
const IN_URL = /^(api[_-]?key|x-api-key|key|token|access_token|authorization)$/i;

const CURE = 'send the header `Authorization: Bearer KEY`, or `x-api-key: KEY`';

/** Returns the key in headers, known or not; undefined for none. Another scheme of Authorization, as of a proxy in front, has none. */
function presented({ authorization, 'x-api-key': own }: AskingHeaders): string | undefined {
  const bearer = typeof authorization === 'string' ? bearerOf(authorization) : undefined;
  return bearer ?? (typeof own === 'string' && own !== '' ? own : undefined);
}

/** Whether a request comes with a key, known or not. */
export function hasKey(headers: AskingHeaders): boolean {
  return presented(headers) !== undefined;
}

/** Returns the key in the headers of a request. @throws Failure `invalid_api_key` for a request that has none */
export function keyOf({ url, headers }: Asking): string {
  const found = presented(headers);
  if (found !== undefined) {
    if (found.length > MAX_KEY) throw refused(`a key of over ${MAX_KEY} characters is longer than any of this server`);
    return found;
  }
  if (isInUrl(url)) throw refused(`a key in a URL ends up in logs and histories, and is not taken: ${CURE}`);
  throw refused(
    headers['authorization'] === undefined
      ? `this server asks for an API key: ${CURE}`
      : `the header Authorization has no bearer token: ${CURE}`,
  );
}

/** Returns the failure of a request without a key that is known here. */
export function refused(message: string): Failure {
  return new Failure('invalid_api_key', message);
}

/** Returns the token of an Authorization header (RFC 6750); undefined for another scheme. */
function bearerOf(header: string): string | undefined {
  // Cut before it is searched: whatever is longer is refused.
  return /^bearer +(\S+) *$/i.exec(header.slice(0, MAX_KEY + 64))?.[1];
}

function isInUrl(url: string): boolean {
  const queryAt = url.indexOf('?');
  if (queryAt < 0) return false;
  return [...new URLSearchParams(url.slice(queryAt, queryAt + 4_096)).keys()].some((name) => IN_URL.test(name));
}

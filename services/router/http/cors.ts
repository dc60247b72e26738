/**
 * CORS (Fetch standard): decides which web pages may use the API. Allowed are the origins that the operator lists, or all with `*`;
 * `/api/*` (cluster internals) is open to listed origins only. Headers are set on Node's responses, because the framework's plugins
 * miss hijacked streams and some errors.
 */
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import { limitHeaderNames } from '../api/limit_headers.ts';

/** Request headers that OpenAI's, Anthropic's and plain clients send. */
const ALLOWED_HEADERS =
  /^(accept|authorization|content-type|x-api-key|x-request-id|traceparent|user-agent|idempotency-key|openai-[a-z-]+|x-penstock-(slo-ttft|slo-tbt|deadline)-ms|anthropic-[a-z-]+|x-stainless-[a-z-]+)$/;
/** Headers that a preflight answer allows when none of the requested ones is allowed, or none is requested. */
const USUAL_HEADERS = 'authorization, content-type, x-api-key';
/** Headers of answers that a page may read. */
const EXPOSED_HEADERS = [
  ...['x-request-id', 'request-id', 'x-penstock-request', 'x-penstock-ignored', 'retry-after', 'x-should-retry'],
  ...limitHeaderNames,
].join(', ');
/** Seconds for which a browser may cache a preflight answer; most browsers allow two hours at most. */
const MAX_AGE_S = '7200';

/** CORS rules of one router, from its `allowed_origins` option. */
export class Cors {
  readonly #listed: ReadonlySet<string>;
  readonly #isForAll: boolean;

  readonly #clientPaths: ReadonlySet<string>;

  /** `origins`: value of `allowed_origins`, separated by commas, `*` for all; empty allows no page. `clientPaths`: those of the API. */
  constructor(origins: string, clientPaths: ReadonlySet<string>) {
    this.#clientPaths = clientPaths;
    const all = origins.split(',').filter((origin) => origin !== '');
    this.#listed = new Set(all.filter((origin) => origin !== '*').map((origin) => origin.toLowerCase()));
    this.#isForAll = all.includes('*');
  }

  /** Sets the headers that allow a page to read this answer, errors included. */
  allow(request: IncomingMessage, response: ServerResponse): void {
    if (this.#listed.size === 0 && !this.#isForAll) return;
    response.setHeader('vary', 'origin');
    const origin = this.#allowed(request);
    if (origin === undefined) return;
    response.setHeader('access-control-allow-origin', origin);
    // Cookies and the like of a proxy in front: only to pages that the operator has listed.
    if (origin !== '*') response.setHeader('access-control-allow-credentials', 'true');
    response.setHeader('access-control-expose-headers', EXPOSED_HEADERS);
  }

  /** Returns the headers that answer a preflight request; undefined when the request is none, or its origin is not allowed. */
  preflight(request: IncomingMessage): Record<string, string> | undefined {
    const { headers, method } = request;
    const asked = headers['access-control-request-method'];
    if (method !== 'OPTIONS' || asked === undefined || this.#allowed(request) === undefined) return undefined;
    return {
      'access-control-allow-methods': 'GET, POST, DELETE',
      'access-control-allow-headers': headersFor(headers),
      'access-control-max-age': MAX_AGE_S,
      // A page of the open web that reaches for a server of the local network asks for this too.
      ...(headers['access-control-request-private-network'] === 'true'
        ? { 'access-control-allow-private-network': 'true' }
        : {}),
    };
  }

  #allowed({ headers, url = '' }: IncomingMessage): string | undefined {
    const { origin } = headers;
    if (origin === undefined) return undefined;
    if (this.#listed.has(origin.toLowerCase())) return origin;
    return this.#isForAll && !isInside(url, this.#clientPaths) ? '*' : undefined;
  }
}

/** Whether a request URL leads to a route below `/api` that is not one of the API's own, also with a host in front or percent-encoded. */
export function isInside(url: string, clientPaths: ReadonlySet<string>): boolean {
  const path = url.replace(/^[a-z][a-z\d+.-]*:\/\/[^/?#]*/i, '').replace(/[?#;].*$/s, '');
  try {
    const decoded = decodeURIComponent(path);
    return /^\/*api(\/|$)/i.test(decoded) && !clientPaths.has(decoded);
  } catch {
    return true;
  }
}

/** Returns the requested headers that a page may send, or USUAL_HEADERS when none of them is allowed. */
function headersFor(headers: IncomingHttpHeaders): string {
  const asked = (headers['access-control-request-headers'] ?? '').split(',').map((name) => name.trim().toLowerCase());
  const allowed = asked.filter((name) => ALLOWED_HEADERS.test(name));
  return allowed.length > 0 ? allowed.join(', ') : USUAL_HEADERS;
}

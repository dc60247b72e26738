/** Headers that tell clients of the limits of their tenant, in the forms of OpenAI and Anthropic. */
import type { LimitsView, RateView } from '../conductor/tenant_limits.ts';

type Header = readonly [name: string, value: string];
/** Form of the headers of an API. `wallMs`: the time now, in milliseconds since 1970. */
export type LimitHeaders = (view: LimitsView, wallMs: number) => readonly Header[];

/** Names of the headers about one limit. */
type Names = Readonly<Record<'limit' | 'remaining' | 'reset', string>>;

const openai = {
  requests: namesOf((what) => `x-ratelimit-${what}-requests`),
  tokens: namesOf((what) => `x-ratelimit-${what}-tokens`),
};
const anthropic = {
  requests: namesOf((what) => `anthropic-ratelimit-requests-${what}`),
  tokens: namesOf((what) => `anthropic-ratelimit-tokens-${what}`),
};

/** Names of all headers about limits, for pages that may read them. */
export const limitHeaderNames: readonly string[] = [openai, anthropic].flatMap(({ requests, tokens }) => [
  ...Object.values(requests),
  ...Object.values(tokens),
]);

/** OpenAI's headers, which every endpoint sends. */
export const openaiLimitHeaders: LimitHeaders = (view) => headersOf(view, openai, durationOf);

/** Anthropic's headers, with those of OpenAI, which gateways read on any path. */
export const anthropicLimitHeaders: LimitHeaders = (view, wallMs) => [
  ...openaiLimitHeaders(view, wallMs),
  ...headersOf(view, anthropic, (ms) => timeOf(wallMs + ms)),
];

function namesOf(nameOf: (what: string) => string): Names {
  return { limit: nameOf('limit'), remaining: nameOf('remaining'), reset: nameOf('reset') };
}

function headersOf(
  { requests, tokens }: LimitsView,
  names: typeof openai,
  resetOf: (resetMs: number) => string,
): Header[] {
  const headers: Header[] = [];
  if (requests) add(headers, requests, names.requests, resetOf);
  if (tokens) add(headers, tokens, names.tokens, resetOf);
  return headers;
}

function add(
  headers: Header[],
  { limit, remaining, resetMs }: RateView,
  names: Names,
  resetOf: (resetMs: number) => string,
): void {
  headers.push([names.limit, String(limit)], [names.remaining, String(remaining)], [names.reset, resetOf(resetMs)]);
}

/** Returns a duration as OpenAI writes it: `120ms`, `12s`, `1m5s`. */
function durationOf(ms: number): string {
  if (ms <= 0) return '0s';
  if (ms < 1_000) return `${Math.ceil(ms)}ms`;
  const seconds = Math.ceil(ms / 1_000);
  return seconds < 60 ? `${seconds}s` : `${Math.floor(seconds / 60)}m${seconds % 60}s`;
}

/** Returns a time as Anthropic writes it, RFC 3339 in whole seconds. */
function timeOf(wallMs: number): string {
  return new Date(Math.ceil(wallMs / 1_000) * 1_000).toISOString().replace('.000Z', 'Z');
}

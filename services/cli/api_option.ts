/** Options of commands that ask a router over HTTP. */
import { z } from 'zod';
import { option } from '../../shared/base/options.ts';
import { API_KEY } from './router_api.ts';

const ALLOWED = 'HOST:PORT or a URL without a path, for instance 127.0.0.1:8000 or https://router.example:8443';

/** Returns the origin of a router's address or URL; undefined where it is neither. */
function originOf(text: string): string | undefined {
  const isUrl = /^https?:\/\/(\[[^\]]*\]|[^/:@?#\s]+)(:\d{1,5})?\/?$/i.test(text);
  const isAddress = /^(\[[^\]]*\]|[^/:@?#\s]+):\d{1,5}$/.test(text);
  const url = isUrl ? text : `http://${text}`;
  return (isUrl || isAddress) && URL.canParse(url) ? new URL(url).origin : undefined;
}

/** Options that name a router's HTTP API, by its origin, and the key for it. */
export const apiOption = {
  api: option(
    'Network',
    'HOST:PORT|URL',
    z
      .string()
      .refine((text) => originOf(text) !== undefined, ALLOWED)
      .transform((text) => originOf(text) ?? ''),
    'http://127.0.0.1:8000',
    "a router's HTTP API: its --bind, or a URL with https:// where it serves that",
  ),
  api_key: option(
    'Network',
    'KEY',
    z.string().regex(API_KEY, 'printable ASCII without spaces'),
    '',
    "admin key for that API, of the router's --keys file; better in the environment than in a flag",
    { isSecret: true },
  ),
} as const;

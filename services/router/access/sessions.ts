/**
 * Log-ins of the dashboard: a browser that has shown an admin's key once gets a signed cookie, since it sends no header with a page.
 *
 *   penstock_session=NAME.EXPIRY.MAC    MAC = HMAC-SHA256(cluster token, NAME ‖ digest of the key ‖ EXPIRY), EXPIRY in s since 1970
 *
 * The key itself is not in it, and a router keeps nothing of it: every router of the cluster takes it, until it expires or its key is removed.
 * It counts only where the browser says that a page of this server asks, since a page of another port of this host gets the cookie sent, too.
 */
import { createHmac } from 'node:crypto';
import { isSameSecret, sentToken, takenTokens } from '../../../shared/base/cluster_tokens.ts';
import type { Clock } from '../../../shared/base/clock.ts';
import type { AskingHeaders, Caller } from './caller.ts';
import type { Keys, KnownKey } from './keys.ts';

/** Seconds for which a log-in holds: twelve hours. */
const SESSION_S = 43_200;
const COOKIE = 'penstock_session';

/** Dependencies of {@link Sessions}. */
export interface SessionOptions {
  readonly keys: Pick<Keys, 'named'>;
  /** Secrets of the cluster (cluster_tokens.ts), the first of which signs and all of which are taken. */
  readonly secrets: () => string;
  readonly clock: Clock;
}

/** Makes and reads the cookies of log-ins. */
export class Sessions {
  readonly #options: SessionOptions;

  constructor(options: SessionOptions) {
    this.#options = options;
  }

  /** Returns the `set-cookie` header that logs a browser in under a key. */
  begin(known: KnownKey, isSecure: boolean): string {
    const { clock, secrets } = this.#options;
    const expiryS = Math.floor(clock.wallMs() / 1_000) + SESSION_S;
    const mac = macOf(sentToken(secrets()), known, expiryS).toString('base64url');
    const name = Buffer.from(known.caller.key).toString('base64url');
    return `${COOKIE}=${name}.${expiryS}.${mac}; ${attributes(isSecure)}; Max-Age=${SESSION_S}`;
  }

  /** Returns the `set-cookie` header that logs a browser out. */
  end(isSecure: boolean): string {
    return `${COOKIE}=; ${attributes(isSecure)}; Max-Age=0`;
  }

  /** Returns who is logged in; undefined where nobody is, or the request is not of a page of this server. */
  callerOf(headers: AskingHeaders): Caller | undefined {
    const cookie = new RegExp(`(?:^|; *)${COOKIE}=([\\w-]{1,128})\\.(\\d{1,12})\\.([\\w-]{43})(?:;|$)`);
    const [, name = '', expiry = '', mac = ''] = cookie.exec(textOf(headers['cookie'])) ?? [];
    if (name === '' || !isOwnPage(headers)) return undefined;
    const { keys, secrets, clock } = this.#options;
    const known = keys.named(Buffer.from(name, 'base64url').toString());
    const expiryS = Number(expiry);
    if (!known || clock.wallMs() >= expiryS * 1_000) return undefined;
    const given = Buffer.from(mac, 'base64url');
    const isSigned = takenTokens(secrets()).some((secret) => isSameSecret(given, macOf(secret, known, expiryS)));
    return isSigned ? known.caller : undefined;
  }
}

function attributes(isSecure: boolean): string {
  return `Path=/; HttpOnly; SameSite=Strict${isSecure ? '; Secure' : ''}`;
}

function macOf(secret: string, { digest, caller: { key } }: KnownKey, expiryS: number): Buffer {
  return createHmac('sha256', secret)
    .update(`penstock session\0${key}\0${digest.toString('hex')}\0${expiryS}`)
    .digest();
}

/** Whether a browser sends the request for a page of the same origin, or because its user has opened the page. */
function isOwnPage({ host, origin, 'sec-fetch-site': site = 'same-origin' }: AskingHeaders): boolean {
  if (site !== 'same-origin' && site !== 'none') return false;
  if (origin === undefined) return true;
  return URL.canParse(textOf(origin)) && new URL(textOf(origin)).host === textOf(host).toLowerCase();
}

/** Returns a header that is sent once; '' for one that is absent, or sent several times. */
function textOf(header: AskingHeaders[string]): string {
  return typeof header === 'string' ? header : '';
}

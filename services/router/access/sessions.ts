/**
 * Log-ins of the dashboard: a browser that has shown an admin's key once gets a signed cookie, since it sends no header with a page.
 *
 *   penstock_session_CLUSTER=NAME.EXPIRY.MAC    MAC = HMAC-SHA256(cluster token, NAME ‖ digest of the key ‖ EXPIRY), EXPIRY in s since 1970
 *
 * CLUSTER is a digest of the cluster's name, since cookies are a host's, whose ports may have several clusters. The key itself is not in it,
 * and a router keeps nothing of it: every router of the cluster takes it, until it expires or its key is removed. This has its limits:
 *
 *   a copy of the cookie      is taken from any program, also after the log-out, which only removes it from the browser
 *   other ports of this host  get the cookie from the browser, too: a server there can use it. Their pages cannot: Sec-Fetch-Site says whose
 *                             page asks
 *   plain HTTP                beyond loopback browsers send no Sec-Fetch-Site: Origin is compared with Host, and reads have no Origin. HTTPS,
 *                             by the router or a proxy, has this check for all requests, and the cookie is then sent over HTTPS only (Secure)
 */
import { createHash, createHmac } from 'node:crypto';
import { isSameSecret, sentToken, takenTokens } from '../../../shared/base/cluster_tokens.ts';
import type { Clock } from '../../../shared/base/clock.ts';
import type { AskingHeaders, Caller } from './caller.ts';
import type { Keys, KnownKey } from './keys.ts';

/** Seconds for which a log-in holds: twelve hours. */
const SESSION_S = 43_200;
/** Cookies of this name that are looked at (P1): a browser sends one for each path and domain that has set it. */
const MAX_COOKIES = 8;

/** Dependencies of {@link Sessions}. */
export interface SessionOptions {
  readonly keys: Pick<Keys, 'named'>;
  /** Name of the cluster. */
  readonly cluster: string;
  /** Secrets of the cluster (cluster_tokens.ts), the first of which signs and all of which are taken. */
  readonly secrets: () => string;
  readonly clock: Clock;
}

/** Makes and reads the cookies of log-ins. */
export class Sessions {
  readonly #options: SessionOptions;
  readonly #cookie: string;
  readonly #inHeader: RegExp;

  constructor(options: SessionOptions) {
    this.#options = options;
    this.#cookie = `penstock_session_${createHash('sha256').update(options.cluster).digest('hex').slice(0, 8)}`;
    this.#inHeader = new RegExp(`(?:^|; *)${this.#cookie}=([\\w-]{1,128})\\.(\\d{1,12})\\.([\\w-]{43})(?=;|$)`, 'g');
  }

  /** Returns the `set-cookie` header that logs a browser in under a key. */
  begin(known: KnownKey, isSecure: boolean): string {
    const { clock, secrets } = this.#options;
    const expiryS = Math.floor(clock.wallMs() / 1_000) + SESSION_S;
    const mac = macOf(sentToken(secrets()), known, expiryS).toString('base64url');
    const name = Buffer.from(known.caller.key).toString('base64url');
    return `${this.#cookie}=${name}.${expiryS}.${mac}; ${attributes(isSecure)}; Max-Age=${SESSION_S}`;
  }

  /** Returns the `set-cookie` header that logs a browser out. */
  end(isSecure: boolean): string {
    return `${this.#cookie}=; ${attributes(isSecure)}; Max-Age=0`;
  }

  /** Returns who is logged in; undefined where nobody is, or the request is not of a page of this server. */
  callerOf(headers: AskingHeaders): Caller | undefined {
    if (!isOwnPage(headers)) return undefined;
    let numLeft = MAX_COOKIES;
    for (const [, name = '', expiry = '', mac = ''] of textOf(headers['cookie']).matchAll(this.#inHeader)) {
      const caller = this.#callerBy(name, expiry, mac);
      if (caller || --numLeft === 0) return caller;
    }
    return undefined;
  }

  /** Returns whom one cookie logs in; undefined for one that does not hold. */
  #callerBy(name: string, expiry: string, mac: string): Caller | undefined {
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

/**
 * Whether a browser sends the request for a page of the same origin, or because its user has opened the page. Host says nothing where the
 * browser says it itself: a proxy in front may have put another in its place.
 */
export function isOwnPage({ host, origin, 'sec-fetch-site': site }: AskingHeaders): boolean {
  if (site === 'same-origin') return true;
  if (site !== undefined && site !== 'none') return false;
  if (origin === undefined) return true;
  return URL.canParse(textOf(origin)) && new URL(textOf(origin)).host === textOf(host).toLowerCase();
}

/** Returns a header that is sent once; '' for one that is absent, or sent several times. */
function textOf(header: AskingHeaders[string]): string {
  return typeof header === 'string' ? header : '';
}

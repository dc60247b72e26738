/** Requests of commands to the HTTP API of a router: the key that they send, and what to do where one comes to nothing. */
import { messageOf } from '../../shared/base/failure.ts';
import { ConfigError, environmentOf } from '../../shared/base/options.ts';

/** Variable with the key of a router. */
export const API_KEY_VARIABLE = environmentOf('api_key');
/** Characters of a key, which goes into a header. */
export const API_KEY = /^[\x21-\x7e]*$/;

type Environment = Readonly<Record<string, string | undefined>>;

/** Returns the key of a command that reads its own flags: that of `--api-key`, else of the first of these variables that has one. @throws ConfigError for a key that cannot be sent */
export function apiKeyOf(
  flag: string | undefined,
  environment: Environment,
  variables: readonly string[] = [API_KEY_VARIABLE],
): string | undefined {
  const from = flag === undefined ? variables.find((name) => environment[name]) : '--api-key';
  const key = flag ?? environment[from ?? ''];
  // Neither names the key: it is a secret also where it is wrong.
  if (key !== undefined && !API_KEY.test(key))
    throw new ConfigError(`${from}: a key is printable ASCII without spaces`);
  return key;
}

/** Returns the headers that show a key; none without one. */
export function keyHeaders(key: string | undefined): Record<string, string> {
  return key === undefined || key === '' ? {} : { authorization: `Bearer ${key}` };
}

/** Why a request came to nothing; and a sentence that says what to do, where that can be known. */
export interface Trouble {
  readonly why: string;
  readonly cure?: string;
}

/** Returns a trouble as one text. */
export function troubleText({ why, cure }: Trouble): string {
  return cure === undefined ? why : `${why}; ${cure}`;
}

/** Returns why an answer refuses a request; undefined where that has nothing to do with the way of asking. `body`: that of the answer. */
export function refusalOf(status: number, body: string, hasKey: boolean): Trouble | undefined {
  const words = wordsIn(body);
  const said = `HTTP status ${status}${words === '' ? '' : `, ${words}`}`;
  if (status === 401)
    return {
      why: `${hasKey ? 'it does not take this key' : 'it wants a key'} (${said})`,
      cure: `give a key of its --keys file by --api-key or the variable ${API_KEY_VARIABLE}`,
    };
  if (status === 403 && hasKey)
    return {
      why: `the key is no admin key (${said})`,
      cure: 'metrics, /api/* and the dashboard need one: use the key of an entry with `admin: true`',
    };
  if (status === 403) return { why: `it refuses this (${said})` };
  if (status === 400 && /HTTPS/.test(words))
    return { why: `it speaks HTTPS (${said})`, cure: 'write https://HOST:PORT' };
  return undefined;
}

/** Most characters that are shown of the words of an answer. */
const MAX_WORDS = 300;

/** Returns the message in the body of an error, of whichever API; empty where it has none. */
function wordsIn(body: string): string {
  try {
    const { error, message } = JSON.parse(body) as { error?: { message?: unknown }; message?: unknown };
    const words = error?.message ?? message;
    return typeof words === 'string' ? words.slice(0, MAX_WORDS) : '';
  } catch {
    return '';
  }
}

/** Returns what is wrong with the certificate of a server, by the code of the error of a connection; undefined for any other error. */
export function certificateTroubleOf(code: string): Trouble | undefined {
  if (/^CERT_(HAS_EXPIRED|NOT_YET_VALID)$/.test(code))
    return {
      why: `its certificate is not valid now (${code})`,
      cure: 'renew it at the server (--https-cert of a router)',
    };
  if (code === 'ERR_TLS_CERT_ALTNAME_INVALID')
    return { why: 'its certificate is for another host', cure: 'name the server by a host that its certificate has' };
  if (/^(UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|CERT_)/.test(code))
    return {
      why: `its certificate cannot be verified (${code})`,
      cure: 'name the file of the authority that has signed it by the variable NODE_EXTRA_CA_CERTS',
    };
  return undefined;
}

/** Returns why `fetch` got no answer. */
export function connectionTroubleOf(error: unknown): Trouble {
  const { cause = error } = error as { readonly cause?: unknown };
  const { code = '' } = cause as { readonly code?: string };
  if (/^ERR_SSL_(WRONG_VERSION_NUMBER|PACKET_LENGTH_TOO_LONG|HTTP_REQUEST)$/.test(code))
    return { why: 'it speaks no TLS', cure: 'write http://HOST:PORT' };
  return certificateTroubleOf(code) ?? { why: code === '' ? messageOf(cause) : code };
}

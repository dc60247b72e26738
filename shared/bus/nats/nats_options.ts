/** Addresses of NATS servers and credentials for them, in the form that the `nats` library takes. */
import { checkServerIdentity, type PeerCertificate } from 'node:tls';
import { credsAuthenticator, nkeyAuthenticator, type ConnectionOptions } from 'nats';

/**
 * Milliseconds between pings; a server that answers none for twice as long is lost. Short enough that the bus reconnects before its
 * silence makes members lost.
 */
const PING_MS = 700;
const CONNECT_TIMEOUT_MS = 5_000;
const DEFAULT_PORT = 4_222;

/** NATS servers with credentials. Fields that are texts hold the content of files; absent ones are not used. */
export interface NatsServers {
  /** nats:// or tls://, a HOST:PORT each, perhaps with a user and a password, or with a token. */
  readonly urls: readonly string[];
  readonly user?: string;
  readonly password?: string;
  /** Token of a server that has one for all its clients. */
  readonly token?: string;
  readonly nkeySeed?: string;
  readonly credentials?: string;
  /** Certificate authority in PEM; without one the system's are trusted. */
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
}

/** Returns HOST:PORT of each configured server. */
export function addressesOf({ urls }: NatsServers): string[] {
  return urls.map((url) => new URL(url)).map(({ hostname, port }) => `${hostname}:${port || DEFAULT_PORT}`);
}

/** Returns the host of HOST:PORT without the brackets of an IPv6 address. */
function hostOf(address: string): string {
  return address.slice(0, address.lastIndexOf(':')).replace(/^\[|\]$/g, '');
}

/** Returns the library's options for connecting to one server, HOST:PORT: a configured one, or one that a connected server announced. */
export function connectionOptions(servers: NatsServers, address: string): ConnectionOptions {
  const { nkeySeed, credentials, ca, cert, key } = servers;
  const isTls = ca !== undefined || cert !== undefined || servers.urls.some((url) => new URL(url).protocol === 'tls:');
  return {
    servers: [address],
    ...accountOf(servers),
    ...(nkeySeed === undefined ? {} : { authenticator: nkeyAuthenticator(Buffer.from(nkeySeed.trim())) }),
    ...(credentials === undefined ? {} : { authenticator: credsAuthenticator(Buffer.from(credentials)) }),
    ...(isTls
      ? {
          tls: {
            ...(ca === undefined ? {} : { ca }),
            ...(cert === undefined ? {} : { cert }),
            ...(key === undefined ? {} : { key }),
            ...identityCheck(address),
          },
        }
      : {}),
    pingInterval: PING_MS,
    maxPingOut: 2,
    timeout: CONNECT_TIMEOUT_MS,
    reconnect: false,
    noAsyncTraces: true,
  };
}

/** Returns user and password, or the token, as options or a URL have them. A name without a password is a token, as NATS has it. */
function accountOf({ urls, user = '', password = '', token = '' }: NatsServers): ConnectionOptions {
  if (token !== '') return { token };
  if (user !== '') return { user, pass: password };
  const named = urls.map((url) => new URL(url)).find(({ username }) => username !== '');
  if (!named) return {};
  const [name, own] = [named.username, named.password].map(decodeURIComponent);
  if (own === '' && password === '') return { token: name ?? '' };
  return { user: name ?? '', pass: own === '' ? password : (own ?? '') };
}

/**
 * Returns the check of a server's certificate: it counts for the address that is connected to, and no other. For a server that is known by its
 * IP address the library would ask for the name `localhost`.
 */
function identityCheck(address: string): object {
  return {
    checkServerIdentity: (_host: string, certificate: PeerCertificate) =>
      checkServerIdentity(hostOf(address), certificate),
  };
}

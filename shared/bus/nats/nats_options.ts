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
  /** nats:// or tls://, a HOST:PORT each, perhaps with a user and a password. */
  readonly urls: readonly string[];
  readonly user?: string;
  readonly password?: string;
  readonly nkeySeed?: string;
  readonly credentials?: string;
  /** Certificate authority in PEM; without one the system's are trusted. */
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
}

/**
 * Returns the library's options for connecting to the servers. @param discovered HOST:PORT of further servers that a connected one
 * announced
 */
export function connectionOptions(servers: NatsServers, discovered: readonly string[]): ConnectionOptions {
  const { user = '', password = '', nkeySeed, credentials, ca, cert, key } = servers;
  const urls = servers.urls.map((url) => new URL(url));
  const named = urls.find(({ username }) => username !== '');
  const [ownUser, ownPassword] =
    user === '' && named ? [named.username, named.password].map(decodeURIComponent) : [user, password];
  const isTls = ca !== undefined || cert !== undefined || urls.some(({ protocol }) => protocol === 'tls:');
  return {
    servers: [...new Set([...urls.map(({ hostname, port }) => `${hostname}:${port || DEFAULT_PORT}`), ...discovered])],
    ...(ownUser ? { user: ownUser, pass: ownPassword ?? '' } : {}),
    ...(nkeySeed === undefined ? {} : { authenticator: nkeyAuthenticator(Buffer.from(nkeySeed.trim())) }),
    ...(credentials === undefined ? {} : { authenticator: credsAuthenticator(Buffer.from(credentials)) }),
    ...(isTls
      ? {
          tls: {
            ...(ca === undefined ? {} : { ca }),
            ...(cert === undefined ? {} : { cert }),
            ...(key === undefined ? {} : { key }),
            ...identityCheck(urls.map(({ hostname }) => hostname.replace(/^\[|\]$/g, ''))),
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

/**
 * Returns the check of a server's certificate. For a server that is known by its IP address the library passes the name `localhost`,
 * so a certificate of one of the configured IP addresses is accepted too.
 */
function identityCheck(hosts: readonly string[]): object {
  const numbers = hosts.filter((host) => host.includes(':') || /^[\d.]+$/.test(host));
  return {
    checkServerIdentity: (host: string, certificate: PeerCertificate) => {
      const names = host === 'localhost' ? [host, ...numbers] : [host];
      const faults = names.map((name) => checkServerIdentity(name, certificate));
      return faults.includes(undefined) ? undefined : faults.at(-1);
    },
  };
}

/** NATS servers and how a process shows them who it is, as the `nats` library wants it. */
import { checkServerIdentity, type PeerCertificate } from 'node:tls';
import { credsAuthenticator, nkeyAuthenticator, type ConnectionOptions } from 'nats';

/** A server that answers no ping for twice this long is lost: sooner than its silence makes members lost. */
const PING_MS = 700;
const CONNECT_TIMEOUT_MS = 5_000;
const DEFAULT_PORT = 4_222;

/** Texts are what files hold; what is left out is not used. */
export interface NatsServers {
  /** nats:// or tls://, a HOST:PORT each, perhaps with a user and a password. */
  readonly urls: readonly string[];
  readonly user?: string;
  readonly password?: string;
  readonly nkeySeed?: string;
  readonly credentials?: string;
  /** In PEM. Without a certificate authority the system's are trusted. */
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
}

/** @param discovered HOST:PORT of other servers, by the word of those. */
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

/** The library gives no name for a server that is known by its number: then the certificate is to be of one of them. */
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

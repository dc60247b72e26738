/**
 * Explains failures to connect two processes that TLS causes: which certificate it is, and on which side. The transport itself only reports
 * "Failed to connect" or its library's message.
 */
import { X509Certificate } from 'node:crypto';
import { checkServerIdentity, connect, type ConnectionOptions, type TLSSocket } from 'node:tls';
import { Failure, messageOf } from '../../base/failure.ts';
import { described, untimely } from '../certificates.ts';
import type { TlsTexts } from '../tls_texts.ts';

const PROBE_MS = 1_000;
/** Failures of the transport that a certificate may cause. */
const MAY_BE_TLS =
  /certificate|altnames|alert|SSL|TLS|Failed to connect|ECONNRESET|socket hang up|socket disconnected/i;

/**
 * Returns a failure to connect as `unauthenticated`, which retrying does not mend, when the two sides differ in TLS or a certificate
 * is not accepted; otherwise returns it unchanged.
 * @param tls certificates of this process; undefined: it was started without
 * @param nowMs milliseconds since 1970
 */
export async function explained(
  failure: Failure,
  address: string,
  tls: TlsTexts | undefined,
  nowMs: number,
): Promise<Failure> {
  if (failure.code !== 'instance_lost') return failure;
  const why = reasonIn(failure.message.replace(`${address}: `, ''));
  if (tls && /wrong version number|packet length too long|record layer failure/i.test(why)) {
    const cure = 'start it with --tls-cert, --tls-key and --tls-ca too, or this process without';
    return refused(`${address} does not speak TLS, and this process does: ${cure}`, failure);
  }
  if (tls && MAY_BE_TLS.test(why)) {
    const trouble = await certificateTrouble(address, tls, nowMs);
    if (trouble !== undefined) return refused(`${trouble} (${why})`, failure);
  }
  if (!tls && /Failed to connect/.test(why) && (await speaksTls(address))) {
    const cure = 'start it with --tls-cert, --tls-key and --tls-ca';
    return refused(`${address} speaks TLS, and this process does not: ${cure}`, failure);
  }
  return failure;
}

function refused(message: string, cause: Failure): Failure {
  return new Failure('unauthenticated', message, { cause });
}

/** The library's error, without what the transport puts around it. */
function reasonIn(message: string): string {
  return (
    /Last error: (?:Error(?: \[\w+\])?: )?([^]*?)(?:\.? Resolution note[^]*)?$/.exec(message)?.[1]?.trim() ?? message
  );
}

/**
 * Connects to a server and says which certificate keeps the two apart: that of the server, or that of this process, which the server refuses.
 * Undefined where none does.
 */
async function certificateTrouble(address: string, tls: TlsTexts, nowMs: number): Promise<string | undefined> {
  const own = new X509Certificate(tls.cert);
  const ownTime = untimely(own, nowMs);
  const met = await meet(address, tls);
  if (met === undefined) return undefined;
  const { host, certificate: theirs, authorization } = met;
  if (theirs) {
    const theirTime = untimely(theirs, nowMs);
    const whose = `the certificate of ${address}, ${described(theirs)},`;
    if (theirTime !== undefined) return `${whose} ${theirTime}: renew it there (--tls-cert)`;
    if (authorization !== undefined)
      return `${whose} is not signed by an authority in the --tls-ca of this process (${authorization}): both sides need the same`;
    const named = checkServerIdentity(host, theirs.toLegacyObject());
    if (named)
      return `${whose} does not name that host (${messageOf(named)}): every certificate must name the host at which its process is reached`;
  }
  if (!met.isRefused) return undefined;
  const whose = `the certificate of this process, ${described(own)},`;
  if (ownTime !== undefined) return `${whose} ${ownTime}, so ${address} refuses it: renew it here (--tls-cert)`;
  return `${address} refuses ${whose.slice(0, -1)}: it must be signed by an authority in the --tls-ca there`;
}

/** A handshake with a server. */
interface Meeting {
  readonly host: string;
  readonly certificate: X509Certificate | undefined;
  /** Why the server's certificate is not trusted; undefined: it is. */
  readonly authorization: string | undefined;
  /** Whether the server ended the connection after its part of the handshake. */
  readonly isRefused: boolean;
}

/** Meets a server with the certificate of this process. Undefined where no handshake took place. */
function meet(address: string, tls: TlsTexts): Promise<Meeting | undefined> {
  const { host, port } = placeOf(address);
  return new Promise((resolve) => {
    const options: ConnectionOptions = { host, port, ...tls, rejectUnauthorized: false, ALPNProtocols: ['h2'] };
    const socket = connect(options);
    let met: Omit<Meeting, 'isRefused'> | undefined;
    const end = (isRefused: boolean): void => {
      socket.destroy();
      resolve(met && { ...met, isRefused });
    };
    socket.setTimeout(PROBE_MS, () => {
      end(false);
    });
    socket.once('secureConnect', () => {
      met = { host, certificate: socket.getPeerX509Certificate(), authorization: errorOf(socket) };
    });
    // A server that takes the connection speaks first.
    socket.once('data', () => {
      end(false);
    });
    socket.once('error', () => {
      end(true);
    });
    socket.once('close', () => {
      end(true);
    });
  });
}

/** Returns why the certificate of the other side is not trusted. The library has a text there, whatever its type says. */
function errorOf({ authorizationError: error }: TLSSocket): string | undefined {
  return (error as Error | string | null | undefined) ? messageOf(error) : undefined;
}

function placeOf(address: string): { readonly host: string; readonly port: number } {
  const colon = address.lastIndexOf(':');
  return { host: address.slice(0, colon).replace(/^\[|\]$/g, ''), port: Number(address.slice(colon + 1)) };
}

/**
 * Whether the server at `address` speaks TLS. A server that requires a client certificate completes its part of the handshake, or
 * sends an alert, before it refuses.
 */
function speaksTls(address: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ ...placeOf(address), rejectUnauthorized: false });
    const end = (isTls: boolean): void => {
      socket.destroy();
      resolve(isTls);
    };
    socket.setTimeout(PROBE_MS, () => {
      end(false);
    });
    socket.once('secureConnect', () => {
      end(true);
    });
    socket.once('error', (error: Error & { code?: string }) => {
      end(/alert/.test(error.message));
    });
  });
}

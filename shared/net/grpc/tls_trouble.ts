/**
 * Explains failures to connect two processes that TLS causes. The transport itself only reports "Failed to connect" or its library's
 * message.
 */
import { connect } from 'node:tls';
import { Failure } from '../../base/failure.ts';

const PROBE_MS = 1_000;

/**
 * Returns a failure to connect as `unauthenticated`, which retrying does not mend, when the two sides differ in TLS or a certificate
 * is not accepted; otherwise returns it unchanged.
 * @param hasTls this process was started with certificates
 */
export async function explained(failure: Failure, address: string, hasTls: boolean): Promise<Failure> {
  if (failure.code !== 'instance_lost') return failure;
  const why = reasonIn(failure.message.replace(`${address}: `, ''));
  if (hasTls && /wrong version number|packet length too long|record layer failure/i.test(why)) {
    const cure = 'start it with --tls-cert, --tls-key and --tls-ca too, or this process without';
    return refused(`${address} does not speak TLS, and this process does: ${cure}`, failure);
  }
  if (hasTls && /certificate|altnames|alert unknown ca/i.test(why)) {
    const cure =
      'every certificate must be signed by the authority in --tls-ca, and name the host at which its process is reached';
    return refused(`${address}: ${why} (${cure})`, failure);
  }
  if (!hasTls && /Failed to connect/.test(why) && (await speaksTls(address))) {
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
 * Whether the server at `address` speaks TLS. A server that requires a client certificate completes its part of the handshake, or
 * sends an alert, before it refuses.
 */
function speaksTls(address: string): Promise<boolean> {
  const colon = address.lastIndexOf(':');
  const host = address.slice(0, colon).replace(/^\[|\]$/g, '');
  return new Promise((resolve) => {
    const socket = connect({ host, port: Number(address.slice(colon + 1)), rejectUnauthorized: false });
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

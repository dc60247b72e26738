/**
 * Why a connection between two processes cannot be made where TLS is the reason, in words: the transport says "Failed to connect", or
 * what its library says.
 */
import { connect } from 'node:tls';
import { Failure } from '../../base/failure.ts';

const PROBE_MS = 1_000;

/**
 * A failure to connect as what it is: `unauthenticated`, which trying again does not mend, where the two sides differ in TLS or a
 * certificate is not accepted; else as it was.
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
    const cure = 'a certificate is of the authority in --tls-ca, and names the host that its process is reached at';
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

/** A server that wants a certificate finishes its part of the handshake first. */
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

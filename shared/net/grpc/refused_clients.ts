/** Clients whose certificate a server refuses: the transport ends their connections without a word. */
import type { Socket } from 'node:net';
import type { Server } from '@grpc/grpc-js';

/** Called with the address of a client and why its certificate is refused. */
export type OnRefusedClient = (from: string, why: string) => void;

/** The servers below a server of the library, which has no other way to hear of a failed handshake. */
interface Inner {
  readonly http2Servers?: ReadonlyMap<
    {
      on(event: 'connection', listener: (socket: Socket) => void): unknown;
      on(event: 'tlsClientError', listener: (error: Error, socket: { authorizationError?: unknown }) => void): unknown;
    },
    unknown
  >;
}

/** Connections that are watched (P1). */
const MAX_WATCHED = 1_024;

const reasons: Readonly<Record<string, string>> = {
  CERT_HAS_EXPIRED: 'its certificate has expired (--tls-cert there)',
  CERT_NOT_YET_VALID: 'its certificate is not valid yet (--tls-cert there, or a clock is wrong)',
};

/** Calls `onRefused` for each connection of a server that ends because of the client's certificate. */
export function watchRefusedClients(server: Server, onRefused: OnRefusedClient): void {
  const { http2Servers } = server as unknown as Inner;
  for (const inner of http2Servers?.keys() ?? []) {
    const addresses = new Map<Socket, string>();
    inner.on('connection', (socket) => {
      if (addresses.size >= MAX_WATCHED) return;
      addresses.set(socket, `${socket.remoteAddress ?? '?'}:${socket.remotePort ?? '?'}`);
      socket.once('close', () => setImmediate(() => addresses.delete(socket)));
    });
    inner.on('tlsClientError', (error, { authorizationError: code }) => {
      const text = typeof code === 'string' ? code : '';
      const isMissing = /PEER_DID_NOT_RETURN_A_CERTIFICATE/.test(String((error as { code?: unknown }).code));
      if (text === '' && !isMissing) return;
      // The connection is closed by now.
      const from = [...addresses].find(([socket]) => socket.destroyed)?.[1] ?? 'a client';
      const other = `its certificate is not signed by an authority in --tls-ca (${text})`;
      onRefused(from, isMissing ? 'it shows no certificate' : (reasons[text] ?? other));
    });
  }
}

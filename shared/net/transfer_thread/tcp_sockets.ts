/**
 * Sockets over TCP, with or without TLS. Reading uses Node's `onread`: bytes from the kernel, deciphered with TLS, go straight into
 * the memory that the listener named.
 */
import { connect, createServer, type Socket } from 'node:net';
import { connect as connectTls, createServer as createTlsServer, type Server as TlsServer } from 'node:tls';
import type { Current } from '../../base/current.ts';
import { messageOf } from '../../base/failure.ts';
import type { TlsTexts } from '../tls_texts.ts';
import type { ByteSocket, SocketListener, Sockets } from './sockets.ts';

/** Milliseconds of silence before keep-alive probes. The bus notices a vanished peer first; this is the transport's own safety net. */
const KEEPALIVE_MS = 10_000;

/** Milliseconds that a TLS handshake may take, and the most connections in all (P1). */
const HANDSHAKE_TIMEOUT_MS = 5_000;
const MAX_CONNECTIONS = 2_048;

/** Returns sockets over TCP: plain, or with `tls` encrypted and with both ends verified, each connection by the texts of its time. */
export function tcpSockets(tls?: Current<TlsTexts>): Sockets {
  return {
    listen: (host, port, onSocket) => listen(host, port, tls, onSocket),
    connect: (host, port, timeoutMs, listener) => connectTo(host, port, timeoutMs, tls?.value, listener),
  };
}

function listen(
  host: string,
  port: number,
  tls: Current<TlsTexts> | undefined,
  onSocket: (socket: ByteSocket) => SocketListener,
): Promise<number> {
  const options = { noDelay: true, keepAlive: true, keepAliveInitialDelay: KEEPALIVE_MS };
  const take = (socket: Socket): void => {
    const listener = onSocket(endOf(socket));
    // Node reads into named memory on the side that connects only; what comes on this side is small.
    socket.on('data', (data: Buffer) => {
      for (let from = 0; from < data.length && !socket.destroyed;) {
        const to = listener.into();
        const count = data.copy(to, 0, from, Math.min(data.length, from + to.length));
        from += count;
        listener.onBytes(count);
      }
    });
    notifyEnd(socket, listener);
  };
  const server = tls ? createRenewedServer(tls, options, take) : createServer(options, take);
  server.maxConnections = MAX_CONNECTIONS;
  return new Promise((resolve, reject) => {
    server.on('error', (error) => {
      reject(new Error(`cannot listen on ${host}:${port}: ${messageOf(error)}`));
    });
    server.listen({ host, port }, () => {
      const bound = server.address();
      resolve(typeof bound === 'object' && bound ? bound.port : port);
    });
    // A listening server must not keep the process alive.
    server.unref();
  });
}

/** Returns a server that verifies its clients, and shows each the certificate of that time. */
function createRenewedServer(tls: Current<TlsTexts>, options: object, take: (socket: Socket) => void): TlsServer {
  const verified = { requestCert: true, rejectUnauthorized: true, handshakeTimeout: HANDSHAKE_TIMEOUT_MS };
  const server = createTlsServer({ ...options, ...tls.value, ...verified }, take);
  const end = tls.onReplace((texts) => {
    server.setSecureContext({ ...texts });
  });
  server.once('close', end);
  return server;
}

function connectTo(
  host: string,
  port: number,
  timeoutMs: number,
  tls: TlsTexts | undefined,
  listener: SocketListener,
): Promise<ByteSocket> {
  return new Promise((resolve, reject) => {
    const options = {
      host,
      port,
      noDelay: true,
      keepAlive: true,
      keepAliveInitialDelay: KEEPALIVE_MS,
      onread: {
        buffer: () => listener.into(),
        callback: (count: number) => {
          if (!socket.destroyed) listener.onBytes(count);
          return true;
        },
      },
    };
    const socket: Socket = tls ? connectTls({ ...options, ...tls }) : connect(options);
    socket.setTimeout(timeoutMs, () => {
      socket.destroy(new Error(`${host}:${port} does not answer within ${timeoutMs} ms`));
    });
    const refuse = (error: Error): void => {
      reject(error);
    };
    socket.once('error', refuse);
    socket.once(tls ? 'secureConnect' : 'connect', () => {
      socket.setTimeout(0);
      socket.off('error', refuse);
      notifyEnd(socket, listener);
      resolve(endOf(socket));
    });
  });
}

/** Bytes after which corked writes are flushed at once. Smaller amounts go out in one system call, after the current microtask. */
const WRITTEN_TOGETHER = 1 << 20;

function endOf(socket: Socket): ByteSocket {
  let [isCorked, numCorked] = [false, 0];
  const uncork = (): void => {
    if (!isCorked) return;
    [isCorked, numCorked] = [false, 0];
    socket.uncork();
  };
  return {
    write: (parts, onWritten) => {
      if (!isCorked) {
        isCorked = true;
        socket.cork();
        queueMicrotask(uncork);
      }
      parts.forEach((part, i) => {
        numCorked += part.length;
        if (i + 1 < parts.length || !onWritten) socket.write(part);
        else
          socket.write(part, (error) => {
            // A failed write is reported once, when the socket has closed.
            if (!error) onWritten();
          });
      });
      if (numCorked >= WRITTEN_TOGETHER) uncork();
    },
    destroy: () => {
      socket.destroy();
    },
  };
}

function notifyEnd(socket: Socket, listener: SocketListener): void {
  let reason = 'the other side closed it';
  socket.on('error', (error) => {
    reason = messageOf(error);
  });
  socket.on('end', () => socket.destroy());
  socket.on('close', () => {
    listener.onClosed(reason);
  });
}

/** Sockets over TCP. Reading is by `onread`: the kernel's bytes go straight into the memory that was named. */
import { connect, createServer, type Socket } from 'node:net';
import { messageOf } from '../../base/failure.ts';
import type { ByteSocket, SocketListener, Sockets } from './sockets.ts';

/** A peer that is gone without a word is noticed by its bus; this is the transport's own safety net. */
const KEEPALIVE_MS = 10_000;

export const tcpSockets: Sockets = {
  listen(host, port, onSocket) {
    const server = createServer({ noDelay: true, keepAlive: true, keepAliveInitialDelay: KEEPALIVE_MS }, (socket) => {
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
      tellEnd(socket, listener);
    });
    return new Promise((resolve, reject) => {
      server.on('error', (error) => {
        reject(new Error(`cannot listen on ${host}:${port}: ${messageOf(error)}`));
      });
      server.listen({ host, port }, () => {
        const bound = server.address();
        resolve(typeof bound === 'object' && bound ? bound.port : port);
      });
      // The process ends when its work does.
      server.unref();
    });
  },

  connect(host, port, timeoutMs, listener) {
    return new Promise((resolve, reject) => {
      const socket = connect({
        ...{ host, port, noDelay: true, keepAlive: true, keepAliveInitialDelay: KEEPALIVE_MS },
        onread: {
          buffer: () => listener.into(),
          callback: (count) => {
            if (!socket.destroyed) listener.onBytes(count);
            return true;
          },
        },
      });
      socket.setTimeout(timeoutMs, () => {
        socket.destroy(new Error(`${host}:${port} does not answer within ${timeoutMs} ms`));
      });
      const refuse = (error: Error): void => {
        reject(error);
      };
      socket.once('error', refuse);
      socket.once('connect', () => {
        socket.setTimeout(0);
        socket.off('error', refuse);
        tellEnd(socket, listener);
        resolve(endOf(socket));
      });
    });
  },
};

function endOf(socket: Socket): ByteSocket {
  return {
    write: (parts, onWritten) => {
      socket.cork();
      parts.forEach((part, i) => {
        if (i + 1 < parts.length || !onWritten) socket.write(part);
        else
          socket.write(part, (error) => {
            // One that failed is told of once, when it has closed.
            if (!error) onWritten();
          });
      });
      socket.uncork();
    },
    destroy: () => {
      socket.destroy();
    },
  };
}

function tellEnd(socket: Socket, listener: SocketListener): void {
  let reason = 'the other side closed it';
  socket.on('error', (error) => {
    reason = messageOf(error);
  });
  socket.on('end', () => socket.destroy());
  socket.on('close', () => {
    listener.onClosed(reason);
  });
}

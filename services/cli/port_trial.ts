/** Whether an address of this machine can be listened at. */
import { createServer } from 'node:net';

/** Listens on HOST:PORT for a moment. Returns the code of the error that forbids it; undefined when nothing does. */
export function listenError(address: string): Promise<string | undefined> {
  const at = address.lastIndexOf(':');
  const port = Number(address.slice(at + 1));
  const host = address.slice(0, at).replace(/^\[(.*)\]$/, '$1');
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', (error: NodeJS.ErrnoException) => {
      resolve(error.code ?? error.message);
    });
    server.listen({ port, host, exclusive: true }, () => {
      server.close(() => {
        resolve(undefined);
      });
    });
  });
}

/** HTTP server of a process's own `/metrics`, for Prometheus. */
import { createServer } from 'node:http';
import { messageOf } from '../../shared/base/failure.ts';
import { hostRefusal } from '../../shared/net/page_host.ts';
import type { ServeMetrics } from '../../shared/node/role.ts';

/** Most connections at once (P1): a few scrapers. */
const MAX_CONNECTIONS = 16;
/** Milliseconds in which a request has to arrive. */
const REQUEST_MS = 10_000;
/** Names of pages that may read metrics: none but those that are this machine's. */
const NOBODY: ReadonlySet<string> = new Set();
const TYPE = 'text/plain; version=0.0.4; charset=utf-8';

/** Serves `text` at `GET /metrics`; any other path is answered with 404, a failure of `text` with 500. */
export const serveMetrics: ServeMetrics = async (bind, text) => {
  const server = createServer({ requestTimeout: REQUEST_MS, headersTimeout: REQUEST_MS }, (request, response) => {
    const answer = (status: number, body: string): void => {
      response.writeHead(status, { 'content-type': TYPE }).end(request.method === 'HEAD' ? undefined : body);
    };
    const refusal = hostRefusal(request.headers.host ?? '', request.socket.localAddress, NOBODY);
    if (refusal !== undefined) {
      answer(403, `${refusal}\n`);
      return;
    }
    const path = (request.url ?? '').replace(/\?.*$/, '');
    if (path !== '/metrics' || (request.method !== 'GET' && request.method !== 'HEAD')) {
      answer(404, 'there is GET /metrics\n');
      return;
    }
    text().then(
      (body) => {
        answer(200, body);
      },
      (error: unknown) => {
        answer(500, `${messageOf(error)}\n`);
      },
    );
  });
  server.maxConnections = MAX_CONNECTIONS;
  const [host, port] = [
    bind.slice(0, bind.lastIndexOf(':')).replace(/^\[(.*)\]$/, '$1'),
    bind.slice(bind.lastIndexOf(':') + 1),
  ];
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error) => {
      reject(
        new Error(
          `cannot serve metrics on ${bind}: ${messageOf(error)}; choose another address with --metrics-bind or end what uses this one`,
        ),
      );
    });
    server.listen(Number(port), host, resolve);
  });
  // A connection that cannot be accepted, for want of file descriptors, is the scraper's loss: the process goes on.
  server.on('error', () => undefined);
  const bound = server.address();
  const at = typeof bound === 'object' && bound ? bound.port : port;
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${at}/metrics`,
    close: () =>
      new Promise((resolve) => {
        server.close(() => {
          resolve();
        });
        server.closeAllConnections();
      }),
  };
};

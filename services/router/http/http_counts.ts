/** Counts the requests of the HTTP server by route and status. */
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Clock } from '../../../shared/base/clock.ts';
import type { HttpSeries } from '../metrics/http_series.ts';

/** Paths that no client of the API requests: probes, metrics and the dashboard, which vLLM's server leaves out too. */
const UNCOUNTED = /^\/(metrics|health|v1\/health|ping|load|version|server_info|dashboard.*|api\/.*|favicon\.ico)?$/;
/** Status of a request whose client left before an answer began, as proxies log it. */
export const LEFT = 499;

/** Routes of a server, as far as requests are counted by them. */
interface CountedRoutes {
  /** Paths that are counted wherever they are. */
  readonly clientPaths: ReadonlySet<string>;
  /** Returns the route of a path, or undefined for an unknown one. */
  readonly routeOf: (path: string) => string | undefined;
}

/** Counts every request of the server when its answer ends. */
export function countRequests(
  server: Server,
  series: HttpSeries,
  clock: Clock,
  { clientPaths, routeOf }: CountedRoutes,
): void {
  server.prependListener('request', ({ url = '', method = '' }: IncomingMessage, response: ServerResponse) => {
    const queryAt = url.indexOf('?');
    const path = queryAt < 0 ? url : url.slice(0, queryAt);
    if (UNCOUNTED.test(path) && !clientPaths.has(path)) return;
    const beganMs = clock.nowMs();
    response.once('close', () => {
      const status = response.headersSent ? response.statusCode : LEFT;
      series.observe(routeOf(path) ?? 'none', method, status, (clock.nowMs() - beganMs) / 1_000);
    });
  });
}

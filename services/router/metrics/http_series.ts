/** Series of HTTP requests by status class and route, with the names and labels that vLLM's server exports. */
import { Registry } from 'prom-client';
import { BucketCounts } from '../../../shared/base/bucket_counts.ts';
import { CollectedMetric, histogramSamples } from '../../../shared/node/metrics/collected_metric.ts';

/** Bounds of the instrumentation that vLLM uses, in seconds. */
const SECONDS = [0.1, 0.5, 1];

interface Route {
  readonly handler: string;
  readonly method: string;
  readonly seconds: BucketCounts;
  /** Requests by status class, such as `2xx`. */
  readonly statuses: Map<string, number>;
}

/** Counts of the requests that were answered. */
export class HttpSeries {
  readonly registry = new Registry();
  /** Counts by method and route, bounded by the routes of the server (P1). */
  readonly #routes = new Map<string, Route>();

  constructor() {
    const requests = {
      name: 'http_requests_total',
      help: 'HTTP requests by route, method and status class; probes, metrics and the dashboard are left out',
    };
    new CollectedMetric(this.registry, 'counter', { ...requests, labelNames: ['handler', 'status', 'method'] }, () =>
      [...this.#routes.values()].flatMap(({ handler, method, statuses }) =>
        [...statuses].map(([status, value]) => ({ labels: { handler, status, method }, value })),
      ),
    );
    const name = 'http_request_duration_seconds';
    const help = 'from an HTTP request to the end of its answer, streams included';
    new CollectedMetric(this.registry, 'histogram', { name, help, labelNames: ['handler', 'method'] }, () =>
      [...this.#routes.values()].flatMap(({ handler, method, seconds }) =>
        histogramSamples(name, { handler, method }, SECONDS, seconds.state),
      ),
    );
  }

  /** Records an answered request; `handler` is its route, or `none` for a path that the server does not have. */
  observe(handler: string, method: string, status: number, seconds: number): void {
    const key = `${method} ${handler}`;
    let route = this.#routes.get(key);
    if (!route) {
      route = { handler, method, seconds: new BucketCounts(SECONDS), statuses: new Map() };
      this.#routes.set(key, route);
    }
    const statusClass = `${Math.floor(status / 100)}xx`;
    route.statuses.set(statusClass, (route.statuses.get(statusClass) ?? 0) + 1);
    route.seconds.observe(seconds);
  }
}

/**
 * The text of `/metrics`: series of the router (its requests, its index, its process) and series of the cluster (instances and stores, from their
 * heartbeats). Every router exports the whole cluster, so with several routers Prometheus scrapes the cluster from one of them.
 */
import { Registry } from 'prom-client';
import type { Clock } from '../../../shared/base/clock.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import { clusterMetrics, routerMetrics, type Observed } from './cluster_metrics.ts';
import { HttpSeries } from './http_series.ts';
import { mergeMetrics } from './merge_metrics.ts';
import type { RouterMetrics } from './metrics.ts';
import type { TenantSeries } from './tenant_series.ts';

/** Parts of `/metrics`: what the router itself does, and the instances and stores of the cluster. */
export const scopes = ['router', 'cluster'] as const;
/** A part of `/metrics`. */
export type Scope = (typeof scopes)[number];

/** Most milliseconds that a scrape waits for heartbeats: the interval at which they are sent, and a margin. */
const MAX_WAIT_MS = 700;
/** Milliseconds after which a busy instance's heartbeat counts a request that ended: the longest that a change of the load waits. */
const SETTLED_MS = 100;
const POLL_MS = 10;

/** Sources of {@link Exposition}. */
export interface ExpositionOptions extends Observed {
  readonly clock: Clock;
  /** Metrics of the models that are served. */
  readonly models: () => readonly RouterMetrics[];
  readonly tenants?: Pick<TenantSeries, 'registry' | 'isEmpty'> | undefined;
}

/** Writes the series of a router and of its cluster as Prometheus text. */
export class Exposition {
  static readonly contentType = Registry.PROMETHEUS_CONTENT_TYPE;
  /** Counts of the HTTP server. */
  readonly http = new HttpSeries();
  readonly #options: ExpositionOptions;
  /** Made at the first scrape: prom-client watches the process from then on. */
  #registries: { readonly cluster: Registry; readonly router: Registry } | undefined;

  constructor(options: ExpositionOptions) {
    this.#options = options;
  }

  /** Returns the series of one scope, or of both. With those of the cluster it waits until heartbeats count what has ended, at most 0.7 s. */
  async text(scope?: Scope): Promise<string> {
    if (scope !== 'router') await this.#heard();
    this.#registries ??= { cluster: clusterMetrics(this.#options.view), router: routerMetrics(this.#options) };
    const { cluster, router } = this.#registries;
    const { tenants } = this.#options;
    const own = (): Promise<string>[] => [
      ...this.#options.models().map((model) => model.text()),
      this.http.registry.metrics(),
      ...(tenants && !tenants.isEmpty ? [tenants.registry.metrics()] : []),
      router.metrics(),
    ];
    const parts = scope === 'cluster' ? [] : await Promise.all(own());
    if (scope !== 'router') parts.push(...(await this.#inTurns(cluster)));
    return mergeMetrics(parts);
  }

  /** Returns the text of each metric of a registry. Other work has its turn between two: a thousand members have 40,000 samples. */
  async #inTurns(registry: Registry): Promise<string[]> {
    const texts: string[] = [];
    for (const { name } of registry.getMetricsAsArray()) {
      texts.push(await registry.getSingleMetricAsString(name));
      await this.#options.clock.turn();
    }
    return texts;
  }

  /** Resolves when the heartbeats that the router has count every request that ended before the call, or after MAX_WAIT_MS. */
  async #heard(): Promise<void> {
    const { clock, models, view } = this.#options;
    const untilMs = clock.nowMs() + MAX_WAIT_MS;
    let open = models().flatMap((model) => [...model.ended()]);
    for (;;) {
      // Listed once per look: with a thousand engines a search for each of them would be a million steps.
      const members = new Map(view.all().map((instance) => [instance.member.name, instance]));
      open = open.filter(([engine, endedMs]) => {
        const instance = members.get(engine);
        return instance !== undefined && !counts(instance, endedMs);
      });
      if (open.length === 0 || clock.nowMs() >= untilMs) return;
      await clock.sleep(POLL_MS);
    }
  }
}

/** Whether the last heartbeat of an instance was sent after a request had ended there. */
function counts({ lastHeardMs, load }: Instance, endedMs: number): boolean {
  const isIdle = load !== undefined && load.running + load.waiting === 0;
  return isIdle ? lastHeardMs >= endedMs : lastHeardMs >= endedMs + SETTLED_MS;
}

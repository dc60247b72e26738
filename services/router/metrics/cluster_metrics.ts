/**
 * Series of `/metrics` that describe the cluster, and those of the router's own process. Every router knows the whole cluster, so the series of
 * instances are the same at each; what a router says of itself is its own.
 */
import { Counter, Gauge, Registry } from 'prom-client';
import type { ClusterBus } from '../../../shared/bus/cluster_bus.ts';
import { addInstanceSeries } from '../../../shared/node/metrics/instance_series.ts';
import { addProcessSeries } from '../../../shared/node/metrics/process_metrics.ts';
import type { ClusterView } from '../cluster/cluster_view.ts';
import type { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';

/** Sources that the router's own metrics are read from. */
export interface Observed {
  readonly view: ClusterView;
  readonly index: PrefixIndex;
  readonly bus: ClusterBus;
  /** Lines that the audit log has dropped; undefined without `--audit-log`. */
  readonly numAuditDropped?: (() => number) | undefined;
}

const roles = ['prefill', 'decode', 'store'] as const;

/** Metrics of the instances and stores of the cluster, from their heartbeats. */
export function clusterMetrics(view: ClusterView): Registry {
  const registry = new Registry();
  addInstanceSeries(registry, () =>
    view.all().map(({ member, model, load, registration }) => ({ member, model, load, engine: registration.engine })),
  );
  new Gauge({
    name: 'penstock_instances',
    help: 'processes in the cluster that can be reached',
    labelNames: ['role'],
    registers: [registry],
    collect() {
      for (const role of roles) this.set({ role }, view.of(role).filter(({ isCounted }) => isCounted).length);
    },
  });
  return registry;
}

/** Metrics of this router: its prefix index, its bus, and its process's memory, time and event loop. */
export function routerMetrics({ view, index, bus, numAuditDropped = () => 0 }: Observed): Registry {
  const registry = new Registry();
  addProcessSeries(registry);
  const registers = [registry];
  const gauge = (name: string, help: string, value: () => number): void => {
    new Gauge({
      name,
      help,
      registers,
      collect() {
        this.set(value());
      },
    });
  };
  gauge('penstock_index_keys', 'block keys in the prefix index', () => index.size);
  gauge('penstock_index_bytes', 'bytes of the prefix index', () => index.bytes);
  gauge('penstock_index_dropped', 'block events that the prefix index had no room for', () => index.numDropped);
  gauge('penstock_bus_connected', '1 while this router is connected to the bus, else 0', () =>
    bus.isConnected ? 1 : 0,
  );
  const counter = (name: string, help: string, value: () => number): void => {
    new Counter({
      name,
      help,
      registers,
      collect() {
        this.reset();
        this.inc(value());
      },
    });
  };
  counter(
    'penstock_bus_unverified_total',
    'dropped bus messages: sealed under another cluster token, or sent by another version',
    () => bus.numUnverified,
  );
  counter(
    'penstock_bus_replayed_total',
    'dropped bus messages: they had come before, came too late, or their sender does not answer',
    () => bus.numReplayed,
  );
  counter(
    'penstock_audit_dropped_total',
    'lines that the audit log lacks because its file could not be written; above 0 is an alarm',
    numAuditDropped,
  );
  gauge(
    'penstock_routers',
    'routers of the cluster that are heard, this one included',
    () => 1 + view.otherRouters.length,
  );
  return registry;
}

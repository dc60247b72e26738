/**
 * Series of `/metrics` that describe the cluster and the router's process: instances and their tiers, the prefix index, the bus. Values are read at each
 * request. A series of an engine carries the name of its own model; what is of no model, a store for instance, carries none.
 */
import { collectDefaultMetrics, Counter, Gauge, Registry } from 'prom-client';
import type { ClusterBus } from '../../../shared/bus/cluster_bus.ts';
import type { InstanceLoad, StateSlots, TierStats } from '../../../shared/protocol/membership.ts';
import type { ClusterView } from '../cluster/cluster_view.ts';
import type { Instance } from '../cluster/instance.ts';
import type { PrefixIndex } from '../cluster/prefix_index.ts';

/** Sources that the cluster's metrics are read from. */
export interface Observed {
  readonly view: ClusterView;
  readonly index: PrefixIndex;
  readonly bus: ClusterBus;
}

type Labels = Record<string, string>;
type Collect = (set: (labels: Labels, value: number) => void) => void;
type Add = (name: string, help: string, labelNames: string[], collect: Collect) => void;

interface Adders {
  readonly gauge: Add;
  /** Adds a counter whose value the instance counts from its own start; Prometheus expects counters to restart at zero. */
  readonly counter: Add;
}

interface Metric {
  reset(): void;
  inc(labels: Labels, value: number): void;
}

/** Returns a collect callback that resets the metric first, so that instances that have left have no series. */
function anew(collect: Collect) {
  return function (this: Metric): void {
    this.reset();
    collect((labels, value) => {
      this.inc(labels, value);
    });
  };
}

/** Metrics of the cluster, and this process's memory, time and event loop. */
export function clusterMetrics({ view, index, bus }: Observed): Registry {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  const adders: Adders = {
    gauge: (name, help, labelNames, collect) => {
      new Gauge({ name, help, labelNames, registers: [registry], collect: anew(collect) });
    },
    counter: (name, help, labelNames, collect) => {
      new Counter({ name, help, labelNames, registers: [registry], collect: anew(collect) });
    },
  };
  addInstances(adders, view);
  addTiers(adders, view);
  addStateSlots(adders, view);
  addIndex(adders, index);
  addBus(adders, bus, view);
  return registry;
}

/** Labels of a series that belongs to an instance. */
function labelsOf({ member, model }: Instance): Labels {
  return { engine: member.name, role: member.role, ...(model === undefined ? {} : { model_name: model }) };
}

function addInstances({ gauge, counter }: Adders, view: ClusterView): void {
  const labels = ['engine', 'role', 'model_name'];
  const per =
    (isWanted: (instance: Instance) => boolean) =>
    (value: (load: InstanceLoad) => number | undefined): Collect =>
    (set) => {
      for (const instance of view.all().filter(isWanted)) {
        const found = instance.load && value(instance.load);
        if (found !== undefined) set(labelsOf(instance), found);
      }
    };
  // vLLM's metrics describe engines, so stores have none.
  const perEngine = per(({ member }) => member.role !== 'store');
  const perInstance = per(() => true);
  gauge(
    'vllm:num_requests_running',
    'sequences that hold device blocks',
    labels,
    perEngine(({ running }) => running),
  );
  gauge(
    'vllm:num_requests_waiting',
    'sequences that wait',
    labels,
    perEngine(({ waiting }) => waiting),
  );
  for (const name of ['vllm:kv_cache_usage_perc', 'vllm:gpu_cache_usage_perc']) {
    gauge(
      name,
      'device blocks in use, of all; 1 is full',
      labels,
      perEngine(({ kvUsage }) => kvUsage),
    );
  }
  counter(
    'vllm:num_preemptions_total',
    'sequences that were preempted: they lost their device blocks to another',
    labels,
    perEngine(({ preemptions }) => preemptions),
  );
  counter(
    'penstock_divergent_blocks_total',
    'offered blocks whose bytes differ from those in a store, though both were computed with the same numerics; any is an alarm',
    labels,
    perInstance(({ divergent }) => divergent),
  );
  counter(
    'penstock_fetched_bytes_total',
    'bytes of blocks that came from another process, by way: shared memory, a plain socket, a call',
    [...labels, 'way'],
    (set) => {
      for (const instance of view.all())
        for (const [way, value] of Object.entries(instance.load?.fetched ?? {}))
          set({ ...labelsOf(instance), way }, value);
    },
  );
  gauge(
    'penstock_step_seconds',
    'duration of the last step',
    labels,
    perInstance(({ lastStepMs }) => lastStepMs / 1_000),
  );
  gauge('penstock_instances', 'processes in the cluster that can be reached', ['role'], (set) => {
    for (const role of ['prefill', 'decode', 'store'] as const)
      set({ role }, view.of(role).filter(({ isCounted }) => isCounted).length);
  });
}

function addTiers({ gauge, counter }: Adders, view: ClusterView): void {
  const labels = ['engine', 'role', 'model_name', 'tier'];
  const perTier =
    (value: (stats: TierStats) => number): Collect =>
    (set) => {
      for (const instance of view.all()) {
        for (const [tier, stats] of Object.entries(instance.load?.tiers ?? {}))
          set({ ...labelsOf(instance), tier }, value(stats));
      }
    };
  for (const name of ['blocks', 'bytes'] as const) {
    gauge(
      `penstock_tier_${name}`,
      `${name} of a tier`,
      labels,
      perTier((stats) => stats[name]),
    );
  }
  gauge('penstock_tier_format_bytes', 'bytes of a format in a store', [...labels, 'format'], (set) => {
    for (const instance of view.all())
      for (const [tier, { formats = {} }] of Object.entries(instance.load?.tiers ?? {}))
        for (const [format, { bytes }] of Object.entries(formats)) set({ ...labelsOf(instance), tier, format }, bytes);
  });
  gauge(
    'penstock_tier_available',
    'whether a tier can be used: 0 when its disk cannot',
    labels,
    perTier(({ fault }) => (fault === undefined ? 1 : 0)),
  );
  for (const name of ['hits', 'misses', 'evictions'] as const) {
    counter(
      `penstock_tier_${name}_total`,
      `${name} of a tier`,
      labels,
      perTier((stats) => stats[name]),
    );
  }
}

/** Adds the series of slots for recurrent states, which only engines of hybrid models have. */
function addStateSlots({ gauge, counter }: Adders, view: ClusterView): void {
  const labels = ['engine', 'role', 'model_name'];
  const ofStates =
    (add: (set: (value: number, extra?: Labels) => void, states: StateSlots) => void): Collect =>
    (set) => {
      for (const instance of view.all()) {
        const own = labelsOf(instance);
        const { states } = instance.load ?? {};
        if (states)
          add((value, extra = {}) => {
            set({ ...own, ...extra }, value);
          }, states);
      }
    };
  gauge(
    'penstock_state_slots',
    'slots of a device for recurrent states, by state: used by sequences, saved for later hits, free',
    [...labels, 'state'],
    ofStates((set, { slots, saved, used }) => {
      for (const [state, value] of Object.entries({ used, saved, free: slots - used - saved })) set(value, { state });
    }),
  );
  counter(
    'penstock_state_hits_total',
    'sequences that began with a saved recurrent state',
    labels,
    ofStates((set, { hits }) => {
      set(hits);
    }),
  );
  counter(
    'penstock_state_evictions_total',
    'saved recurrent states that gave their slots to others',
    labels,
    ofStates((set, { evictions }) => {
      set(evictions);
    }),
  );
}

function addIndex({ gauge }: Adders, index: PrefixIndex): void {
  gauge('penstock_index_keys', 'block keys in the prefix index', [], (set) => {
    set({}, index.size);
  });
  gauge('penstock_index_bytes', 'bytes of the prefix index', [], (set) => {
    set({}, index.bytes);
  });
  gauge('penstock_index_dropped', 'block events that the prefix index had no room for', [], (set) => {
    set({}, index.numDropped);
  });
}

function addBus({ gauge, counter }: Adders, bus: ClusterBus, view: ClusterView): void {
  gauge('penstock_bus_connected', '1 while this router is connected to the bus, else 0', [], (set) => {
    set({}, bus.isConnected ? 1 : 0);
  });
  counter('penstock_bus_unverified_total', 'bus messages under another cluster token', [], (set) => {
    set({}, bus.numUnverified);
  });
  gauge('penstock_routers', 'routers of the cluster that are heard, this one included', [], (set) => {
    set({}, 1 + view.otherRouters.length);
  });
}

/** Series of a process: memory, CPU time, open files, event loop and garbage collection, as prom-client has them. */
import { collectDefaultMetrics, type Registry } from 'prom-client';

/** Gauges under names of counters, which `promtool check metrics` refuses; the same numbers stand in `nodejs_active_*` by type. */
const MISNAMED = ['nodejs_active_handles_total', 'nodejs_active_requests_total', 'nodejs_active_resources_total'];

/** Adds the series of this process to a registry. prom-client watches the process from then on. */
export function addProcessSeries(registry: Registry): void {
  collectDefaultMetrics({ register: registry });
  for (const name of MISNAMED) registry.removeSingleMetric(name);
}

/** Series of one process of the cluster: its load, and its memory, time and event loop. */
import { Registry } from 'prom-client';
import { addInstanceSeries, type SeriesSource } from './instance_series.ts';
import { addProcessSeries } from './process_metrics.ts';

/** Returns a function that writes the series as Prometheus text. They are set up at the first call, because prom-client watches the process from then on. */
export function ownMetrics(source: () => Omit<SeriesSource, 'model'>): () => Promise<string> {
  let registry: Registry | undefined;
  return () => {
    if (!registry) {
      registry = new Registry();
      addProcessSeries(registry);
      addInstanceSeries(registry, () => {
        const own = source();
        return [{ ...own, model: own.engine?.modelName }];
      });
    }
    return registry.metrics();
  };
}

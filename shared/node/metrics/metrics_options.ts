/** Option of a process's own metrics. */
import { localAddress, option } from '../../base/options.ts';

/** Where a process serves its own series. */
export const metricsOptions = {
  metrics_bind: option(
    'Network',
    'HOST:PORT',
    localAddress,
    '',
    'where each process serves its own series at /metrics over HTTP, on 127.0.0.1 unless a host is named; the processes of `up` take this port and those after it; default: nowhere',
  ),
} as const;

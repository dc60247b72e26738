/** Options of tracing, which every process has. */
import { z } from 'zod';
import { fraction, option } from '../base/options.ts';

/** Options that say where spans of requests are sent, and of how many. */
export const traceOptions = {
  otlp_endpoint: option(
    'Process',
    'URL',
    z.string().regex(/^(https?:\/\/\S+)?$/, 'http://HOST:PORT or https://HOST:PORT'),
    '',
    'collector to which spans of requests are sent (OTLP over HTTP), for instance http://127.0.0.1:4318; default: $OTEL_EXPORTER_OTLP_ENDPOINT, else no tracing',
  ),
  trace_ratio: option(
    'Process',
    'RATIO',
    fraction,
    1,
    'fraction of the requests that are traced, 0 to 1; one that comes with a traceparent is traced as its flag says',
  ),
} as const;

/**
 * Sends spans to a collector by OTLP over HTTP, with OpenTelemetry's exporter. The libraries are optional peer dependencies, loaded when
 * tracing is opened, and only then.
 *
 * Bounds (P1): MAX_QUEUED spans wait, more are dropped; a batch that cannot be sent is dropped after the exporter's own retries.
 */
import type { DiagLogger } from '@opentelemetry/api';
import type { ReadableSpan, SpanExporter } from '@opentelemetry/sdk-trace-base';
import type { Clock } from '../clock.ts';
import { messageOf } from '../failure.ts';
import type { Log } from '../log.ts';
import { ConfigError } from '../options.ts';
import { optionalPackages, softwareVersion } from '../version.ts';
import { isRecorded, sampler, type Span, type SpanContext, type Tracing } from './tracing.ts';

const MAX_QUEUED = 8_192;
/** Milliseconds between two batches. */
const BATCH_MS = 1_000;
const SEND_TIMEOUT_MS = 5_000;
/** Milliseconds that the last batch may take when the process ends. */
const CLOSE_MS = 3_000;
/** Milliseconds between two warnings about a collector that takes no spans. */
const WARN_MS = 60_000;
/** Warnings of the libraries that tell of lost spans: a queue that was full, a collector that takes a part. Failed batches come to the callback. */
const LOSSES = /^(Dropped |Received Partial Success)/;
/** Most characters that are kept of such a warning. */
const MAX_REASON = 400;
/** Milliseconds that the wall clock may have moved against the monotonic one before spans follow it. */
const MAX_DRIFT_MS = 50;

/** Numbers of OpenTelemetry's SpanKind and SpanStatusCode. */
const KINDS = { internal: 0, server: 1, client: 2 } as unknown as Record<Span['kind'], ReadableSpan['kind']>;
const STATUS = { unset: 0, error: 2 } as unknown as Record<'unset' | 'error', ReadableSpan['status']['code']>;

/** Settings of {@link openTracing}. */
export interface TracingOptions {
  /** URL of the collector: without a path, `/v1/traces` is added. */
  readonly endpoint: string;
  /** Fraction of the traces that begin here which are recorded, 0 to 1. */
  readonly ratio: number;
  readonly role: string;
  /** Name of the process. */
  readonly name: string;
  readonly clock: Clock;
  /** Returns 16 random hexadecimal digits. */
  readonly newId: () => string;
  readonly log: Log;
}

/** Opens tracing. @throws ConfigError where the libraries are not installed, Error where the endpoint is no URL. */
export async function openTracing(options: TracingOptions): Promise<Tracing> {
  const { BatchSpanProcessor, OTLPTraceExporter, resourceFromAttributes, diag, DiagLogLevel } =
    await loadLibraries().catch((cause: unknown) => {
      throw isMissing(cause) ? new ConfigError(notInstalled()) : cause;
    });
  const url = new URL(options.endpoint);
  if (url.pathname === '/') url.pathname = '/v1/traces';
  diag.setLogger(warningsOf(options), { logLevel: DiagLogLevel.WARN, suppressOverrideMessage: true });
  const exporter = reporting(new OTLPTraceExporter({ url: url.href, timeoutMillis: SEND_TIMEOUT_MS }), options);
  const processor = new BatchSpanProcessor(exporter, {
    maxQueueSize: MAX_QUEUED,
    scheduledDelayMillis: BATCH_MS,
    exportTimeoutMillis: SEND_TIMEOUT_MS,
  });
  const { role, name } = options;
  const resource = resourceFromAttributes({
    'service.name': `penstock-${role}`,
    'service.namespace': 'penstock',
    'service.instance.id': name,
    'service.version': softwareVersion,
  });
  const { clock, ratio, newId } = options;
  const isChosen = sampler(ratio);
  const wall = wallTime(clock);
  return {
    newSpanId: newId,
    begin: (parent) => {
      const traceId = parent?.traceId ?? newId() + newId();
      return { traceId, spanId: newId(), flags: parent ? parent.flags : isChosen(traceId) ? 1 : 0 };
    },
    record: (span) => {
      if (isRecorded(span.context)) processor.onEnd(readable(span, wall(), resource));
    },
    close: async () => {
      const closed = new AbortController();
      const late = clock.sleep(CLOSE_MS, closed.signal).then(() => {
        throw new Error(`the collector did not take them within ${CLOSE_MS} ms`);
      });
      await Promise.race([processor.shutdown(), late]).catch((error: unknown) => {
        options.log.warn({ error: messageOf(error) }, 'the last spans could not be sent');
      });
      closed.abort();
    },
  };
}

async function loadLibraries() {
  const [{ BatchSpanProcessor }, { OTLPTraceExporter }, { resourceFromAttributes }, { diag, DiagLogLevel }] =
    await Promise.all([
      import('@opentelemetry/sdk-trace-base'),
      import('@opentelemetry/exporter-trace-otlp-http'),
      import('@opentelemetry/resources'),
      import('@opentelemetry/api'),
    ]);
  return { BatchSpanProcessor, OTLPTraceExporter, resourceFromAttributes, diag, DiagLogLevel };
}

function isMissing(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'ERR_MODULE_NOT_FOUND';
}

function notInstalled(): string {
  const packages = Object.entries(optionalPackages).map(([name, range]) => `"${name}@${range}"`);
  return `--otlp-endpoint (or $OTEL_EXPORTER_OTLP_ENDPOINT) needs OpenTelemetry, which is not installed: npm install ${packages.join(' ')}`;
}

/** Returns a function that gives the milliseconds to add to monotonic times for wall times; it follows the wall clock in steps only. */
function wallTime(clock: Clock): () => number {
  let offsetMs = clock.wallMs() - clock.nowMs();
  return () => {
    const newMs = clock.wallMs() - clock.nowMs();
    // Spans of one trace stay comparable: the wall clock has whole milliseconds, and jumps.
    if (Math.abs(newMs - offsetMs) > MAX_DRIFT_MS) offsetMs = newMs;
    return offsetMs;
  };
}

/** Returns an exporter that warns of batches which could not be sent, once in WARN_MS. */
function reporting(exporter: SpanExporter, { clock, log, endpoint }: TracingOptions): SpanExporter {
  let warnedMs = -Infinity;
  return {
    export: (spans, done) => {
      exporter.export(spans, (result) => {
        if (result.error && clock.nowMs() - warnedMs >= WARN_MS) {
          warnedMs = clock.nowMs();
          const error = messageOf(result.error);
          log.warn(
            { endpoint, spans: spans.length, error },
            'the collector of --otlp-endpoint takes no spans: they are dropped',
          );
        }
        done(result);
      });
    },
    shutdown: () => exporter.shutdown(),
    forceFlush: () => exporter.forceFlush?.() ?? Promise.resolve(),
  };
}

/** Returns a destination of the libraries' own words, which logs losses, once in WARN_MS. */
function warningsOf({ clock, log, endpoint }: TracingOptions): DiagLogger {
  let warnedMs = -Infinity;
  const none = (): void => undefined;
  return {
    warn: (...words) => {
      const reason = words.map(String).join(' ');
      if (!LOSSES.test(reason) || clock.nowMs() - warnedMs < WARN_MS) return;
      warnedMs = clock.nowMs();
      log.warn(
        { endpoint, reason: reason.slice(0, MAX_REASON) },
        'spans do not all reach the collector of --otlp-endpoint',
      );
    },
    error: none,
    info: none,
    debug: none,
    verbose: none,
  };
}

function readable(span: Span, offsetMs: number, resource: ReadableSpan['resource']): ReadableSpan {
  const { context, parent, startMs, endMs, error } = span;
  const contextOf = ({ traceId, spanId, flags }: SpanContext): ReturnType<ReadableSpan['spanContext']> => ({
    traceId,
    spanId,
    traceFlags: flags,
  });
  return {
    name: span.name,
    kind: KINDS[span.kind],
    spanContext: () => contextOf(context),
    ...(parent === undefined ? {} : { parentSpanContext: contextOf({ ...context, spanId: parent }) }),
    startTime: timeOf(startMs + offsetMs),
    endTime: timeOf(endMs + offsetMs),
    duration: timeOf(endMs - startMs),
    status: error === undefined ? { code: STATUS.unset } : { code: STATUS.error, message: error },
    attributes: definedOf(span.attributes),
    events: (span.events ?? []).map(({ name, atMs }) => ({ name, time: timeOf(atMs + offsetMs) })),
    links: [],
    ended: true,
    resource,
    instrumentationScope: { name: 'penstock', version: softwareVersion },
    droppedAttributesCount: 0,
    droppedEventsCount: 0,
    droppedLinksCount: 0,
  };
}

/** Returns the attributes that have a value. */
function definedOf(attributes: Span['attributes']): ReadableSpan['attributes'] {
  const defined: ReadableSpan['attributes'] = {};
  for (const key in attributes)
    if (attributes[key] !== undefined)
      defined[key] = attributes[key] as NonNullable<ReadableSpan['attributes'][string]>;
  return defined;
}

/** Returns milliseconds as seconds and nanoseconds. */
function timeOf(ms: number): [seconds: number, nanoseconds: number] {
  const seconds = Math.floor(ms / 1_000);
  return [seconds, Math.floor((ms - 1_000 * seconds) * 1e6)];
}

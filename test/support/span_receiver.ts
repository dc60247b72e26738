/** A small OTLP receiver: takes spans as JSON over HTTP, as a collector does. */
import assert from 'node:assert/strict';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';

interface Attribute {
  readonly key: string;
  readonly value: {
    readonly stringValue?: string;
    readonly intValue?: number | string;
    readonly doubleValue?: number;
    readonly boolValue?: boolean;
    readonly arrayValue?: { readonly values: readonly { readonly stringValue: string }[] };
  };
}

export interface ReceivedSpan {
  /** `service.name` of the process. */
  readonly service: string;
  readonly traceId: string;
  readonly spanId: string;
  /** Empty for the first span of a trace. */
  readonly parentSpanId: string;
  readonly name: string;
  readonly kind: number;
  readonly startMs: number;
  readonly endMs: number;
  readonly attributes: ReadonlyMap<string, unknown>;
  readonly events: readonly { readonly name: string; readonly atMs: number }[];
  readonly isError: boolean;
}

interface RawSpan {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly kind: number;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly attributes: readonly Attribute[];
  readonly events: readonly { readonly name: string; readonly timeUnixNano: string }[];
  readonly status: { readonly code?: number };
}

interface RawBody {
  readonly resourceSpans: readonly {
    readonly resource: { readonly attributes: readonly Attribute[] };
    readonly scopeSpans: readonly { readonly spans: readonly RawSpan[] }[];
  }[];
}

export class SpanReceiver {
  readonly spans: ReceivedSpan[] = [];
  /** All that was received, as text. */
  text = '';
  readonly #server: Server;
  readonly url: string;

  private constructor(server: Server) {
    this.#server = server;
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    server.on('request', (request, response) => {
      assert.equal(request.url, '/v1/traces');
      const chunks: Buffer[] = [];
      request.on('data', (chunk: Buffer) => chunks.push(chunk));
      request.on('end', () => {
        const text = Buffer.concat(chunks).toString('utf8');
        this.text += text;
        this.#take(JSON.parse(text) as RawBody);
        response.writeHead(200, { 'content-type': 'application/json' }).end('{}');
      });
    });
  }

  static async open(): Promise<SpanReceiver> {
    const server = createServer();
    await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
    return new SpanReceiver(server);
  }

  #take({ resourceSpans }: RawBody): void {
    for (const { resource, scopeSpans } of resourceSpans) {
      const service = String(valuesOf(resource.attributes).get('service.name'));
      for (const span of scopeSpans.flatMap(({ spans }) => spans)) {
        const { traceId, spanId, parentSpanId = '', name, kind, status } = span;
        this.spans.push({
          service,
          traceId,
          spanId,
          parentSpanId,
          name,
          kind,
          isError: status.code === 2,
          startMs: msOf(span.startTimeUnixNano),
          endMs: msOf(span.endTimeUnixNano),
          attributes: valuesOf(span.attributes),
          events: span.events.map((event) => ({ name: event.name, atMs: msOf(event.timeUnixNano) })),
        });
      }
    }
  }

  close(): void {
    this.#server.closeAllConnections();
    this.#server.close();
  }
}

/** Milliseconds since the beginning of the day: a double has too few digits for nanoseconds since 1970. */
function msOf(nanoseconds: string): number {
  return Number(BigInt(nanoseconds) % 86_400_000_000_000n) / 1e6;
}

function valuesOf(attributes: readonly Attribute[]): Map<string, unknown> {
  return new Map(
    attributes.map(({ key, value }) => {
      const { stringValue, intValue, doubleValue, boolValue, arrayValue } = value;
      const number = intValue === undefined ? doubleValue : Number(intValue);
      return [key, stringValue ?? number ?? boolValue ?? arrayValue?.values.map((one) => one.stringValue)];
    }),
  );
}

/**
 * Traces over real processes: a small OTLP receiver gets one trace of each request, from router, prefill, decode and store, whose parts
 * are those that the request log has. Budget: 25 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, test } from 'vitest';
import { Cluster } from '../support/cluster.ts';
import { SpanReceiver, type ReceivedSpan } from '../support/span_receiver.ts';
import { until } from '../support/until.ts';

/** A text long enough to be prefilled elsewhere; in no span. */
const SECRET = 'heliotrope';
const prompt = Array.from({ length: 150 }, (_, i) => `${SECRET} ${i}`).join(' ');

let receiver: SpanReceiver;
let cluster: Cluster;
beforeAll(async () => {
  receiver = await SpanReceiver.open();
  const names = ['--policy', 'longest_prefix', '--local-prefill-tokens', '64'];
  cluster = await Cluster.up('--otlp-endpoint', receiver.url, '--trace-ratio', '0', ...names);
});
afterAll(async () => {
  await cluster.close();
  receiver.close();
});

async function complete(traceparent: string | undefined, text: string): Promise<void> {
  const response = await fetch(`${cluster.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(traceparent ? { traceparent } : {}) },
    body: JSON.stringify({ prompt: text, max_tokens: 8, temperature: 0, ignore_eos: true }),
  });
  assert.equal(response.status, 200, await response.text());
}

const durationOf = ({ startMs, endMs }: ReceivedSpan): number => endMs - startMs;

test('one trace of a request over its processes, with the parts of its TTFT', async () => {
  const traceId = '0af7651916cd43dd8448eb211c80319c';
  const client = 'b7ad6b7169203331';
  await complete(`00-${traceId}-${client}-01`, prompt);
  const own = (): ReceivedSpan[] => receiver.spans.filter((span) => span.traceId === traceId);
  await until('the spans of all processes have come', () => {
    const names = own().map(({ service, name }) => `${service} ${name}`);
    return ['penstock-router text_completion harbour', 'penstock-decode decode', 'penstock-prefill prefill'].every(
      (one) => names.includes(one),
    );
  });
  const spans = own();
  const one = (service: string, name: string, parent?: ReceivedSpan): ReceivedSpan => {
    const found = spans.filter(
      (span) =>
        span.service === `penstock-${service}` &&
        span.name === name &&
        (parent === undefined || span.parentSpanId === parent.spanId),
    );
    assert.equal(
      found.length,
      1,
      `${service} ${name}: ${spans.map((span) => `${span.service} ${span.name}`).join(', ')}`,
    );
    return found[0]!;
  };
  const request = one('router', 'text_completion harbour');
  assert.equal(request.parentSpanId, client);
  const attempt = one('router', 'attempt', request);
  const decode = one('decode', 'decode', attempt);
  const prefill = one('prefill', 'prefill', attempt);
  assert.deepEqual([request.kind, attempt.kind, decode.kind, prefill.kind], [2, 3, 2, 2]);
  // The decode instance fetches what the prefill instance computes, below the span of its own call.
  const fetches = spans.filter(({ service, name }) => service === 'penstock-prefill' && name === 'fetch');
  assert(fetches.length > 0 && fetches.every(({ parentSpanId }) => parentSpanId === decode.spanId));
  assert(fetches.some(({ attributes }) => Number(attributes.get('penstock.bytes')) > 0));

  const [row] = (await cluster.requests()).filter((entry) => request.attributes.get('gen_ai.response.id') === entry.id);
  assert(row?.ttft_ms && row.ttft_parts_ms);
  const parts = row.ttft_parts_ms;
  const near = (what: string, ms: number, expected: number | undefined): void => {
    assert(
      expected !== undefined && Math.abs(ms - expected) <= 0.02 * row.ttft_ms!,
      `${what}: ${ms} ms, not ${expected} ms`,
    );
  };
  near(
    'router',
    durationOf(one('router', 'tokenise', request)) + durationOf(one('router', 'place', request)),
    parts['router'],
  );
  for (const part of ['queue', 'load', 'compute']) near(part, durationOf(one('decode', part, decode)), parts[part]);
  const report = row.attempts[0]?.prefills[0]?.report;
  for (const part of ['queue', 'load', 'compute'] as const)
    near(`prefill ${part}`, durationOf(one('prefill', part, prefill)), report?.[`${part}_ms`]);
  const [firstToken] = request.events;
  near('first token', (firstToken?.atMs ?? 0) - request.startMs, row.ttft_ms);
  near('ttft', 1_000 * Number(request.attributes.get('gen_ai.latency.time_to_first_token')), row.ttft_ms);
  // Parts follow each other, and end before what they are parts of.
  const [queue, load, compute] = ['queue', 'load', 'compute'].map((part) => one('decode', part, decode));
  assert(queue!.endMs <= load!.startMs + 0.01 && load!.endMs <= compute!.startMs + 0.01);
  assert(compute!.endMs <= one('decode', 'generate', decode).endMs + 0.01);

  assert.equal(request.attributes.get('gen_ai.usage.input_tokens'), row.prompt_tokens);
  assert.equal(request.attributes.get('gen_ai.usage.output_tokens'), 8);
  assert.deepEqual(request.attributes.get('gen_ai.response.finish_reasons'), ['length']);
  assert.equal(request.attributes.get('gen_ai.request.model'), 'harbour');
  assert.equal(decode.attributes.get('gen_ai.usage.output_tokens'), 8);
});

test('what a store serves is part of the trace', async () => {
  const traceId = '1af7651916cd43dd8448eb211c80319c';
  await until(
    'the store has the blocks',
    async () => ((await cluster.node('store-1')).tiers['dram']?.blocks ?? 0) > 10,
  );
  await cluster.killAndAwait(['prefill-1', 'decode-1']);
  await complete(`00-${traceId}-b7ad6b7169203331-01`, prompt);
  await until('a span of the store has come', () =>
    receiver.spans.some(
      (span) => span.traceId === traceId && span.service === 'penstock-store' && span.name === 'fetch',
    ),
  );
});

test('requests that the client does not sample, and with ratio 0 those without a traceparent, leave no span', async () => {
  const before = new Set(receiver.spans.map(({ traceId }) => traceId));
  const unsampled = '2af7651916cd43dd8448eb211c80319c';
  await complete(`00-${unsampled}-b7ad6b7169203331-00`, 'Once upon a time');
  await complete(undefined, 'Once upon another time');
  const sampled = '3af7651916cd43dd8448eb211c80319c';
  await complete(`00-${sampled}-b7ad6b7169203331-01`, 'Once upon a third time');
  await until('the last one has come', () =>
    receiver.spans.some(({ traceId, service }) => traceId === sampled && service === 'penstock-router'),
  );
  const after = new Set(receiver.spans.map(({ traceId }) => traceId));
  assert.deepEqual(
    [...after].filter((traceId) => !before.has(traceId)),
    [sampled],
  );
});

test('no span has text of a prompt', () => {
  assert(receiver.text.length > 0);
  assert(!receiver.text.includes(SECRET));
});

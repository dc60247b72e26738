/** The waterfall of a request: which process did what, when. Not covered: how it is drawn. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import type { AttemptPart, RequestDetail, StageReport } from '../../shared/protocol/request_detail.ts';
import { axisMarks, timedNote, waterfallOf } from '../../services/dashboard/model/waterfall.ts';

function report(queue: number, load: number, compute: number): StageReport {
  const tokens = { cached_tokens: 0, fetched_tokens: 0, computed_tokens: 0, sources: null, fetched_bytes: 0 };
  return { ...tokens, queue_ms: queue, load_ms: load, compute_ms: compute };
}

function attempt(decode: string, rest: Partial<AttemptPart> = {}): AttemptPart {
  return { decode, reason: '', outcome: 'finished', placement: null, report: null, prefills: [], ...rest };
}

function request(rest: Partial<RequestDetail>): RequestDetail {
  return {
    id: 'r',
    client_id: null,
    trace_id: null,
    endpoint: '/v1/chat/completions',
    sample_of: null,
    model: 'm',
    client: null,
    key: null,
    tenant: null,
    started_at: new Date(0).toISOString(),
    reason: '',
    as_of: 0,
    miss_tokens: {},
    misses: [],
    tokens: { cached: 0, fetched: 0, computed: 0, computed_by_prefill: 0, computed_by_decode: 0 },
    sources: { device: 0, dram: 0, instance: 0, store_dram: 0, store_disk: 0, handoff: 0, computed: 0 },
    phase: 'finished',
    finish_reason: 'stop',
    error: null,
    prompt_tokens: 10,
    output_tokens: 5,
    fetched_bytes: 0,
    ttft_ms: null,
    ttft_parts_ms: null,
    total_ms: 0,
    targets: null,
    rejection: null,
    predictions: { ttft_ms: null, tbt_ms: null, cached_tokens: null, output_tokens: null },
    attempts: [],
    notes: [],
    ...rest,
  };
}

const parts = { router: 2, failover: 0, queue: 3, load: 20, compute: 10, transport: 5 };
const spansOf = (of: RequestDetail): unknown[] =>
  waterfallOf(of).tracks.map(({ process, spans }) => [
    process,
    spans.map(({ kind, startMs, endMs }) => [kind, startMs, endMs]),
  ]);

test('parts of the TTFT follow one another, a prefill runs alongside them, then tokens are generated', () => {
  const prefills = [{ prefill: 'prefill-1', ready_tokens: 8, outcome: 'finished', report: report(1, 0, 18) }];
  const one = request({
    ttft_ms: 40,
    ttft_parts_ms: parts,
    total_ms: 100,
    attempts: [attempt('decode-1', { report: report(3, 20, 10), prefills })],
  });
  assert.deepEqual(spansOf(one), [
    [
      'router',
      [
        ['router', 0, 2],
        ['transport', 35, 40],
      ],
    ],
    [
      'prefill-1',
      [
        ['queue', 2, 3],
        ['compute', 3, 21],
      ],
    ],
    [
      'decode-1',
      [
        ['queue', 2, 5],
        ['load', 5, 25],
        ['compute', 25, 35],
        ['decoding', 40, 100],
      ],
    ],
  ]);
  const { endMs, firstTokenMs } = waterfallOf(one);
  assert.deepEqual([endMs, firstTokenMs], [100, 40]);
});

test('an attempt that was lost before the first token ends with the note of its failure', () => {
  const one = request({
    ttft_ms: 90,
    ttft_parts_ms: { ...parts, failover: 50 },
    total_ms: 95,
    attempts: [attempt('decode-1', { outcome: 'gone' }), attempt('decode-2', { report: report(3, 20, 10) })],
    notes: ['51.0 ms: decode-1 failed after 0 tokens: gone'],
  });
  assert.deepEqual(spansOf(one).slice(1), [
    ['decode-1', [['lost', 2, 51]]],
    [
      'decode-2',
      [
        ['queue', 52, 55],
        ['load', 55, 75],
        ['compute', 75, 85],
        ['decoding', 90, 95],
      ],
    ],
  ]);
});

test('an instance lost while it generates keeps the parts of its TTFT, and the next one generates from its own', () => {
  const one = request({
    ttft_ms: 40,
    ttft_parts_ms: parts,
    total_ms: 200,
    attempts: [attempt('decode-1', { report: report(3, 20, 10) }), attempt('decode-2', { report: report(0, 5, 15) })],
    notes: ['100.0 ms: decode-1 failed after 12 tokens: gone'],
  });
  assert.deepEqual(spansOf(one).slice(1), [
    [
      'decode-1',
      [
        ['queue', 2, 5],
        ['load', 5, 25],
        ['compute', 25, 35],
        ['decoding', 40, 100],
      ],
    ],
    [
      'decode-2',
      [
        ['load', 100, 105],
        ['compute', 105, 120],
        ['decoding', 120, 200],
      ],
    ],
  ]);
});

test('a request that is not placed is the router alone, and one that still runs has a span of unknown content', () => {
  assert.deepEqual(spansOf(request({ phase: 'failed', total_ms: 7 })), [['router', [['router', 0, 7]]]]);
  const running = request({ phase: 'loading', total_ms: 30, attempts: [attempt('decode-1', { outcome: 'running' })] });
  assert.deepEqual(spansOf(running)[1], ['decode-1', [['unmeasured', 0, 30]]]);
});

test('notes have their time, whatever else they say', () => {
  assert.deepEqual(timedNote('12.3 ms: <img onerror=alert(1)>: 5 ms: x'), {
    atMs: 12.3,
    text: '<img onerror=alert(1)>: 5 ms: x',
  });
  assert.deepEqual(timedNote('no time'), { atMs: null, text: 'no time' });
});

test('marks of the axis are round and within it', () => {
  assert.deepEqual(axisMarks(100, 5), [0, 20, 40, 60, 80, 100]);
  assert.deepEqual(axisMarks(37, 5), [0, 10, 20, 30]);
  assert.deepEqual(axisMarks(0, 5), [0]);
});

/**
 * `penstock top`: what is read of a router, rates between two looks, and the screen as a function of both. A real router is asked by
 * e2e/inspection. Budget: 2 s.
 */
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import { describe, test } from 'vitest';
import { rowsOf, sortedRows, tenantRowsOf, totalsOf } from '../../../services/cli/top/pool_rates.ts';
import { plainText, sampleOf, type PoolSample } from '../../../services/cli/top/pool_sample.ts';
import { drawn, keysOf, Terminal } from '../../../services/cli/top/terminal.ts';
import { isStale, screenLines, tableLines, type TopView } from '../../../services/cli/top/top_screen.ts';

type Json = Record<string, unknown>;

function node(name: string, change: Json = {}): Json {
  const tier = { bytes: 25, capacity_bytes: 100, hits: 0, misses: 0 };
  return {
    name,
    role: 'decode',
    epoch: name,
    state: 'alive',
    model: 'harbour',
    running: 1,
    waiting: 2,
    kv_usage: 0.1,
    fetched_bytes: { memory: 0, socket: 0, call: 0 },
    tiers: { device: tier, dram: tier },
    ...change,
  };
}

function metrics(requests: number, tokens: number): string {
  return [
    '# HELP vllm:prompt_tokens_total x',
    `vllm:prompt_tokens_total{model_name="a",engine="0"} ${tokens}`,
    `vllm:prompt_tokens_total{model_name="b } 9 ",engine="1"} ${tokens}`,
    `vllm:generation_tokens_total{model_name="a"} ${3 * tokens}`,
    `vllm:request_success_total{finished_reason="stop"} ${requests}`,
    'vllm:prefix_cache_queries_total 100',
    'vllm:prefix_cache_hits_total 50',
    `vllm:time_to_first_token_seconds_sum ${0.2 * requests}`,
    `vllm:time_to_first_token_seconds_count ${requests}`,
  ].join('\n');
}

function sample(nodes: readonly Json[], atMs = 0, change: Json = {}, text = metrics(0, 0)): PoolSample {
  const body = { nodes, policy: { places_by: 'priced' }, index_keys: 7, router: { requests: 1 }, ...change };
  return sampleOf(body, text, { nowMs: atMs, wallMs: 1_000 });
}

function viewOf(last: PoolSample | undefined, change: Partial<TopView> = {}): TopView {
  const rest = {
    before: undefined,
    fault: undefined,
    nowMs: last?.atMs ?? 0,
    sorting: 'n',
    isReversed: false,
    scroll: 0,
  } as const;
  return { address: 'http://127.0.0.1:8000', last, ...rest, ...change };
}

const wide = { width: 200, height: 40 };

describe('what is read', () => {
  test('fields that a router lacks, and values of another type, count as absent', () => {
    const { nodes, asOfMs, problems } = sample([{}, { name: 3, running: 'x', tiers: [], fetched_bytes: null }]);
    assert.deepEqual([asOfMs, problems], [1_000, []]);
    assert.deepEqual(
      nodes.map((one) => [one.name, one.running, one.kv_usage, one.fetchedBytes]),
      [
        ['', 0, null, 0],
        ['3', 0, null, 0],
      ],
    );
    assert.throws(() => sampleOf({ error: 1 }, '', { nowMs: 0, wallMs: 0 }), /no \/api\/pool/);
    assert.throws(() => sampleOf(null, '', { nowMs: 0, wallMs: 0 }), /no \/api\/pool/);
  });

  test('tenants are read of a router that asks for keys, and the first five have a line: those that keep the most of the engines busy', () => {
    const text = (requests: number, ms: (n: number) => number): string =>
      Array.from({ length: 7 }, (_, n) =>
        [
          `penstock_tenant_requests_total{tenant="t${n}",status="2xx"} ${requests}`,
          `penstock_tenant_requests_total{tenant="t${n}",status="4xx"} ${requests}`,
          `penstock_tenant_output_tokens_total{tenant="t${n}"} ${10 * requests}`,
          `penstock_tenant_engine_ms_total{tenant="t${n}"} ${ms(n)}`,
          `penstock_tenant_waiting{tenant="t${n}"} ${n}`,
        ].join('\n'),
      ).join('\n');
    const before = sample(
      [],
      0,
      {},
      text(4, () => 500),
    );
    const last = sample(
      [],
      2_000,
      {},
      text(7, (n) => 500 + 100 * n),
    );
    const [first] = tenantRowsOf(before, last);
    assert.deepEqual(first, { name: 't6', requestsPerS: 3, outputTokensPerS: 15, engines: 0.3, waiting: 6 });
    const lines = tableLines(viewOf(last, { before }))
      .head.map((line) => line.text)
      .filter((line) => /tenant/.test(line));
    assert.deepEqual(
      lines.map((line) => line.replace(/ {3}.*/, '')),
      [
        'tenant t6',
        'tenant t5',
        'tenant t4',
        'tenant t3',
        'tenant t2',
        'and 2 further tenants: penstock_tenant_* of /metrics',
      ],
    );
    assert.match(lines[0] ?? '', /requests\/s 3.* output tokens\/s 15.* engines 0\.30 .*waiting 6$/);
    // A router that was started anew counts from the beginning.
    assert.equal(tenantRowsOf(last, before)[0]?.engines, undefined);
    assert.deepEqual(tenantRowsOf(undefined, sample([])), []);
  });

  test('the time of the values and the problems are those of the router', () => {
    const health = { state: 'degraded', problems: ['decode-1 was lost'] };
    assert.deepEqual(sample([], 0, { as_of: 5, health }).problems, ['decode-1 was lost']);
    assert.equal(sample([], 0, { as_of: 5 }).asOfMs, 5);
  });

  test('counters are summed over their labels', () => {
    const { counters } = sample([], 0, {}, metrics(4, 10));
    assert.deepEqual([counters.promptTokens, counters.outputTokens, counters.requests], [20, 30, 4]);
  });

  test('text of the cluster has no character that a terminal obeys', () => {
    assert.equal(plainText('a\x1b[31mb\u0007\u009bc\u202ed\u200be\u0301\n'), 'a?[31mb??c?d?e??');
    assert.equal(plainText('x'.repeat(500)).length, 200);
    const evil = '\x1b]0;title\u0007\x1b[2J';
    const last = sample(
      [node(evil, { role: evil, state: evil, model: evil, tiers: { [evil]: { capacity_bytes: 1 } } })],
      0,
      {
        policy: { places_by: evil },
        health: { problems: [evil] },
      },
    );
    for (const { text } of screenLines(viewOf(last, { fault: evil, nowMs: 9_000 }), wide))
      assert(!/\p{C}/u.test(text), JSON.stringify(text));
  });
});

describe('rates', () => {
  const tiers = (hits: number, misses: number): Json => ({ dram: { bytes: 50, capacity_bytes: 100, hits, misses } });
  const before = sample([node('a', { tiers: tiers(10, 10) })], 1_000, {}, metrics(10, 100));
  const moved = { memory: 2 ** 20, socket: 2 ** 20, call: 0 };
  const last = sample(
    [node('a', { tiers: tiers(13, 11), fetched_bytes: moved }), node('b')],
    3_000,
    {},
    metrics(30, 300),
  );

  test('of nodes: bytes a second, hits of the interval, fill', () => {
    const [a, b] = rowsOf(before, last);
    assert.deepEqual([a?.bytesPerS, a?.hitRatio, a?.fill], [2 ** 20, 0.75, 0.5]);
    assert.deepEqual([b?.bytesPerS, b?.hitRatio], [undefined, undefined]);
    assert.deepEqual(rowsOf(undefined, before)[0]?.hitRatio, 0.5);
    assert.equal(rowsOf(undefined, before)[0]?.bytesPerS, undefined);
  });

  test('of another incarnation of a node there are none yet', () => {
    const again = sample([node('a', { epoch: 'later', fetched_bytes: moved })], 3_000);
    assert.equal(rowsOf(before, again)[0]?.bytesPerS, undefined);
  });

  test('of the cluster, and none at the first look or after a restart of the router', () => {
    const { requestsPerS, promptTokensPerS, outputTokensPerS, ttftMs, bytesPerS, hitRatio } = totalsOf(before, last);
    assert.deepEqual([requestsPerS, promptTokensPerS, outputTokensPerS], [10, 200, 300]);
    assert.deepEqual([Math.round(ttftMs ?? 0), bytesPerS, hitRatio], [200, 2 ** 20, 0.5]);
    assert.equal(totalsOf(undefined, last).requestsPerS, undefined);
    assert.equal(totalsOf(last, { ...before, atMs: 9_000 }).requestsPerS, undefined);
  });
});

describe('the screen', () => {
  const nodes = [
    node('b', { running: 5, role: 'prefill' }),
    node('a', { running: 1, waiting: 9 }),
    node('c', { running: 1, state: 'suspect' }),
  ];
  const last = sample(nodes);
  const textOf = (view: TopView, size = wide): string[] => screenLines(view, size).map(({ text }) => text);

  test('has totals, and a row for each node', () => {
    const lines = textOf(viewOf(last));
    assert.match(
      lines[0] ?? '',
      /^penstock top {3}http:\/\/127\.0\.0\.1:8000 {3}as of 00:00:01 UTC {3}sorted by name$/,
    );
    assert.match(lines[1] ?? '', /^nodes: 1 prefill, 2 decode .* running 7 {3}waiting 13/);
    assert.match(lines[3] ?? '', /^NAME +ROLE +STATE +RUN +WAIT +HITS +MOVED\/S +FILL +MODEL$/);
    assert.match(lines[4] ?? '', /^a +decode +alive +1 +9 +- +- +device 25% {2}dram 25% +harbour$/);
    assert.match(lines.at(-1) ?? '', /^q quit {3}sort by: n name/);
  });

  test('columns begin at the same place, wide characters counted', () => {
    const [titles = '', first = '', second = ''] = tableLines(viewOf(sample([node('港港'), node('abcd')]))).table.map(
      ({ text }) => text,
    );
    assert.match(first, /^abcd {2}decode/);
    assert.match(second, /^港港 {2}decode/);
    assert.match(titles, /^NAME {2}ROLE/);
  });

  test('rows are sorted by any column, numbers from the largest, and reversed', () => {
    const order = (sorting: TopView['sorting'], isReversed = false): string =>
      sortedRows(rowsOf(undefined, last), sorting, isReversed)
        .map(({ name }) => name)
        .join('');
    assert.deepEqual(
      [order('n'), order('n', true), order('r'), order('w'), order('s')],
      ['abc', 'cba', 'bac', 'abc', 'abc'],
    );
    assert.equal(order('o', true), 'bac');
  });

  test('a node that is suspect, and a problem of the cluster, stand out', () => {
    const sick = sample(nodes, 0, { health: { problems: ['c is silent'] } });
    const alarms = screenLines(viewOf(sick), wide).filter(({ style }) => style === 'alarm');
    assert.deepEqual(
      alarms.map(({ text }) => text.slice(0, 11)),
      ['c is silent', 'c     decod'],
    );
  });

  test('values are stale after 3 s without an answer, with the reason, and live again after one', () => {
    const later = viewOf(last, { nowMs: 4_500, fault: 'ECONNREFUSED' });
    assert(isStale(later) && !isStale(viewOf(last, { nowMs: 2_900 })));
    const [title, ...rest] = screenLines(later, wide);
    assert.equal(title?.style, 'alarm');
    assert.match(title.text, /STALE: no answer for 4 s \(ECONNREFUSED\); values as of 00:00:01 UTC/);
    assert(rest.some(({ style, text }) => style === 'dim' && text.startsWith('a ')));
    assert.match(textOf(viewOf(sample(nodes, 4_400), { nowMs: 4_500 }))[0] ?? '', /as of/);
    assert.match(textOf(viewOf(undefined, { fault: 'ECONNREFUSED' }))[0] ?? '', /no answer yet \(ECONNREFUSED\)/);
  });

  test.each([
    [80, 24],
    [40, 10],
    [20, 3],
    [1, 1],
  ])('fits a terminal of %i columns and %i lines', (width, height) => {
    const many = sample(Array.from({ length: 50 }, (_, i) => node(`node-${i}-with-a-long-name`)));
    const lines = textOf(viewOf(many), { width, height });
    assert(lines.length <= height, `${lines.length} lines`);
    for (const line of lines) assert(Array.from(line).length <= width, line);
  });

  test.each([80, 120])('shows every total in a terminal of %i columns', (width) => {
    const stale = viewOf(last, { nowMs: 4_500, fault: 'no answer within 2 s' });
    const text = textOf(stale, { width, height: 24 }).join('\n');
    for (const part of ['values as of 00:00:01 UTC', 'policy', 'running 7', 'cached', 'moved', 'no answer within 2 s'])
      assert(text.includes(part), part);
  });

  test('scrolls to the last row and no further', () => {
    const many = sample(Array.from({ length: 50 }, (_, i) => node(`n${String(i).padStart(2, '0')}`)));
    const lines = textOf(viewOf(many, { scroll: 1_000 }), { width: 200, height: 15 });
    assert.match(lines.at(-2) ?? '', /^n49 /);
    assert.match(lines.at(-1) ?? '', /rows 41 to 50 of 50/);
  });
});

describe('the terminal', () => {
  test('keys: letters, arrows, and no other sequence', () => {
    assert.deepEqual(keysOf('r\x1b[A\x1b[B\x1bOA\x1b[3~\x1b[1;5Cq'), ['r', 'up', 'down', 'up', 'q']);
    assert.deepEqual(keysOf('\u0003'), ['\u0003']);
  });

  test('is drawn in place, and given back as it was', () => {
    const written: string[] = [];
    const modes: boolean[] = [];
    const none = (): undefined => undefined;
    const mode = { setRawMode: (on: boolean) => modes.push(on), resume: none, pause: none };
    const input = Object.assign(new EventEmitter(), mode);
    const output = Object.assign(new EventEmitter(), {
      columns: 100,
      rows: 30,
      write: (text: string) => written.push(text),
    });
    const keys: string[] = [];
    let numResized = 0;
    const terminal = new Terminal(input, output, (key) => keys.push(key));
    terminal.open(() => numResized++);
    input.emit('data', Buffer.from('wq'));
    output.emit('resize');
    terminal.draw([
      { text: 'a', style: 'plain' },
      { text: 'b', style: 'head' },
    ]);
    terminal.close();
    output.emit('resize');
    input.emit('data', Buffer.from('x'));
    assert.deepEqual(
      [keys, numResized, modes, terminal.width, terminal.height],
      [['w', 'q'], 1, [true, false], 100, 30],
    );
    assert.equal(written[1], '\x1b[Ha\x1b[K\r\n\x1b[7mb\x1b[0m\x1b[K\x1b[J');
    assert.match(written[0] ?? '', /1049h/);
    assert.match(written[2] ?? '', /1049l/);
    assert.equal(drawn([]), '\x1b[H\x1b[J');
    assert.deepEqual([input.listenerCount('data'), output.listenerCount('resize')], [0, 0]);
  });
});

/** The report of a replay: who leads and why, as a table, as JSON, as a page. Budget: 2 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { rounded } from '../../shared/report/number_text.ts';
import { reportHtml } from '../../services/replay/report_html.ts';
import { reportJson } from '../../services/replay/report_json.ts';
import { reportTable } from '../../services/replay/report_table.ts';
import { verdictOf } from '../../services/replay/verdict.ts';
import { policyFigures, reportOf } from './reports.ts';

describe('the verdict', () => {
  test('names the default policy when none has more goodput, and the next one', () => {
    const verdict = verdictOf({
      policies: [policyFigures('a', [5]), policyFigures('b', [6], {}, true), policyFigures('c', [4])],
    });
    assert.deepEqual(verdict, {
      leader: 'b',
      isDefaultFirst: true,
      reasons: ['The default policy b leads: a goodput of 6 requests/s; next is a: a goodput of 5 requests/s.'],
    });
  });

  test('names another policy that leads, and the figures by which it does, the largest difference first', () => {
    const hitTokens = { device: 100, dram: 100, remote: 0, computed: 800 };
    const policies = [
      policyFigures('b', [6], { hitTokens, rejections: 107, tbtAttainment: 0.955 }, true),
      policyFigures('a', [8], { ttftAttainment: 0.98 }),
    ];
    const { leader, isDefaultFirst, reasons } = verdictOf({ policies });
    assert.deepEqual([leader, isDefaultFirst], ['a', false]);
    assert.deepEqual(reasons, [
      'a leads the default policy b: a goodput of 8 requests/s against a goodput of 6 requests/s.',
      'At 5 requests/s they differ, the leader first, in prompt tokens computed: 60.0 % against 80.0 %; ' +
        'requests rejected: 0.7 % against 10.7 %; requests within the TTFT target: 98.0 % against 93.0 %.',
    ]);
  });

  test('counts policies within one percent as equal, and says when the ranges of seeds overlap', () => {
    const close = verdictOf({ policies: [policyFigures('b', [6], {}, true), policyFigures('a', [6.05])] });
    assert.deepEqual([close.leader, close.isDefaultFirst], ['a', true]);
    assert.match(close.reasons[0]!, /^The default policy b is among the first: .*; next is a/);
    const spread = verdictOf({ policies: [policyFigures('b', [5, 7], {}, true), policyFigures('a', [6.5, 8])] });
    assert.match(spread.reasons[0]!, /The ranges of their seeds overlap\.$/);
  });

  test('goes by the requests within the targets where goodput was not looked for', () => {
    const { leader, reasons } = verdictOf({
      policies: [policyFigures('b', [], { attainment: 0.7 }, true), policyFigures('a', [], { attainment: 0.8 })],
    });
    assert.equal(leader, 'a');
    assert.match(reasons[0]!, /80\.0 % of the requests within the targets at 5 requests\/s against 70\.0 %/);
  });
});

type Shown = Record<string, unknown>;
const policies = [policyFigures('default one', [6, 7], {}, true), policyFigures('<other>', [9], { bytesMoved: NaN })];

test('the table has a row for each policy, for all requests and for the longest tenth', () => {
  const lines = reportTable(reportOf(policies)).split('\n');
  const rows = lines.filter((line) => line.startsWith('default one (default)'));
  assert.equal(rows.length, 2);
  const cells = rows.map((row) => row.split(/ {2,}/));
  assert.deepEqual(cells[0]!.slice(1), [
    ...['6.5', '5', '90.0 %', '800 ms', '1.6 s', '3.2 s', '22 ms', '40 ms', '80 ms'],
    ...['10.0 %', '20.0 %', '10.0 %', '60.0 %', '3.21 TB', '7'],
  ]);
  assert.deepEqual(cells[1]!.slice(1, 7), ['1.25', '5', '90.0 %', '3 s', '6 s', '12 s']);
  const text = lines.join('\n');
  assert.match(text, /12,031 requests in 3,537 s \(3\.4 requests\/s\), prompts of 12,035 tokens/);
  assert.match(text, /8 prefill and 8 decode instances, light engine, queues in the order first_come; Llama-3\.1-8B/);
  assert.match(text, /^unbounded +36\.60 % +37\.40 %$/m);
  assert.match(text, /<other> leads the default policy/);
  assert.match(text, /2 seeds, 12\.3 s on a machine\.$/m);
});

test('the JSON has every figure under a name of its own, and null where nothing was measured', () => {
  const json = JSON.parse(reportJson(reportOf([...policies, policyFigures('third', [])]))) as {
    policies: Record<string, unknown>[];
    queue_order: string;
    verdict: { leader: string; is_default_first: boolean };
    cache_curve: Record<string, unknown>[];
    trace: Record<string, unknown>;
    targets: unknown;
    cluster: unknown;
    hardware: { step: Record<string, number> };
  };
  const [first, second, third] = json.policies as [Shown, Shown, Shown];
  assert.deepEqual(Object.keys(first), [
    ...[
      'name',
      'is_default',
      'goodput',
      'goodput_of_seeds',
      'goodput_of_longest_tenth',
      'at_rate',
      'attainment_by_rate',
    ],
  ]);
  assert.deepEqual(
    [first['name'], first['is_default'], first['goodput'], first['goodput_of_seeds']],
    ['default one', true, 6.5, [6, 7]],
  );
  const atRate = first['at_rate'] as Record<string, Record<string, unknown>>;
  assert.equal(atRate['ttft_ms']!['p90'], 1_600);
  assert.equal(atRate['hit_tokens']!['computed'], 600);
  assert.equal((atRate['longest_tenth'] as Record<string, Record<string, unknown>>)['ttft_ms']!['p50'], 3_000);
  assert.equal((second['at_rate'] as Record<string, unknown>)['bytes_moved'], null);
  assert.equal(third['goodput'], null);
  assert.deepEqual(json.verdict.leader, '<other>');
  assert.equal(json.verdict.is_default_first, false);
  assert.deepEqual(
    json.cache_curve.map((one) => one['capacity_blocks']),
    [1_000, null],
  );
  assert.equal(json.trace['name'], 'a<b>&.jsonl');
  assert.equal(json.queue_order, 'first_come');
  assert.deepEqual(
    [json.targets, json.cluster],
    [
      { ttft_ms: 10_000, tbt_ms: 100 },
      { kind: 'split', num_prefill: 8, num_decode: 8 },
    ],
  );
  assert.equal(json.hardware.step['per_attended_pair'], 8.155_6e-10);
});

describe('the page', () => {
  const html = reportHtml(reportOf(policies));

  test('it names the order of the queues', () => {
    assert.match(html, /queues in the order first_come/);
  });

  test('names no other host, has no script, and shows text as text', () => {
    assert.doesNotMatch(html, /https?:|src=|url\(|<script|@import/);
    assert.match(html, /a&lt;b&gt;&amp;\.jsonl/);
    assert.match(html, /&lt;other&gt; leads the default policy/);
    assert.doesNotMatch(html, /<other>|NaN|undefined|Infinity/);
    assert.doesNotMatch(html, /<!-- content -->/);
  });

  test('has each chart, and its marks say their values', () => {
    const titles = [...html.matchAll(/<svg[^>]* aria-label="([^"]+)"/g)].map(([, title]) => title);
    assert.deepEqual(titles, [
      'Requests within the targets, by rate',
      'The longest tenth within the targets, by rate',
      ...['TTFT', 'TTFT', 'TBT'],
      'Prompt tokens by where they came from',
      'Prompt tokens by where they came from',
      'Hits of one cache by its capacity',
    ]);
    assert.equal((html.match(/<svg/g) ?? []).length, (html.match(/<\/svg>/g) ?? []).length);
    for (const mark of [
      'default one: 90.0 % at 5',
      'default one (default), p99: 3.2 s',
      'default one (default), DRAM: 20.0 %',
    ])
      assert(html.includes(`<title>${mark}</title>`), mark);
  });

  test('shows no curve of rates for one rate, nor a cache curve that was not asked for', () => {
    const one = policies.map((policy) => ({ ...policy, attainmentByRate: policy.attainmentByRate.slice(1) }));
    const plain = reportHtml(reportOf(one, { cacheCurve: undefined }));
    assert.equal((plain.match(/<svg/g) ?? []).length, 5);
  });
});

test('numbers have three significant digits', () => {
  assert.deepEqual([0, 0.012_345, 1.234_5, 12.345, 123.45, 12_345.6, NaN].map(rounded), [
    '0',
    '0.0123',
    '1.23',
    '12.3',
    '123',
    '12,346',
    '–',
  ]);
});

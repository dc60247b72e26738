/** Each plain value of a load is at every place that its entry in the table names, and no place has one that the table lacks. Budget: 2 s. */
import assert from 'node:assert/strict';
import { Registry } from 'prom-client';
import { describe, test } from 'vitest';
import { rowsOf } from '../../services/cli/top/pool_rates.ts';
import { sampleOf } from '../../services/cli/top/pool_sample.ts';
import { tableLines } from '../../services/cli/top/top_screen.ts';
import { nodeFacts } from '../../services/dashboard/pool_words.ts';
import { CounterRates, LOAD_SERIES, NODE_SERIES, nodeValues } from '../../services/router/observe/load_series.ts';
import { nodeView } from '../../services/router/observe/node_view.ts';
import { engineLoad } from '../../shared/instance/engine_load.ts';
import { newTierCounters } from '../../shared/kv/tier_counters.ts';
import { addInstanceSeries } from '../../shared/node/metrics/instance_series.ts';
import { Instance } from '../../shared/placement/instance.ts';
import { loadFields, type ColumnLoad, type LoadField, type LoadName } from '../../shared/protocol/load_fields.ts';
import { readHeartbeat, toBytes, type InstanceLoad, type Role } from '../../shared/protocol/membership.ts';

/** A value of its own for each field. */
const values = Object.fromEntries(loadFields.map(([name], i) => [name, 11 + i])) as Record<LoadName, number>;
const full: InstanceLoad = { ...values, isDraining: false, tiers: {} };

function parsed(load: object): InstanceLoad {
  return readHeartbeat(toBytes({ name: 'n', epoch: 'e', load: load as InstanceLoad, blocks: 0, seen: {} })).load;
}

function memberWith(load: InstanceLoad | undefined, role: Role = 'decode'): Instance {
  const member = { name: 'n', role, address: 'n:1', pid: 1, epoch: 'e' };
  const instance = new Instance({ member, protocolVersion: 1 }, 0, undefined, 'm');
  if (load) instance.load = parsed(load);
  return instance;
}

const moment = { nowMs: 0, wallMs: 0 };

describe.each(loadFields)('%s', (name, field: LoadField) => {
  test('is in a heartbeat, as a number of its type, and required only where the table says so', () => {
    assert.equal(parsed(full)[name], values[name]);
    assert.throws(() => parsed({ ...full, [name]: 'x' }), /wrong fields/);
    const fraction = { ...full, [name]: 0.5 };
    if (field.type === 'int') assert.throws(() => parsed(fraction), /wrong fields/);
    else assert.equal(parsed(fraction)[name], 0.5);
    const without = { ...full, [name]: undefined };
    if (field.isRequired) assert.throws(() => parsed(without), /wrong fields/);
    else assert.equal(parsed(without)[name], undefined);
  });

  test('is in /api/pool, with its stand-in for a member that has not reported it', () => {
    const { pool } = field;
    const [known, silent] = [full, undefined].map(
      (load) => nodeView(memberWith(load), moment) as unknown as Record<string, unknown>,
    );
    if (pool) assert.deepEqual([known?.[pool.name], silent?.[pool.name]], [values[name], pool.absent]);
    else assert(!Object.values(known ?? {}).includes(values[name]));
  });

  test('is in /metrics, in seconds for milliseconds, and for stores under our own names only', async () => {
    for (const role of ['decode', 'store'] as const) {
      const registry = new Registry();
      addInstanceSeries(registry, () => [
        { member: { name: 'n', role }, model: undefined, load: full, engine: undefined },
      ]);
      for (const metric of field.metrics ?? []) {
        const series = await registry.getSingleMetric(metric)?.get();
        assert.deepEqual([series?.type, series?.help], [field.kind, field.help]);
        const value = field.unit === 'ms' ? values[name] / 1_000 : values[name];
        const isLeftOut = role === 'store' && metric.startsWith('vllm:');
        assert.deepEqual(
          series?.values.map((one) => one.value),
          isLeftOut ? [] : [value],
        );
      }
    }
  });

  test('is in /api/history, a counter as its growth', () => {
    const { history } = field;
    assert.equal(LOAD_SERIES.includes(history?.name ?? ''), history?.isSummed === true);
    if (!history) return;
    const [instance, rates] = [memberWith(full), new CounterRates()];
    rates.of(instance, 1_000);
    instance.load = { ...full, [name]: values[name] + 8 };
    const seen = nodeValues(instance, rates.of(instance, 2_000));
    assert.equal(seen.length, NODE_SERIES.length);
    assert.equal(seen[NODE_SERIES.indexOf(history.name)], field.kind === 'gauge' ? values[name] + 8 : 4);
  });

  test('is a fact of a node on the dashboard for the roles that measure it', () => {
    for (const role of ['prefill', 'decode', 'store'] as const) {
      const facts = Object.fromEntries(nodeFacts(nodeView(memberWith(full, role), moment), null));
      const isShown = field.label !== undefined && field.roles.includes(role);
      assert.equal(facts[field.label ?? ''] !== undefined, isShown, role);
    }
  });
});

test('`penstock top` has a column for each field that names one', () => {
  const body = { nodes: [nodeView(memberWith(full), moment)] };
  const last = sampleOf(body, '', { nowMs: 0, wallMs: 0 });
  const [row] = rowsOf(undefined, last);
  const columns = loadFields.flatMap(([name, { column, pool }]) =>
    column === undefined ? [] : [{ name, column, field: pool?.name as keyof ColumnLoad }],
  );
  const view = { address: 'a:1', before: undefined, fault: undefined, nowMs: 0 };
  const { table } = tableLines({ ...view, last, sorting: 'n', isReversed: false, scroll: 0 });
  for (const { name, column, field } of columns) {
    assert.equal(row?.[field], values[name]);
    const end = 1 + (table[0]?.text.indexOf(` ${column} `) ?? 0) + column.length;
    assert(table[1]?.text.slice(0, end).endsWith(String(values[name])), column);
  }
});

test('names are unique at each place', () => {
  const fields = loadFields.map(([, field]) => field);
  for (const names of [
    fields.flatMap(({ pool }) => pool?.name ?? []),
    fields.flatMap(({ metrics }) => metrics ?? []),
    [...NODE_SERIES],
    fields.flatMap(({ label }) => label ?? []),
    fields.flatMap(({ column }) => column ?? []),
  ])
    assert.deepEqual([...new Set(names)], names);
});

test('an engine reports the fields of its role', () => {
  const [info, report, cache] = [
    { layout: { spec: { payloadBytes: 1, slotBytes: 1 } }, numBlocks: 8 },
    { numRunning: 1, numFetching: { waiting: 0, loading: 0, loaded: 0 }, numDeferred: 0 },
    { counters: newTierCounters(), size: 0, numSlotsInTransit: 0 },
  ] as unknown as Parameters<typeof engineLoad>;
  const load = engineLoad(info, report, cache, 1);
  // Measured outside the engine, by engine_instance.ts.
  const outside: LoadName[] = ['openStreams', 'arriving'];
  const reported = loadFields.flatMap(([name]) => (name in load || outside.includes(name) ? [name] : []));
  const expected = loadFields.flatMap(([name, { roles }]) => (roles.includes('decode') ? [name] : []));
  assert.deepEqual(reported, expected);
});

/** Command lines of the processes of a local cluster: every option of `up` reaches the processes that read it. Budget: 2 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { childArguments, membersOf, type ChildPlace } from '../../services/cli/child_arguments.ts';
import { EngineDivision } from '../../services/cli/engine_division.ts';
import { loadTables, tableOf, type ClusterLine } from '../../services/cli/tables.ts';
import { ConfigError, readCommandLine } from '../../shared/base/options.ts';

const tables = await loadTables();
const all = tableOf('up', tables);

function lineOf(...args: string[]): ClusterLine {
  return readCommandLine(all, { command: 'up', tables: { ...tables, up: all } }, args, {}) as ClusterLine;
}

/** Returns the configuration that a process of the cluster reads. */
async function configOf(line: ClusterLine, place: Partial<ChildPlace>): Promise<Record<string, unknown>> {
  const division = await EngineDivision.of(line.config);
  const whole: ChildPlace = {
    role: 'router',
    name: 'router',
    index: 0,
    hubAddress: '',
    httpBind: '',
    bus: '',
    ...place,
  };
  const args = childArguments(line, tables, division, whole);
  return readCommandLine(tables[whole.role], { command: whole.role, tables }, args, {}).config;
}

const OF_ROUTER = ['--policy', 'least_load', '--max-requests', '7', '--keys', 'keys.yaml', '--log-prompts'];

test('every router has all options of a router, and a name, addresses and a bus of its own', async () => {
  const line = lineOf('--router', '2', '--bind', '127.0.0.1:7000', '--metrics-bind', '9400', ...OF_ROUTER);
  for (const number of [1, 2]) {
    const place = { name: `router-${number}`, index: number - 1, httpBind: `127.0.0.1:${6_999 + number}` };
    expect(await configOf(line, { ...place, bus: 'nats://127.0.0.1:4222' })).toMatchObject({
      name: `router-${number}`,
      bind: `127.0.0.1:${6_999 + number}`,
      hub_bind: '',
      bus: 'nats://127.0.0.1:4222',
      metrics_bind: `127.0.0.1:${9_399 + number}`,
      policy: 'least_load',
      max_requests: 7,
      keys: 'keys.yaml',
      log_prompts: true,
    });
  }
});

test('a bus that `up` has started is that of every process; one of --bus is handed on', async () => {
  for (const role of ['router', 'prefill', 'decode', 'store'] as const) {
    const place = { role, name: `${role}-1`, hubAddress: '127.0.0.1:5000' };
    const own = await configOf(lineOf('--router', '2'), { ...place, bus: 'nats://127.0.0.1:4222' });
    assert.equal(own['bus'], 'nats://127.0.0.1:4222', role);
    assert.equal((await configOf(lineOf('--bus', 'nats://10.0.0.1:4222'), place))['bus'], 'nats://10.0.0.1:4222', role);
    assert.equal((await configOf(lineOf(), place))['bus'], '', role);
  }
});

test.each([
  ['1', 'logs.d/audit.jsonl', 'logs.d/audit.jsonl'],
  ['2', 'logs.d/audit.jsonl', 'logs.d/audit.router-2.jsonl'],
  ['2', 'logs.d/audit', 'logs.d/audit.router-2'],
])('of %s routers each writes an audit log of its own: %s is %s', async (count, file, own) => {
  const line = lineOf('--router', count, '--audit-log', file);
  assert.equal((await configOf(line, { name: 'router-2' }))['audit_log'], own);
});

test('a single router has no other arguments than before there were several', async () => {
  const division = await EngineDivision.of(lineOf().config);
  const place: ChildPlace = { role: 'router', name: 'router', index: 0, hubAddress: '', httpBind: '', bus: '' };
  assert.deepEqual(childArguments(lineOf(), tables, division, place), ['--name', 'router', '--log-level', 'warn']);
  assert.deepEqual(
    membersOf(lineOf('--router', '3').config, 1).map(({ name }) => name),
    ['store-1', 'prefill-1', 'decode-1'],
  );
});

test.each(['0', '33', '-1', '1.5', 'two', '127.0.0.1:8001'])('--router %s is refused', (value) => {
  assert.throws(
    () => lineOf(`--router=${value}`),
    (error: unknown) => error instanceof ConfigError && error.message.startsWith('--router: '),
  );
});

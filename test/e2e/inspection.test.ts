/**
 * Commands that look into a running cluster, against real processes: `penstock doctor` on a sound cluster, with a wrong token and with a
 * stopped member, `/api/profile`, and `penstock top` where its output is no terminal. Budget: 25 s.
 */
import assert from 'node:assert/strict';
import { freePort } from '../support/free_ports.ts';
import { afterAll, beforeAll, test } from 'vitest';
import { Cluster, runToEnd } from '../support/cluster.ts';
import { NEVER_SILENT, until } from '../support/until.ts';

interface Finding {
  readonly check: string;
  readonly level: string;
  readonly text: string;
  readonly cure?: string;
}

let cluster: Cluster;
beforeAll(async () => {
  cluster = await Cluster.up(...NEVER_SILENT);
});
afterAll(() => cluster.close());

async function doctor(...args: string[]): Promise<{ code: number | null; findings: Finding[] }> {
  const api = cluster.url.replace('http://', '');
  // Ports of its own: the defaults may be in use on the machine of the test.
  const where = ['--api', api, '--router', cluster.hub, '--bind', api, '--hub-bind', cluster.hub];
  const { code, output, errors } = await runToEnd([
    'doctor',
    '--json',
    '--data-dir',
    cluster.dataFolder,
    ...where,
    ...args,
  ]);
  assert(output.startsWith('{'), errors);
  return { code, findings: (JSON.parse(output) as { findings: Finding[] }).findings };
}

/** Findings of members and the router; those of the machine depend on where the test runs. */
function ofCluster(findings: readonly Finding[]): Finding[] {
  return findings.filter(({ check }) =>
    /^(router|clock|bus|token|hub|members|(router|prefill|decode|store) .+)$/.test(check),
  );
}

test('doctor finds no fault in a sound cluster, and who uses its ports', async () => {
  // A member whose heartbeat is late, or that answers slowly, is a warning: on a busy machine both happen.
  const findings = await until('all is sound', async () => {
    const all = (await doctor()).findings;
    return ofCluster(all).every(({ level }) => level === 'ok') && all;
  });
  const own = ofCluster(findings);
  for (const member of ['prefill prefill-1', 'decode decode-1', 'store store-1'])
    assert.match(own.find(({ check }) => check === member)?.text ?? '', /answers a call in .* shared memory/, member);
  const ports = findings.filter(({ check }) => check.startsWith('port '));
  assert.equal(ports.length, 2);
  for (const { level, text } of ports) assert.match(`${level}: ${text}`, /^ok: .* is used by penstock router/);
});

test('doctor with another token says so at the hub and at each member, and exits with 1', async () => {
  const { code, findings } = await doctor('--cluster-token', 'another');
  assert.equal(code, 1);
  const refused = findings.filter(({ level, text }) => level === 'problem' && /refuses the cluster token/.test(text));
  assert.deepEqual(refused.map(({ check }) => check).sort(), [
    'decode decode-1',
    'prefill prefill-1',
    'router router',
    'store store-1',
    'token',
  ]);
  for (const { cure } of refused) assert.match(cure ?? '', /PENSTOCK_CLUSTER_TOKEN/);
});

test('top prints a table once where its output is no terminal, and says what to do where no router answers', async () => {
  const api = cluster.url.replace('http://', '');
  const { code, output } = await runToEnd(['top', '--api', api]);
  assert.equal(code, 0);
  assert.match(output, /^penstock top .*as of/);
  for (const name of ['prefill-1', 'decode-1', 'store-1']) assert.match(output, new RegExp(`^${name} .* alive `, 'm'));
  assert(!output.includes('\x1b'));
  const port = await freePort();
  const none = await runToEnd(['top', '--once', '--api', `127.0.0.1:${port}`]);
  assert.equal(none.code, 1);
  assert.match(none.errors, /nothing can be shown of http:\/\/127\.0\.0\.1:\d+: ECONNREFUSED; .*--api HOST:PORT/);
});

test('a profile of the router is a Chrome trace, one at a time', async () => {
  const ask = (query: string): Promise<Response> => fetch(`${cluster.url}/api/profile${query}`);
  assert.equal((await ask('?seconds=61')).status, 400);
  const [one, other] = await Promise.all([ask('?seconds=1'), ask('?seconds=1')]);
  assert.deepEqual([one.status, other.status].sort(), [200, 409]);
  const [answer, refusal] = one.status === 200 ? [one, other] : [other, one];
  const { traceEvents } = (await answer.json()) as {
    traceEvents: { name: string; ph: string; args: { name?: string } }[];
  };
  assert(traceEvents.some(({ ph, args }) => ph === 'M' && args.name === 'penstock router router'));
  assert(traceEvents.some(({ ph }) => ph === 'X'));
  assert.match(await refusal.text(), /being recorded already/);
  assert.equal((await ask('?seconds=1')).status, 200);
});

test('doctor says of a stopped member that it accepts connections and answers no call, and what to do', async () => {
  const pid = cluster.pidOf('decode-1');
  process.kill(pid, 'SIGSTOP');
  try {
    const { code, findings } = await doctor();
    assert.equal(code, 1);
    const problems = ofCluster(findings).filter(
      ({ check, level }) => check === 'decode decode-1' && level === 'problem',
    );
    assert.equal(problems.length, 1, JSON.stringify(findings));
    assert.match(problems[0]?.text ?? '', /answers no call: the process is stopped or hangs/);
    assert.match(problems[0]?.cure ?? '', /kill -CONT/);
  } finally {
    process.kill(pid, 'SIGCONT');
  }
});

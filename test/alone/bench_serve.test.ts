/**
 * `penstock bench serve` over real sockets: against a server with fixed delays its figures are within 5 % of the times that the server took by its
 * own clock, and against a cluster it sees what the router reports. Alone on the machine (project e2e), because it measures. Budget: 30 s.
 */
import assert from 'node:assert/strict';
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, test } from 'vitest';
import { Cluster, runToEnd, temporaryFolder } from '../support/cluster.ts';
import type { TrueTimes } from '../support/fixed_delay_server.ts';
import { projectPath } from '../support/project.ts';

const folder = temporaryFolder();
afterAll(() => {
  folder.remove();
});

type Result = Readonly<Record<string, number>> & { readonly penstock: Readonly<Record<string, unknown>> };

async function bench(name: string, url: string, ...args: string[]): Promise<{ table: string; result: Result }> {
  const file = join(folder.path, `${name}.json`);
  const command = ['bench', 'serve', '--base-url', url, '--save-result', file, '--label', name, ...args];
  const { code, output, errors } = await runToEnd(command);
  assert.equal(code, 0, `${output}${errors}`);
  return { table: output, result: JSON.parse(readFileSync(file, 'utf8')) as Result };
}

describe('against a server whose first token takes 200 ms and each further one 20 ms', () => {
  let server: ChildProcess;
  let url = '';
  beforeAll(async () => {
    server = fork(projectPath('dist/test/support/fixed_delay_server.js'), ['200', '20'], { silent: true });
    assert(server.stdout);
    const [line] = (await once(server.stdout, 'data')) as [Buffer];
    url = `http://127.0.0.1:${line.toString().trim()}`;
  });
  afterAll(() => {
    server.kill();
  });

  // Repeated where the machine itself was busy: both clocks are of processes that wait for a core.
  test.each([
    ['completions', '/v1/completions'],
    ['chats', '/v1/chat/completions'],
  ])('TTFT, time per token and total of %s are within a twentieth of its own', { retry: 2 }, async (name, endpoint) => {
    const before = (await (await fetch(`${url}/times`)).json()) as TrueTimes[];
    const args = [
      '--num-prompts',
      '24',
      '--max-concurrency',
      '8',
      '--random-output-len',
      '40',
      '--random-input-len',
      '64',
    ];
    const { result } = await bench(name, url, '--endpoint', endpoint, ...args);
    const times = (await (await fetch(`${url}/times`)).json()) as TrueTimes[];
    // The questions before the run are not of it.
    const own = times.slice(before.length).filter(({ outputTokens }) => outputTokens === 40);
    assert.equal(own.length, 24);
    assert.equal(result['completed'], 24);
    const mean = (of: (one: TrueTimes) => number): number => own.reduce((sum, one) => sum + of(one), 0) / own.length;
    const compared = [
      ['ttft', mean(({ ttftMs }) => ttftMs)],
      ['tpot', mean(({ tpotMs }) => tpotMs)],
      ['itl', mean(({ tpotMs }) => tpotMs)],
      ['e2el', mean(({ totalMs }) => totalMs)],
    ] as const;
    for (const [key, truth] of compared) {
      const measured = result[`mean_${key}_ms`] ?? NaN;
      assert(Math.abs(measured / truth - 1) < 0.05, `${key}: ${measured} ms against ${truth} ms`);
    }
  });
});

test('a server that is not there is an error that says what to do', async () => {
  const { code, errors } = await runToEnd(['bench', 'serve', '--port', '1']);
  assert.equal(code, 1);
  assert.match(errors, /no server to measure at http:\/\/127\.0\.0\.1:1\/: connection refused.*--base-url/);
});

describe('against a cluster', () => {
  let cluster: Cluster;
  beforeAll(async () => {
    cluster = await Cluster.up('--prefill', '1', '--decode', '1', '--store', '0');
  });
  afterAll(async () => {
    await cluster.close();
  });
  const args = [
    '--num-prompts',
    '6',
    '--random-input-len',
    '160',
    '--random-output-len',
    '8',
    '--max-concurrency',
    '3',
  ];

  test('prompts have exactly the wanted tokens, and the second run of a seed finds them cached', async () => {
    const first = await bench('first', cluster.url, ...args);
    assert.deepEqual([first.result['completed'], first.result['total_input_tokens']], [6, 960]);
    assert.equal(first.result['total_output_tokens'], 48);
    assert.equal(first.result.penstock['prompts'], 'ids');
    assert.equal(first.result.penstock['cached_share'], 0);
    const again = await bench('again', cluster.url, ...args);
    assert(Number(again.result.penstock['cached_share']) > 0.5, again.table);
    const other = await bench('other', cluster.url, ...args, '--seed', '1');
    assert(Number(other.result.penstock['cached_share']) < 0.2, other.table);
  });

  test('later turns of a conversation find the earlier ones cached', async () => {
    const shape = [
      '--dataset-name',
      'multi-turn',
      '--num-conversations',
      '2',
      '--turns',
      '3',
      '--max-concurrency',
      '1',
    ];
    const { result, table } = await bench('turns', cluster.url, ...shape, '--input-len', '64', '--output-len', '16');
    assert.equal(result['completed'], 6);
    assert(Number(result.penstock['cached_share']) > 0.1, table);
  });

  test('several results become one page', async () => {
    const html = join(folder.path, 'report.html');
    const files = ['first', 'again', 'turns'].map((name) => join(folder.path, `${name}.json`));
    const { code, output } = await runToEnd(['bench', 'report', ...files, '--html', html]);
    assert.equal(code, 0, output);
    const page = readFileSync(html, 'utf8');
    for (const name of ['first', 'again', 'turns', 'Time to First Token']) assert(page.includes(name), name);
  });
});

/**
 * Every version of Node that people have: the build loads, the kernels compute the same bits, a cluster answers the README's chat, streamed,
 * and serves its page. Nothing is warned of. Covered on Linux x64 alone, where npm has the executables. Budget: 80 s.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { promisify } from 'node:util';
import { beforeAll, describe, expect, test } from 'vitest';
import { Cluster } from '../support/cluster.ts';
import { assertNoLines, assertNoneMatches } from '../support/no_lines.ts';
import { projectPath } from '../support/project.ts';

const { nodes } = (await import(projectPath('config/test_nodes.js'))) as { nodes: () => Record<string, string> };
const run = promisify(execFile);

const ANSWER = 'Locker 42 opens with code 9071.';
const messages = [
  {
    role: 'system',
    content:
      'You keep the harbour log.\nMira keeps the red key in the north boathouse.\nLocker 42 opens with code 9071.',
  },
  { role: 'user', content: 'What is the code of locker 42?' },
];

function linesOf(text: string): string[] {
  return text.split('\n').filter((line) => line !== '');
}

/** Returns the digests of what a golden model computes, in every weight format. */
async function bitsOf(node: string): Promise<string> {
  const { stdout, stderr } = await run(node, [projectPath('dist/test/bench/bits.js'), '--models', 'llama-odd']);
  assertNoLines(linesOf(stderr));
  return stdout;
}

/** Returns the text of a streamed chat. */
async function streamedChat(url: string): Promise<string> {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'harbour', messages, stream: true }),
  });
  assert.equal(response.status, 200);
  const events = (await response.text()).split('\n\n').flatMap((event) => /^data: (\{.*)/.exec(event)?.[1] ?? []);
  return events
    .map(
      (event) => (JSON.parse(event) as { choices: { delta: { content?: string } }[] }).choices[0]?.delta.content ?? '',
    )
    .join('');
}

describe.each(Object.entries(nodes()))('Node %s', (version, node) => {
  let expectedBits = '';
  beforeAll(async () => {
    expectedBits = await bitsOf(process.execPath);
  });

  test('is that version, loads the build, closes its files and speaks TLS, without a warning', async () => {
    assert.equal((await run(node, ['--version'])).stdout, `v${version}\n`);
    const smoke = projectPath('dist/test/support/node_smoke.js');
    const { stdout, stderr } = await run(node, ['--expose-gc', '--pending-deprecation', smoke]);
    assertNoLines(linesOf(stderr));
    expect((JSON.parse(stdout) as { numModules: number }).numModules).toBeGreaterThan(600);
  });

  test('computes the bits of this version (E2)', async () => {
    const bits = await bitsOf(node);
    assert(bits.split('\n').length > 10, bits);
    assert.equal(bits, expectedBits);
  });

  test('runs a cluster that answers a streamed chat and serves its page, without a warning', async () => {
    const cluster = await Cluster.upOn(node);
    try {
      assert.equal(await streamedChat(cluster.url), ANSWER);
      const page = await (await fetch(`${cluster.url}/dashboard`)).text();
      const [, script = ''] = /<script[^>]* src="([^"]+)"/.exec(page) ?? [];
      assert.equal(
        (await fetch(new URL(script, `${cluster.url}/dashboard`))).status,
        200,
        `the page's script ${script}`,
      );
    } finally {
      await cluster.close();
    }
    assert.equal(cluster.errors.at(-1), 'ended');
    // Node's own warnings: "(node:1) [DEP0123] DeprecationWarning: ...". V8 ends a process with "Fatal error", Node with "FATAL ERROR".
    assertNoneMatches(cluster.errors, /Warning:|\(node:|fatal error/i);
  });

  test('starts threads while V8 compiles eagerly, and ends them while they load native libraries', async () => {
    const closing = projectPath('dist/test/support/closing_threads.js');
    const { stdout, stderr } = await run(node, [closing, '10']);
    assertNoLines(linesOf(stderr));
    assert.equal(stdout, '30 ended\n');
  });
});

test('these are the versions that the README names', () => {
  const named = /Node ([\d., and]+) are tested/.exec(readFileSync(projectPath('README.md'), 'utf8'))?.[1] ?? '';
  const tested = Object.keys(nodes()).map((version) => /^20\.19|^\d+/.exec(version)?.[0]);
  if (tested.length > 0) assert.deepEqual(named.split(/, | and /), tested);
});

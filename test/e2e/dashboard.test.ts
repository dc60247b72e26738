/** The dashboard in Chromium over a real cluster: what the page says of processes that compute, move blocks and end. SCREENSHOT=FILE keeps a picture. Budget: 40 s. */
import assert from 'node:assert/strict';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { Cluster } from '../support/cluster.ts';
import { hubOf, joinAsFake } from '../support/fake_member.ts';
import { errorsOf, launchChromium, openPage } from '../support/chromium.ts';
import { assertNoLines } from '../support/no_lines.ts';
import { until } from '../support/until.ts';

const token = 'dashboard-test-token';
let cluster: Cluster;
let browser: Browser;
beforeAll(async () => {
  // Prompts are computed elsewhere than answers, whatever that costs: the page shows what moves between them.
  const policy = ['--policy', 'longest_prefix', '--local-prefill-tokens', '64'];
  cluster = await Cluster.up(...policy, '--cluster-token', token);
  browser = await launchChromium();
});
afterAll(async () => {
  await browser.close();
  await cluster.close();
});

async function open(hash: string): Promise<{ page: Page; errors: readonly string[] }> {
  const page = await openPage(browser);
  const errors = errorsOf(page);
  await page.goto(`${cluster.url}/dashboard${hash}`);
  await page.locator('.liveness.live').waitFor();
  return { page, errors };
}

const promptOf = (first: number): number[] => Array.from({ length: 500 }, (_, i) => first + (i % 900));

test('what is held and computed appears without a reload', async () => {
  const { page, errors } = await open('#/pool');
  const nodes = page.getByRole('table', { name: 'Nodes' });
  for (const name of ['decode-1', 'prefill-1', 'store-1', 'router'])
    await nodes.getByText(name, { exact: true }).first().waitFor();
  await page.getByText('All is well.').waitFor();
  await cluster.completion({ prompt: promptOf(3), max_tokens: 4 });
  await cluster.completion({ prompt: promptOf(3), max_tokens: 4 });
  // One host: blocks come through shared memory. Those of the first prompts may have come before the data channel was open.
  let first = 4;
  await until('blocks came through memory', async () => {
    await cluster.completion({ prompt: promptOf(first++), max_tokens: 4 });
    return ((await cluster.node('decode-1')).fetched_bytes?.memory ?? 0) > 0;
  });
  const [view] = await cluster.requests(1);
  assert(view);
  await page.getByRole('img', { name: 'How full the tiers are' }).waitFor();
  await page
    .getByText(/that no other node holds|would cost nothing/)
    .first()
    .waitFor();
  await page.getByRole('link', { name: 'Flow' }).click();
  const handoff = page.getByRole('table', { name: 'Links' }).locator('tr', { hasText: 'memory' });
  await handoff.filter({ hasText: 'prefill-1' }).filter({ hasText: 'decode-1' }).waitFor();
  await page.getByRole('link', { name: 'Overview' }).click();
  await page.locator('.chart-legend li', { hasText: 'handed over' }).waitFor();
  await page.locator('.events li', { hasText: 'joined' }).first().waitFor();
  await page.getByRole('link', { name: 'Requests' }).click();
  await page.getByText(view.id).first().waitFor();
  const screenshot = process.env['SCREENSHOT'];
  if (screenshot) await page.screenshot({ path: screenshot, fullPage: true });
  assertNoLines(errors);
  await page.close();
});

test('a member that nobody can call is there with the cause, and the cluster is well without it', async () => {
  const network = new GrpcNetwork(token, systemClock);
  const { cluster: membership } = joinAsFake({
    member: { name: 'store-far', role: 'store', address: '127.0.0.1:1', pid: process.pid, epoch: 'far' },
    clock: systemClock,
    openBus: hubOf(cluster.hub, token, network, systemClock),
  });
  const { page } = await open('#/pool');
  const sick = page.getByRole('list', { name: 'Nodes that are not well' }).getByText(/127\.0\.0\.1:1/);
  await sick.waitFor();
  assert.equal((await fetch(`${cluster.url}/health`)).status, 200);
  const screenshot = process.env['SCREENSHOT_UNREACHABLE'];
  if (screenshot) await page.screenshot({ path: screenshot, fullPage: true });
  membership.leave();
  network.close();
  await page.close();
});

test('a decode instance that is killed is said, and stays an event when it is back', async () => {
  const { page } = await open('#/overview');
  await page.locator('.events li', { hasText: 'decode-1' }).first().waitFor();
  await cluster.killAndAwait(['decode-1']);
  const lost = page.locator('.events li', { hasText: 'decode-1' }).filter({ has: page.locator('.word.bad') });
  await lost.first().waitFor();
  await page.locator('.events li', { hasText: 'joined' }).filter({ hasText: 'decode-1' }).nth(1).waitFor();
  await page.close();
});

test('a page under a name that the router does not know is refused, with what to do', async () => {
  const named = await launchChromium(['--host-resolver-rules=MAP pool.example 127.0.0.1']);
  const page = await openPage(named);
  await page.goto(`${cluster.url.replace('127.0.0.1', 'pool.example')}/dashboard`);
  await page.getByText(/the Host header names .*pool\.example.*--allowed-origins/).waitFor();
  await named.close();
});

test('a router that hangs makes the page stale, and one that is started anew is shown, both without a reload', async () => {
  const { page } = await open('#/pool/node/router');
  await page.evaluate('window.isSamePage = true');
  const banner = page.getByText(/The router has not answered since/);
  cluster.kill('router', 'SIGSTOP');
  await banner.waitFor();
  cluster.kill('router', 'SIGCONT');
  await banner.waitFor({ state: 'detached' });
  const pid = cluster.pidOf('router');
  await page.getByText(`process ${pid}`).waitFor();
  cluster.kill('router');
  await until('the router is back', () => cluster.pidOf('router') !== pid);
  await page.getByText(`process ${cluster.pidOf('router')}`).waitFor();
  await banner.waitFor({ state: 'detached' });
  assert.equal(await page.evaluate('window.isSamePage'), true);
  await page.close();
});

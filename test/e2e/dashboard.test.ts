/** The dashboard in a real browser: what runs, what is held, where requests went. SCREENSHOT=FILE keeps a picture. Budget: 30 s. */
import assert from 'node:assert/strict';
import { chromium, type Browser } from 'playwright-core';
import { afterAll, beforeAll, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { Cluster } from '../support/cluster.ts';
import { hubOf, joinAsFake } from '../support/fake_member.ts';

const token = 'dashboard-test-token';
let cluster: Cluster;
let browser: Browser;
beforeAll(async () => {
  // Prompts are computed elsewhere than answers, whatever that costs: the page shows what moves between them.
  const policy = ['--policy', 'longest_prefix', '--local-prefill-tokens', '64'];
  cluster = await Cluster.up(...policy, '--cluster-token', token);
  browser = await chromium.launch({
    executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium',
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  });
});
afterAll(async () => {
  await browser.close();
  await cluster.close();
});

test('the page shows the pool and the requests, and stays live', async () => {
  const page = await browser.newPage({ viewport: { width: 1_400, height: 800 } });
  const errors: string[] = [];
  page.on('pageerror', (error) => errors.push(error.message));
  await page.goto(`${cluster.url}/dashboard`);
  for (const name of ['decode-1', 'prefill-1', 'store-1'])
    await page.getByText(name, { exact: true }).first().waitFor();
  const prompt = Array.from({ length: 500 }, (_, i) => 3 + (i % 900));
  await cluster.completion({ prompt, max_tokens: 4 });
  await cluster.completion({ prompt, max_tokens: 4 });
  const [view] = await cluster.requests(1);
  assert(view);
  // The row appears without a page reload.
  const row = page.locator('#requests tr', { hasText: view.id }).filter({ hasText: 'finished' });
  await row.waitFor({ timeout: 15_000 });
  const text = (await row.textContent()) ?? '';
  assert(text.includes('finished') && text.includes('decode-1'), text);
  await page.locator('#nodes tr', { hasText: 'disk' }).first().waitFor();
  // One host: blocks come through shared memory. Those of the first prompt may have come before the data channel was open.
  const other = prompt.map((token) => token + 1);
  await cluster.completion({ prompt: other, max_tokens: 4 });
  await page
    .locator('#nodes tr', { hasText: 'decode-1' })
    .filter({ hasText: /memory [\d.]+ [KM]iB/ })
    .first()
    .waitFor();
  const screenshot = process.env['SCREENSHOT'];
  if (screenshot) await page.screenshot({ path: screenshot, fullPage: true });
  assert.deepEqual(errors, []);
});

test('a member that nobody can call is there with the cause, and the cluster is well without it', async () => {
  const network = new GrpcNetwork(token, systemClock);
  const { cluster: membership } = joinAsFake({
    member: { name: 'store-far', role: 'store', address: '127.0.0.1:1', pid: process.pid, epoch: 'far' },
    ...{ clock: systemClock, openBus: hubOf(cluster.hub, token, network, systemClock) },
  });
  const page = await browser.newPage({ viewport: { width: 1_400, height: 800 } });
  await page.goto(`${cluster.url}/dashboard`);
  const row = page.locator('#nodes tr', { hasText: 'store-far' });
  await row.getByText(/unreachable: .*127\.0\.0\.1:1/).waitFor({ timeout: 15_000 });
  assert.equal((await fetch(`${cluster.url}/health`)).status, 200);
  const screenshot = process.env['SCREENSHOT_UNREACHABLE'];
  if (screenshot) await page.screenshot({ path: screenshot, fullPage: true });
  membership.leave();
  network.close();
});

/** Questions of an operator to the dashboard, in Chromium over a real cluster of 2 + 2 + 2 under load: each is answered at most two clicks from the page's start. Budget: 40 s. */
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Browser, Locator, Page } from 'playwright-core';
import { afterAll, beforeAll, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { errorsOf, launchChromium, openPage } from '../support/chromium.ts';
import { Cluster } from '../support/cluster.ts';
import { hubOf, joinAsFake } from '../support/fake_member.ts';
import { assertNoLines } from '../support/no_lines.ts';

const token = 'dashboard-test-token';
const question = 'Where did the Heron go after the storm, and who has the key? '.repeat(12);
let cluster: Cluster;
let browser: Browser;
let page: Page;
let errors: readonly string[];
let isLoaded = true;
let load: Promise<void>;
beforeAll(async () => {
  const roles = ['--prefill', '2', '--decode', '2', '--store', '2'];
  cluster = await Cluster.up(...roles, '--cluster-token', token);
  browser = await launchChromium();
  page = await openPage(browser);
  errors = errorsOf(page);
  await chat(question);
  load = sendRequests();
});
afterAll(async () => {
  isLoaded = false;
  await load;
  await browser.close();
  await cluster.close();
});

async function chat(content: string): Promise<void> {
  const response = await fetch(`${cluster.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'harbour', messages: [{ role: 'user', content }], max_tokens: 2 }),
  });
  assert.equal(response.status, 200, await response.text());
}

/** Sends a few requests a second: prompts with a beginning in common. */
async function sendRequests(): Promise<void> {
  for (let i = 0; isLoaded; i++) {
    const own = Array.from({ length: 200 }, (_, at) => 3 + ((31 * i + 7 * at) % 900));
    await cluster.completion({ prompt: [...Array.from({ length: 96 }, (_, at) => 3 + at), ...own], max_tokens: 4 });
    // eslint-disable-next-line time/speed -- a pace, which leaves the cores to the page
    await sleep(200);
  }
}

/** Loads the page anew. Returns how to click, at most twice. */
async function open(): Promise<(target: Locator) => Promise<void>> {
  // Another address first: a change after the # alone loads nothing.
  await page.goto('about:blank');
  await page.goto(`${cluster.url}/dashboard`);
  await page.locator('.liveness.live').waitFor();
  let clicks = 0;
  return async (target) => {
    assert(++clicks <= 2, 'two clicks were not enough');
    await target.click();
  };
}

const tab = (name: string): Locator => page.locator('nav[aria-label=Views]').getByRole('link', { name });
const card = (title: string): Locator => page.getByRole('region', { name: title, exact: true });

test('who holds what, and how full it was over 15 minutes', async () => {
  const click = await open();
  await click(tab('Pool'));
  for (const name of ['prefill-1', 'prefill-2', 'decode-1', 'decode-2', 'store-1', 'store-2']) {
    const row = page.getByRole('table', { name: 'Nodes' }).locator('tr', { hasText: name });
    await row.filter({ hasText: '%' }).waitFor();
  }
  await page.getByRole('button', { name: '15 minutes', pressed: true }).waitFor();
  const fill = card('How full the tiers are');
  await fill.getByRole('img').waitFor();
  await fill.locator('li', { hasText: 'Device' }).filter({ hasText: '%' }).waitFor();
  await card('What the loss of a node would cost')
    .getByText(/that no other node holds|would cost nothing/)
    .first()
    .waitFor();
});

test('the hit rate by source', async () => {
  await open();
  const sources = card('Prompt tokens a second, by where their KV came from');
  await sources.locator('li', { hasText: 'own device' }).filter({ hasText: '%' }).waitFor();
  await page
    .locator('.tile', { hasText: 'Hit rate' })
    .getByText(/[1-9]\d* %/)
    .waitFor();
});

test('the slowest requests, and why they were slow', async () => {
  const click = await open();
  await click(page.getByRole('table', { name: 'Slowest requests' }).getByRole('link').first());
  await card('Time over processes').getByText('compute', { exact: true }).first().waitFor();
  await card("Where the prompt's KV came from").getByText('Why tokens were computed').waitFor();
});

test('why a request ran where it did: what it cost there, and what it would have cost elsewhere', async () => {
  const click = await open();
  await click(tab('Requests'));
  const list = page.getByRole('table', { name: 'List of requests' });
  await click(list.locator('tr', { hasText: 'finished' }).first().getByRole('link').first());
  const placement = card('Placement');
  await placement.locator('tr', { hasText: 'taken' }).filter({ hasText: 'time to first token' }).waitFor();
  await placement.getByText(/and \d+ others that were not/).waitFor();
  const other = placement.locator('tbody tr').nth(1);
  assert.match(await other.innerText(), /\(\+[\d.]+ m?s\)/, 'how much dearer the next one was');
});

test('how the router itself does: it is a node, too, and its page has nothing that only members have', async () => {
  const click = await open();
  await click(tab('Pool'));
  await click(page.getByRole('table', { name: 'Nodes' }).getByRole('link', { name: 'router', exact: true }));
  const facts = card('router');
  for (const label of ['Requests in flight', 'Memory', 'CPU time', 'Answers late by'])
    await facts.locator('div', { hasText: label }).locator('dd', { hasText: /\d/ }).first().waitFor();
  await card('What happened to it').getByText('router started', { exact: true }).waitFor();
  assert.equal(await page.locator('main .notice.bad').count(), 0);
  for (const title of ['What it holds', 'Sequences', 'Links of this node']) assert.equal(await card(title).count(), 0);
});

test('the busiest link', async () => {
  const click = await open();
  await click(tab('Flow'));
  await card('The busiest link')
    .getByText(/\S+-\d → \S+-\d by (memory|socket|call): [\d.]+ [kMG]?B\/s/)
    .waitFor();
});

test('where a prompt lies', async () => {
  const click = await open();
  await click(tab('Blocks'));
  await card('Cached prefixes')
    .getByText(/^All prompts: [\d,]+ blocks/)
    .first()
    .waitFor();
  await page.getByLabel(/Message of a user/).fill(question);
  await click(page.getByRole('button', { name: 'Look it up' }));
  const lookup = card('Where does a prompt lie?');
  // The load decides where the prompt would run; who holds it stands there in any case.
  await lookup.getByText(/would come from the cache on (prefill|decode)-\d/).waitFor();
  const held = lookup.locator('.key li').filter({ hasText: /(prefill|decode|store)-\d \(/ });
  await held.getByText('192 tokens').waitFor();
  await lookup.getByText('would be taken').waitFor();
});

test('which node is sick and why, and what changed', async () => {
  const network = new GrpcNetwork(token, systemClock);
  const { cluster: membership } = joinAsFake({
    member: { name: 'store-far', role: 'store', address: '127.0.0.1:1', pid: process.pid, epoch: 'far' },
    clock: systemClock,
    openBus: hubOf(cluster.hub, token, network, systemClock),
  });
  const click = await open();
  const events = page.locator('.events li', { hasText: 'store-far' });
  await events.filter({ hasText: 'joined' }).waitFor();
  await events
    .filter({ has: page.locator('.word.bad') })
    .first()
    .waitFor();
  await click(tab('Pool'));
  const sick = page.getByRole('list', { name: 'Nodes that are not well' }).locator('li', { hasText: 'store-far' });
  await sick.getByText(/127\.0\.0\.1:1/).waitFor();
  membership.leave();
  network.close();
});

test('nothing of it is an error of the page', () => {
  assertNoLines(errors);
});

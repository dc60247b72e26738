/**
 * Requests, Blocks and Playground of the dashboard in Chromium, over a made-up cluster. Not covered: the router's own APIs (unit tests, and
 * dashboard.test.ts), and the other views. Budget: 15 s.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, test } from 'vitest';
import { DashboardFixture } from '../support/dashboard_fixture.ts';
import { errorsOf, launchChromium, misfitsAt, openPage, violationsOf } from '../support/chromium.ts';
import { assertNoLines } from '../support/no_lines.ts';

const START = Date.UTC(2026, 10, 27, 12);
const EVIL = '<img src=x onerror="document.title=1">';
let fixture: DashboardFixture;
let browser: Browser;
beforeAll(async () => {
  fixture = await DashboardFixture.start({ requests: 300 }, START);
  const [row] = fixture.world.requests;
  assert(row);
  const misses = { never_seen: 100 };
  fixture.world.requests.unshift({
    ...row,
    id: EVIL,
    client_id: EVIL,
    model: EVIL,
    reason: EVIL,
    misses,
    decode: EVIL,
  });
  browser = await launchChromium();
});
afterAll(async () => {
  await browser.close();
  await fixture.close();
});

async function open(view: string, width = 1_280): Promise<{ page: Page; errors: readonly string[] }> {
  const page = await openPage(browser, { viewport: { width, height: 900 } });
  const errors = errorsOf(page);
  await page.goto(`${fixture.url}#/${view}`);
  await page.locator('.liveness.live').waitFor();
  return { page, errors };
}

const selection = (page: Page): Promise<string> => page.evaluate('String(getSelection())');

test('a selected id stays selected while requests come, and the list shows them when it is read to the end', async () => {
  const numAsked = (): number => fixture.asked.filter((path) => path.startsWith('/api/requests')).length;
  const before = numAsked();
  const { page, errors } = await open('requests');
  const id = page.locator('tbody tr td .id').nth(2);
  const text = await id.textContent();
  await id.selectText();
  for (let i = 1; i <= 10; i++) fixture.tick(START + i * 1_000);
  await page.getByRole('button', { name: /Paused while you read/ }).waitFor();
  assert.equal(await selection(page), text);
  await page.getByRole('button', { name: /Paused while you read/ }).click();
  const newest = fixture.world.requests[0]?.id ?? '';
  await page.locator('tbody tr', { hasText: newest }).waitFor();
  assert.equal(
    numAsked() - before,
    1,
    'the list is asked for once, though the stream says only later which router this is',
  );
  assertNoLines(errors);
  await page.close();
});

test('a request is found by its id, opened, understood, saved, and linked', async () => {
  const { page, errors } = await open('requests');
  const failed = fixture.world.requests.find(({ phase, sources }) => phase === 'failed' && sources.computed > 64);
  assert(failed);
  await page.getByRole('searchbox', { name: 'Search' }).fill(failed.id);
  await page.getByText(/^1 request shown/).waitFor();
  await page.getByRole('link', { name: failed.id }).press('Enter');
  await page.locator('.waterfall').waitFor();
  assert.equal(new URL(page.url()).hash, `#/requests/${failed.id}`);
  const text = (await page.locator('main').textContent()) ?? '';
  assert.match(text, /\d tokens were evicted from decode-1's device 40 s before the request\./);
  assert.match(text, /37\.2 ms decode-9 failed after 0 tokens/);
  assert.match(text, /the decode instance was lost, and no other has room/);
  assert.equal(
    await page.getByRole('row', { name: /\+60 ms/ }).count(),
    2,
    'a price that was not taken, in each attempt',
  );
  const saved = page.waitForEvent('download');
  await page.getByRole('button', { name: 'Export' }).click();
  const file = JSON.parse(readFileSync(await (await saved).path(), 'utf8')) as { id: string };
  assert.equal(file.id, failed.id);
  await page.getByRole('link', { name: 'All requests' }).click();
  await page.getByText(/^1 request shown/).waitFor();
  assertNoLines(errors);
  await page.close();
});

test('a request that was refused has no tokens, and its error is cut with dots in the list and whole on its page', async () => {
  const [row] = fixture.world.requests;
  assert(row);
  const error = `the prompt is too long: ${'shorten it '.repeat(60)}end`;
  const none = { device: 0, dram: 0, instance: 0, store_dram: 0, store_disk: 0, handoff: 0, computed: 0 };
  fixture.world.requests.unshift({
    ...row,
    id: 'refused',
    client_id: null,
    phase: 'failed',
    error,
    prompt_tokens: 0,
    output_tokens: 0,
    ttft_ms: null,
    decode: null,
    prefill: null,
    attempts: 0,
    reason: '',
    misses: {},
    sources: none,
  });
  const { page, errors } = await open('requests');
  await page.getByRole('searchbox', { name: 'Search' }).fill('refused');
  await page.getByText(/^1 request shown/).waitFor();
  const cells = page.getByRole('table', { name: 'List of requests' }).locator('tbody td');
  const text = cells.last().locator('.cut');
  assert.equal(await text.getAttribute('title'), error);
  const [frame, box] = await Promise.all([page.locator('.table-frame').boundingBox(), text.boundingBox()]);
  assert(frame && box && box.x + box.width <= frame.x + frame.width, 'the dots are to be seen');
  assert.equal(await cells.nth(4).textContent(), '–', 'the tokens of its prompt are not known');
  await page.getByRole('link', { name: 'refused' }).click();
  await page.locator('.failure', { hasText: /end$/ }).waitFor();
  await page.getByText('The request ended before its prompt was computed.').waitFor();
  assertNoLines(errors);
  fixture.world.requests.shift();
  await page.close();
});

test('the list names tenants where there are some, and finds their requests', async () => {
  const { page } = await open('requests');
  await page.locator('tbody tr').first().waitFor();
  assert.equal(await page.getByRole('columnheader', { name: 'Tenant' }).count(), 0);
  assert.equal(await page.getByLabel('Tenant').count(), 0);
  await page.close();
  const own = await DashboardFixture.start({ requests: 20 }, START);
  const { requests } = own.world;
  const owned = requests.map((row, i) => ({ ...row, tenant: i < 3 ? 'sales' : 'research', key: `key-${i}` }));
  requests.splice(0, requests.length, ...owned);
  const other = await openPage(browser, { viewport: { width: 1_280, height: 900 } });
  await other.goto(`${own.url}#/requests`);
  await other.getByRole('columnheader', { name: 'Tenant' }).waitFor();
  await other.getByLabel('Tenant').selectOption('sales');
  await other.getByText(/^3 requests shown/).waitFor();
  await other.getByRole('link', { name: owned[0]?.id ?? '' }).click();
  await other.locator('.fact-line', { hasText: 'Tenant' }).waitFor();
  assert.match((await other.locator('.fact-line').textContent()) ?? '', /Tenant.*sales.*Key.*key-0/);
  await other.close();
  await own.close();
});

test('names and ids from clients are text, whatever they contain', async () => {
  const { page, errors } = await open('requests');
  await page.getByRole('searchbox', { name: 'Search' }).fill('<img');
  await page.getByRole('link', { name: EVIL }).click();
  await page.locator('.waterfall').waitFor();
  assert((await page.locator('h3.id').textContent()) === EVIL);
  await page.goto(`${fixture.url}#/blocks`);
  await page.getByLabel(/Message of a user/).fill(`${EVIL} `.repeat(20));
  await page.getByRole('button', { name: 'Look it up' }).click();
  await page.locator('.token-text').waitFor();
  assert.match((await page.locator('.token-text').textContent()) ?? '', /<img src=x onerror=/);
  assert.equal(await page.locator('img').count(), 0);
  assert.equal(await page.title(), 'Penstock');
  assertNoLines(errors);
  await page.close();
});

test('the tree of blocks is walked by keyboard, and has few elements', async () => {
  const { page, errors } = await open('blocks');
  const tree = page.getByRole('tree');
  await tree.waitFor();
  assert((await page.getByRole('treeitem').count()) <= 500);
  const panel = page.getByRole('region', { name: 'Selected run' });
  await panel.getByText('All prompts').waitFor();
  await tree.press('ArrowDown');
  await panel.getByText('Key of its first block').waitFor();
  const key = (await panel.locator('.id').textContent()) ?? '';
  await tree.press('Enter');
  await page.waitForURL((url) => url.hash === `#/blocks/${key}`);
  await page.getByRole('navigation', { name: 'Way to the shown run' }).getByText(key.slice(0, 6)).waitFor();
  const holder = fixture.world.nodes[0]?.name ?? '';
  await page.getByLabel('Colour by').selectOption(`node ${holder}`);
  await page.getByText(`not on ${holder}`, { exact: true }).waitFor();
  await tree.press('Backspace');
  await page.waitForURL((url) => url.hash === '#/blocks');
  assertNoLines(errors);
  await page.close();
});

test('a rectangle of the tree is as wide as its share, however narrow, and none is beyond the whole', async () => {
  const { page, errors } = await open('blocks', 390);
  await page.getByRole('treeitem').nth(20).waitFor();
  // Widths move to their places over 0.2 s.
  await page.waitForFunction(`document.getAnimations().length === 0`);
  const wrong = await page.evaluate(`(() => {
    const chart = document.querySelector('.icicle');
    const { left, width, right } = chart.getBoundingClientRect();
    return [...chart.children].flatMap((cell) => {
      const box = cell.getBoundingClientRect();
      const share = parseFloat(cell.style.width) / 100;
      const isRight = Math.abs(box.width - share * width) < 0.5 && box.left >= left - 0.5 && box.right <= right + 0.5;
      return isRight ? [] : [cell.id + ': ' + box.width + ' of ' + width + ', ' + share];
    });
  })()`);
  assert.deepEqual(wrong, []);
  assertNoLines(errors);
  await page.close();
});

test('a prompt is looked up: its holders, its ranges, each placement with its price', async () => {
  const { page, errors } = await open('blocks');
  await page.getByLabel(/Message of a user/).fill('one two three four '.repeat(6));
  await page.getByRole('button', { name: 'Look it up' }).click();
  await page.getByText(/would come from the cache on decode-1/).waitFor();
  await page.getByText(/Ranges as a table/).click();
  const ranges = page.getByRole('region', { name: 'Ranges of the prompt' });
  assert.equal(await ranges.getByRole('row').count(), 4);
  await ranges.getByText(/store-\d+ \(disk\)/).waitFor();
  await page.getByRole('row', { name: /would be taken 640 ms/ }).waitFor();
  await page.getByText(/tokens have never been seen since this router started/).waitFor();
  assertNoLines(errors);
  await page.close();
});

test('a chat answers, says where its prompt came from, and stops', async () => {
  const { page, errors } = await open('playground');
  await page.getByLabel('Model').locator('option').first().waitFor({ state: 'attached' });
  const question = page.getByRole('textbox', { name: 'Question' });
  await question.fill(`What is ${EVIL}?`);
  await question.press('Enter');
  await page.getByText(/an earlier prompt has left behind/).waitFor();
  await page.getByText(/First token after 182 ms/).waitFor();
  assert.match((await page.locator('.turn-facts').textContent()) ?? '', /cached on the device.*store's disk/);
  await question.fill('and an endless one');
  await question.press('Enter');
  await page.getByRole('button', { name: 'Stop' }).click();
  await page.getByText('Stopped.').waitFor();
  await page.getByRole('button', { name: 'Send' }).waitFor();
  await page.getByRole('link', { name: 'All about this request' }).first().click();
  await page.locator('.waterfall').waitFor();
  assert.equal(await page.locator('img').count(), 0);
  assertNoLines(errors);
  await page.close();
});

test('nothing is clipped and axe finds no violation at any width, light or dark', async () => {
  const id = fixture.world.requests.find(({ attempts }) => attempts > 1)?.id ?? '';
  const views = {
    requests: '.table-frame',
    [`requests/${id}`]: '.waterfall',
    blocks: '.icicle',
    playground: '.composer',
  };
  for (const [view, shown] of Object.entries(views)) {
    const { page } = await open(view);
    await page.locator(shown).waitFor();
    for (const width of [1_280, 800, 390]) {
      assert.deepEqual(await misfitsAt(page, width), [], `${view} at ${width} px`);
    }
    assert.deepEqual(await violationsOf(page), [], `${view}, light`);
    // All but colours is the same.
    await page.emulateMedia({ colorScheme: 'dark' });
    assert.deepEqual(await violationsOf(page, ['color-contrast']), [], `${view}, dark`);
    await page.close();
  }
});

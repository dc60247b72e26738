/** The dashboard in a real browser over a made-up cluster: what each view answers, and how the page behaves. Budget: 25 s. */
import assert from 'node:assert/strict';
import type { Browser, Page, Request } from 'playwright-core';
import { afterAll, afterEach, beforeAll, test } from 'vitest';
import { errorsOf, launchChromium, misfitsAt, openPage, violationsOf } from '../support/chromium.ts';
import { DashboardFixture } from '../support/dashboard_fixture.ts';
import { World } from '../support/dashboard_world.ts';
import { sized } from '../support/long.ts';
import { assertNoLines } from '../support/no_lines.ts';
import { until } from '../support/until.ts';

const START = Date.UTC(2026, 10, 27, 12);

let browser: Browser;
const fixtures: DashboardFixture[] = [];
const pages: Page[] = [];
beforeAll(async () => {
  browser = await launchChromium();
});
afterEach(async () => {
  await Promise.all(pages.splice(0).map((page) => page.context().close()));
  await Promise.all(fixtures.splice(0).map((fixture) => fixture.close()));
});
afterAll(() => browser.close());

async function start(size: Parameters<typeof DashboardFixture.start>[0] = {}): Promise<DashboardFixture> {
  const fixture = await DashboardFixture.start(size, START);
  fixtures.push(fixture);
  return fixture;
}

/** Opens a view. Errors of the page, refused content included, fail the test. */
async function open(fixture: DashboardFixture, hash = '', options: Parameters<Browser['newPage']>[0] = {}) {
  const page = await openPage(browser, options);
  pages.push(page);
  const errors = errorsOf(page);
  const inFlight = new Set<Request>();
  page.on('request', (request) => inFlight.add(request));
  page.on('requestfinished', (request) => inFlight.delete(request));
  page.on('requestfailed', (request) => inFlight.delete(request));
  await page.clock.install({ time: START });
  await page.goto(fixture.url + hash);
  await page.locator('.liveness.live').waitFor();
  return { page, errors, inFlight };
}

const textOf = async (page: Page, selector: string): Promise<string> =>
  (await page.locator(selector).innerText()).trim();

const VIEWS = ['#/overview', '#/pool', '#/pool/node/decode-1', '#/flow'];

test('each view has no fault of accessibility, and nothing is wider than the screen, in light and dark', async () => {
  const fixture = await start();
  fixture.send(fixture.world.setState('decode-3', 'unreachable', 'cannot reach 10.0.0.2:7001'));
  for (const hash of VIEWS) {
    const { page, errors } = await open(fixture, hash);
    await page.locator('main .card').first().waitFor();
    for (const [width, colorScheme] of [
      [1_280, 'light'],
      [800, 'light'],
      [390, 'dark'],
    ] as const) {
      await page.emulateMedia({ colorScheme });
      assert.deepEqual(await misfitsAt(page, width, () => page.clock.runFor(100)), [], `${hash} at ${width}`);
      if (width === 800) continue;
      assert.deepEqual(await violationsOf(page), [], `${hash} at ${width}, ${colorScheme}`);
    }
    assertNoLines(errors);
  }
});

test('a row keeps its place, its element and its selected text while its values change', async () => {
  const fixture = await start();
  const { page } = await open(fixture, '#/pool');
  const link = page.getByRole('table', { name: 'Nodes' }).getByText('decode-7', { exact: true });
  await link.waitFor();
  const before = await link.elementHandle();
  await link.selectText();
  const row = page.getByRole('table', { name: 'Nodes' }).locator('tr', { hasText: 'decode-7' });
  const running = await row.innerText();
  let now = running;
  for (let i = 1; i < 40 && now === running; i++) {
    fixture.tick(START + i * 1_000);
    await page
      .getByText(timeOf(START + i * 1_000))
      .first()
      .waitFor();
    now = await row.innerText();
  }
  assert.notEqual(now, running, 'the values of the row changed');
  assert.equal(await page.evaluate('getSelection().toString()'), 'decode-7');
  assert.equal(await before.isVisible(), true, 'the element is the one of before');
});

const timeOf = (at: number): string =>
  `as of ${new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' }).format(at)}`;

test('three seconds without a tick make the values stale, and the next tick makes them live', async () => {
  const fixture = await start();
  const { page } = await open(fixture);
  // Its clock stands still from here on, with a tick that has just come.
  await page.clock.pauseAt(Number(await page.evaluate('Date.now()')) + 5_000);
  fixture.tick(START + 1_000);
  await page
    .getByText(timeOf(START + 1_000))
    .first()
    .waitFor();
  await page.clock.runFor(2_500);
  assert.equal(await textOf(page, '[role=status]'), '');
  await page.clock.runFor(1_000);
  const banner = await textOf(page, '[role=status]');
  assert(/has not answered since \d\d:\d\d:\d\d/.test(banner), banner);
  assert.equal(await page.locator('main.stale').count(), 1);
  fixture.tick(START + 5_000);
  await page.locator('.liveness.live').waitFor();
  assert.equal(await textOf(page, '[role=status]'), '');
});

test('a router that is started anew is shown without a reload', async () => {
  const fixture = await start();
  const { page } = await open(fixture, '#/pool');
  await page.getByText('12 nodes').waitFor();
  fixture.world = new World({ nodes: 3, blocks: 10, requests: 5, seed: 1 }, START + 9_000, 'epoch-2');
  fixture.dropStreams();
  // The page waits before it connects again: until then the clock goes on.
  for (let i = 0; i < 20 && fixture.numStreams === 0; i++) await page.clock.runFor(500);
  await page.getByText('3 nodes').waitFor();
});

test('a hidden page has no connection and asks nothing; a visible one is live again', async () => {
  const fixture = await start();
  const { page, inFlight } = await open(fixture, '#/overview');
  const show = (state: string): Promise<unknown> =>
    page.evaluate(`Object.defineProperty(document, 'visibilityState', { value: '${state}', configurable: true });
      document.dispatchEvent(new Event('visibilitychange'))`);
  await page.getByText('What changed').waitFor();
  await show('hidden');
  while (fixture.numStreams > 0) await new Promise((resolve) => setImmediate(resolve));
  await until('a question that it had asked before is answered', () => inFlight.size === 0);
  const asked = fixture.asked.length;
  await page.clock.runFor(120_000);
  assert.deepEqual(fixture.asked.slice(asked), []);
  await show('visible');
  await page.locator('.liveness.live').waitFor();
  assert.equal(fixture.numStreams, 1);
});

test('texts of the cluster are text, never HTML', async () => {
  const fixture = await start();
  const evil = '<img src=x onerror="document.title=1">';
  const [node] = fixture.world.nodes;
  assert(node);
  fixture.world.nodes[0] = { ...node, name: evil, role: evil, model: evil, state: evil, device: evil };
  fixture.send(fixture.world.setState('decode-3', 'unreachable', evil));
  for (const hash of ['#/overview', '#/pool', `#/pool/node/${encodeURIComponent(evil)}`, '#/flow']) {
    const { page, errors } = await open(fixture, hash);
    await page.locator('main .card').first().waitFor();
    assert.equal(await page.locator('img').count(), 0);
    assert.equal(await page.title(), 'Penstock');
    if (hash !== '#/flow' && hash !== '#/overview') assert((await page.locator('main').innerText()).includes(evil));
    assertNoLines(errors);
  }
});

test('a lost node is said at once, marked as an event, and its page says what happened', async () => {
  const fixture = await start();
  const { page } = await open(fixture);
  fixture.send(fixture.world.lose('decode-7'));
  const item = page.locator('.events li', { hasText: 'decode-7 was lost' });
  await item.waitFor();
  await item.getByRole('link', { name: 'decode-7' }).click();
  await page.getByText('The router knows no node decode-7 now').waitFor();
  await page.locator('.events li', { hasText: 'was lost' }).waitFor();
});

test('who holds what, how full, hits by source, busiest link, who is sick, what changed: each at most two clicks away', async () => {
  const fixture = await start();
  fixture.send(fixture.world.setState('decode-3', 'unreachable', 'cannot reach 10.0.0.2:7001'));
  const { page } = await open(fixture);
  await page.locator('.chart-legend li', { hasText: 'own device' }).filter({ hasText: '%' }).waitFor();
  await page.locator('.events li', { hasText: 'decode-3 is unreachable' }).waitFor();
  await page.getByRole('link', { name: 'Pool' }).click();
  await page.getByText('cannot reach 10.0.0.2:7001').first().waitFor();
  await page.getByRole('img', { name: 'How full the tiers are' }).waitFor();
  await page.getByText('Twice as much would bring 74 %, 20 points more.').waitFor();
  await page.getByText('that no other node holds').waitFor();
  const rows = page.getByRole('table', { name: 'Nodes' }).locator('tbody tr');
  assert((await rows.first().innerText()).startsWith('decode-1'));
  await page.getByRole('button', { name: 'Sick first' }).click();
  await rows.first().getByText('decode-3').waitFor();
  await page.getByRole('link', { name: 'Flow' }).click();
  const rates = await page.getByRole('table', { name: 'Links' }).locator('tbody tr').allInnerTexts();
  assert((await textOf(page, '.lead')).includes((rates[0] ?? '').split('\t')[3]?.trim() ?? '?'), rates[0]);
});

test('the keyboard reaches tabs and rows', async () => {
  const fixture = await start();
  const { page } = await open(fixture, '#/pool');
  await page.getByRole('table', { name: 'Nodes' }).locator('tbody a').first().focus();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'decode-7' }).waitFor();
  await page.getByRole('link', { name: 'Overview' }).focus();
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'What changed' }).waitFor();
});

test('1,000 nodes need at most 2,000 elements and little memory', async () => {
  const fixture = await start({ nodes: 1_000, blocks: 100_000, requests: 10_000 });
  for (const hash of VIEWS) {
    const { page } = await open(fixture, hash);
    await page.locator('main .card').first().waitFor();
    assert((await page.locator('*').count()) <= 2_000, hash);
    assert(((await memoryOf(page))['JSHeapUsedSize'] ?? Infinity) < 150 * 2 ** 20, hash);
  }
});

test('ticks of an hour (of ten minutes in the short run) leave listeners and memory as they were', async () => {
  const fixture = await start({ nodes: 50 });
  const { page } = await open(fixture, '#/pool');
  let at = START;
  const pass = async (ticks: number): Promise<void> => {
    for (let i = 0; i < ticks; i++) fixture.tick((at += 1_000), 0);
    await page.getByText(timeOf(at)).first().waitFor();
  };
  // The charts have their full span then.
  await pass(1_000);
  const before = await memoryOf(page);
  await pass(sized(3_600, 600));
  const after = await memoryOf(page);
  assert.equal(after['JSEventListeners'], before['JSEventListeners']);
  const grown = (after['JSHeapUsedSize'] ?? 0) - (before['JSHeapUsedSize'] ?? 0);
  assert(grown < 2 ** 20, `the heap grew by ${grown} bytes`);
});

/** Metrics of a page after its garbage was collected. */
async function memoryOf(page: Page): Promise<Record<string, number>> {
  const session = await page.context().newCDPSession(page);
  await session.send('Performance.enable');
  await session.send('HeapProfiler.collectGarbage');
  const { metrics } = await session.send('Performance.getMetrics');
  return Object.fromEntries(metrics.map(({ name, value }) => [name, value]));
}

/** Chromium for tests of the dashboard: how it is started, and what is wrong with a page. */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium, type Browser, type BrowserContextOptions, type Page } from 'playwright-core';
import { PATIENCE_MS, turn } from './until.ts';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Starts Chromium without what it does for itself in the background; `more` are further flags. */
export function launchChromium(more: readonly string[] = []): Promise<Browser> {
  return chromium.launch({
    executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium',
    args: [
      ...['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking'],
      ...['--disable-component-update', '--disable-sync', ...more],
    ],
  });
}

/** Opens a page, 900 pixels high, whose actions wait as long as tests do. */
export async function openPage(browser: Browser, options: BrowserContextOptions = {}): Promise<Page> {
  const page = await browser.newPage({ viewport: { width: 1_280, height: 900 }, ...options });
  page.setDefaultTimeout(PATIENCE_MS);
  return page;
}

/** Returns a list that grows with each error of the page: exceptions, and messages like those of a violated content security policy. */
export function errorsOf(page: Page): readonly string[] {
  const errors: string[] = [];
  page.on('pageerror', (error) => errors.push(error.message));
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') errors.push(message.text());
  });
  return errors;
}

/** Returns the violations that axe-core finds in the page as it is now; with `rules`, those of the rules. */
export async function violationsOf(page: Page, rules?: readonly string[]): Promise<string[]> {
  await page.evaluate(axe);
  const options = JSON.stringify(rules ? { runOnly: rules } : {});
  const found = await page.evaluate(`axe.run(document, ${options}).then(({ violations }) => violations)`);
  return (found as { id: string; nodes: { html: string }[] }[]).map(
    ({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(' ')}`,
  );
}

/**
 * Elements whose content is cut, and by how many pixels the page is wider than its window, as a script of the page. A `scroll` is made to be
 * scrolled, a run of the icicle too narrow for its key tells it when it is pointed at, and `hidden` is for screen readers.
 */
const MISFITS = `[
  ...[...document.querySelectorAll('body *:not(.scroll, .hidden, .icicle *)')]
    .filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && getComputedStyle(e).overflowX !== 'visible')
    .map((e) => 'cut: ' + e.className),
  ...[document.documentElement.scrollWidth - innerWidth].filter((pixels) => pixels > 0).map((pixels) => pixels + ' px too wide'),
]`;

/** Looks in a row, each answered by the page between its frames, that find the same misfits. */
const NUM_SAME = 500;

/**
 * Gives the page's window a width in pixels, and returns what does not fit. Charts follow the width in a later frame, so
 * what never fits is returned. `passTime` moves the page's clock on, if it stands still.
 */
export async function misfitsAt(
  page: Page,
  width: number,
  passTime: () => Promise<void> = () => Promise.resolve(),
): Promise<readonly string[]> {
  await page.setViewportSize({ width, height: 900 });
  let misfits: string[] = [];
  for (let numSame = 0; numSame < NUM_SAME;) {
    await passTime();
    const now = await page.evaluate<string[]>(MISFITS);
    if (now.length === 0) return now;
    numSame = now.join() === misfits.join() ? numSame + 1 : 0;
    misfits = now;
    await turn();
  }
  return misfits;
}

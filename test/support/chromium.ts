/** Chromium for tests of the dashboard: how it is started, and what is wrong with a page. */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium, type Browser, type Page } from 'playwright-core';

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

/** Returns by how many pixels the page is wider than its window. */
export async function overflowOf(page: Page): Promise<number> {
  return page.evaluate<number>('document.documentElement.scrollWidth - innerWidth');
}

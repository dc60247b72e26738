/** Checks of a page in a browser: its errors, what axe-core finds, and whether it is too wide. */
import { readFileSync } from 'node:fs';
import type { Page } from 'playwright-core';
import { projectPath } from './project.ts';

const axe = readFileSync(projectPath('node_modules/axe-core/axe.min.js'), 'utf8');

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

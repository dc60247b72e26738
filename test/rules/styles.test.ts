/** Style sheets: no file is larger than one of code may be, and app.css joins each of the page once. Budget: 5 s. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'vitest';
import { projectPath } from '../support/project.ts';

/** The limit of lint, which reads no style sheets. */
const { MAX } = (await import(new URL('config/eslint_sizes.config.js', `file://${projectPath('./')}`).href)) as {
  MAX: { readonly lines: number };
};

const folder = 'services/dashboard';
const index = 'app.css';
const sheets = readdirSync(projectPath(folder), { recursive: true, encoding: 'utf8' })
  .map((path) => path.replaceAll('\\', '/'))
  .filter((path) => path.endsWith('.css'));
const textOf = (path: string): string => readFileSync(projectPath(join(folder, path)), 'utf8');

/** Returns the lines that have more than a comment. */
function linesOf(text: string): string[] {
  return text
    .replaceAll(/\/\*[^]*?\*\//g, '')
    .split('\n')
    .filter((line) => line.trim() !== '');
}

test.each(sheets)('%s is small and says what its rules are of', (path) => {
  const text = textOf(path);
  assert(linesOf(text).length <= MAX.lines, `${linesOf(text).length} lines, over ${MAX.lines}: divide it`);
  assert.match(text, /^\/\* [A-Z][^]*?\. \*\/\n/);
});

test('app.css joins each style sheet once, and has no rule of its own', () => {
  const imported = linesOf(textOf(index)).map((line) => /^@import '\.\/([\w/]+\.css)';$/.exec(line)?.[1]);
  assert.deepEqual([...imported].sort(), sheets.filter((path) => path !== index).sort());
});

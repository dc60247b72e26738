/** `npm run test:long` runs whole what `npm test` has a sample of: its list has every suite that leaves something out. Budget: 1 s. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { test } from 'vitest';
import { projectPath } from './support/project.ts';

const folder = projectPath('test');
const helper = join(folder, 'support/long.ts');

/** Whether a file leaves something out of the short run, itself or in a file of tests that it imports. */
function isSampled(file: string, seen = new Set<string>()): boolean {
  if (file === helper) return true;
  if (seen.has(file) || !file.startsWith(folder)) return false;
  seen.add(file);
  const imports = readFileSync(file, 'utf8').matchAll(/^(?:import|export)\b[^;]*?from '(\.[^']+\.ts)';/gm);
  return [...imports].some(([, path = '']) => isSampled(join(dirname(file), path), seen));
}

function readFilters(): string[] {
  const { scripts } = JSON.parse(readFileSync(projectPath('package.json'), 'utf8')) as {
    scripts: Record<string, string>;
  };
  const [, list] = / --mode long (.+)$/.exec(scripts['test:long'] ?? '') ?? [];
  assert(list, 'test:long ends with the list of its suites');
  return list.split(' ');
}

const suites = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.test.ts'));
const sampled = suites.filter((name) => isSampled(join(folder, name)));

test('every suite that has a sample in the short run is in the list of the long one', () => {
  assert(sampled.includes(join('kernels', 'webgpu.test.ts')), 'a suite is found by what it imports');
  const filters = readFilters();
  const missing = sampled.filter((name) => !filters.some((filter) => join('test', name).includes(filter)));
  assert.deepEqual(missing, [], 'add them to test:long in package.json');
});

test('every entry of that list names a suite', () => {
  const names = suites.map((name) => relative(projectPath('.'), join(folder, name)));
  assert.deepEqual(
    readFilters().filter((filter) => !names.some((name) => name.includes(filter))),
    [],
  );
});

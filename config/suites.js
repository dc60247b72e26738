/**
 * The suites of the tests: which project each belongs to, by its place; how long it takes, by the budget in its header; whether it has a
 * short and a whole form, by what it imports (test/support/long.ts).
 */
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const helper = join(root, 'test/support/long.ts');

/** Projects by the places of their suites, the first that fits; `unit` is the rest. */
const PROJECTS = [
  ['rules', /^test\/rules\//],
  ['alone', /^test\/alone\//],
  ['isolated', /^test\/isolated\//],
  ['matrices', /^test\/kernels\/matrices/],
  ['webgpu', /^test\/(kernels\/webgpu|e2e\/webgpu|bench\/engine|gpu\/)/],
  ['processes', /^test\/(e2e\/|bench\/|sim\/sim\.)/],
  ['unit', /^test\//],
];
/** Seconds of a suite whose header names none. */
const SMALL_BUDGET_S = 5;
/** In each run of continuous integration, one of so many sampled suites is whole. */
const TURNS = 3;

/** Whether a file leaves something out of the short run, itself or in a file of tests that it imports. */
function isSampled(file, seen = new Set()) {
  if (file === helper) return true;
  if (seen.has(file) || !file.startsWith(join(root, 'test'))) return false;
  seen.add(file);
  const imports = readFileSync(file, 'utf8').matchAll(/^(?:import|export)\b[^;]*?from '(\.[^']+\.ts)';/gm);
  return [...imports].some(([, path]) => isSampled(join(dirname(file), path), seen));
}

/** Returns all suites, those with the largest budget first. @throws Error for a file that no project would run */
export function listSuites() {
  const files = readdirSync(join(root, 'test'), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
  const stray = files.find((file) => /\.(test|spec)\.\w+$/.test(file) && !file.endsWith('.test.ts'));
  if (stray) throw new Error(`${relative(root, stray)} is in no project of the tests: name it NAME.test.ts`);
  return files
    .filter((file) => file.endsWith('.test.ts'))
    .map((file) => {
      const path = relative(root, file).replaceAll(sep, '/');
      const budget = /Budget:\s+(?:\* )?(\d+) s/.exec(readFileSync(file, 'utf8').slice(0, 2_000))?.[1];
      return {
        path,
        project: PROJECTS.find(([, places]) => places.test(path))[0],
        budgetS: budget === undefined ? SMALL_BUDGET_S : Number(budget),
        isSampled: isSampled(file),
      };
    })
    .sort((a, b) => b.budgetS - a.budgetS || (a.path < b.path ? -1 : 1));
}

function git(...args) {
  const { stdout, status } = spawnSync('git', args, { cwd: root, encoding: 'utf8' });
  return status === 0 ? stdout.trim() : '';
}

/** Number of the commit: how many there are up to it; where the history is not there, a number from its hash. */
export function commitNumber() {
  const isShallow = git('rev-parse', '--is-shallow-repository') !== 'false';
  return isShallow
    ? Number.parseInt(git('rev-parse', 'HEAD').slice(0, 8) || '0', 16)
    : Number(git('rev-list', '--count', 'HEAD'));
}

/**
 * Returns the paths of the sampled suites that are run whole: all in the long run, in continuous integration a third, in turn by the number
 * of the commit.
 */
export function wholeSuites(suites, { isLong, isContinuous }, number = commitNumber()) {
  const sampled = suites.filter((suite) => suite.isSampled).map(({ path }) => path);
  if (isLong) return new Set(sampled);
  return new Set(isContinuous ? sampled.filter((_, i) => i % TURNS === number % TURNS) : []);
}

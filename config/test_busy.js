/**
 * `npm run test:busy`: the suites of processes beside two busy loops, and on one core, where hidden races show. A test that fails is
 * unsteady: it is reported, in test-results/busy.json too, and the end is code 1. With `--sample` a twelfth of the suites, drawn from the
 * commit, is run, and the end is code 0 whatever they say.
 */
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { commitNumber, listSuites } from './suites.js';

const root = fileURLToPath(new URL('..', import.meta.url));
const results = join(root, 'test-results');
const vitest = [join(root, 'node_modules/vitest/vitest.mjs'), 'run', '--config', 'config/vitest.config.js'];
const reporters = ['--reporter', 'default', '--reporter', join(root, 'config/failures_reporter.js')];
const SAMPLES = 12;
const NUM_LOOPS = 2;

/** Returns what failed; an error outside of tests counts as one test. */
function failuresOf(name, command, args) {
  const file = join(results, `busy-${name}.json`);
  rmSync(file, { force: true });
  const { status } = spawnSync(command, args, {
    cwd: root,
    stdio: 'inherit',
    env: { ...process.env, FAILURES_FILE: file },
  });
  if (status === 0) return [];
  const run = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : { failed: [], outside: ['no report'] };
  const tests = run.failed.flatMap((one) => one.tests.map((test) => ({ how: name, file: one.file, ...test })));
  const others = [...run.outside, ...run.failed.flatMap((one) => one.errors)];
  return [...tests, ...others.map((message) => ({ how: name, name: 'outside of tests', messages: [message] }))];
}

function besideLoops(suites) {
  const loops = Array.from({ length: NUM_LOOPS }, () =>
    spawn(process.execPath, ['-e', 'const { ppid } = process; while (process.ppid === ppid);'], { stdio: 'ignore' }),
  );
  try {
    return failuresOf('beside two busy loops', process.execPath, [...vitest, ...reporters, ...suites]);
  } finally {
    for (const loop of loops) loop.kill('SIGKILL');
  }
}

function onOneCore(suites) {
  if (spawnSync('taskset', ['--version']).status !== 0) {
    console.log('one core: left out, there is no taskset');
    return [];
  }
  return failuresOf('on one core', 'taskset', ['-c', '0', process.execPath, ...vitest, ...reporters, ...suites]);
}

const isSample = process.argv.includes('--sample');
const all = listSuites()
  .filter(({ project, path }) => project === 'processes' && path.startsWith('test/e2e/'))
  .map(({ path }) => path);
const number = commitNumber();
const suites = isSample ? all.filter((_, i) => i % SAMPLES === number % SAMPLES) : all;
mkdirSync(results, { recursive: true });
console.log(`busy: ${suites.join(' ')}`);
const unsteady = [...besideLoops(suites), ...onOneCore(suites)];
writeFileSync(join(results, 'busy.json'), `${JSON.stringify(unsteady, null, 2)}\n`);
for (const { how, file = '', name, messages } of unsteady)
  console.log(`  UNSTEADY ${how}: ${file} ${name}: ${messages[0]?.split('\n')[0] ?? ''}`);
console.log(`busy: ${unsteady.length} unsteady tests in ${suites.length} suites`);
process.exitCode = unsteady.length > 0 && !isSample ? 1 : 0;

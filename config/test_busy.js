/**
 * `npm run test:busy`: the suites of processes with two busy loops, and on one core, where hidden races show. A test that fails is
 * unsteady: it is reported, in test-results/busy.json too, and the end is code 1. With `--sample` a twelfth of the suites, drawn from the
 * commit, is run, and the end is code 0 whatever they say.
 */
import { spawn, spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { results, runVitest } from './run_vitest.js';
import { commitNumber, listSuites } from './suites.js';

const SAMPLES = 12;
const NUM_LOOPS = 2;

/** Returns what failed; an error outside of tests counts as one test. */
function failuresOf(how, suites, starter) {
  const { isPassed, run } = runVitest(`busy-${how.replaceAll(' ', '-')}`, suites, { starter });
  if (isPassed) return [];
  const { failed, outside } = run ?? { failed: [], outside: ['no report'] };
  const tests = failed.flatMap((one) => one.tests.map((test) => ({ how, file: one.file, ...test })));
  const others = [...outside, ...failed.flatMap((one) => one.errors)];
  return [...tests, ...others.map((message) => ({ how, name: 'outside of tests', messages: [message] }))];
}

function withLoops(suites) {
  const loops = Array.from({ length: NUM_LOOPS }, () =>
    spawn(process.execPath, ['-e', 'const { ppid } = process; while (process.ppid === ppid);'], { stdio: 'ignore' }),
  );
  try {
    return failuresOf('with two busy loops', suites);
  } finally {
    for (const loop of loops) loop.kill('SIGKILL');
  }
}

function onOneCore(suites) {
  if (spawnSync('taskset', ['--version']).status !== 0) {
    console.log('one core: left out, there is no taskset');
    return [];
  }
  return failuresOf('on one core', suites, ['taskset', '-c', '0']);
}

const isSample = process.argv.includes('--sample');
const all = listSuites()
  .filter(({ project, path }) => project === 'processes' && path.startsWith('test/e2e/'))
  .map(({ path }) => path);
const number = commitNumber();
const suites = isSample ? all.filter((_, i) => i % SAMPLES === number % SAMPLES) : all;
console.log(`busy: ${suites.join(' ')}`);
const unsteady = [...withLoops(suites), ...onOneCore(suites)];
writeFileSync(join(results, 'busy.json'), `${JSON.stringify(unsteady, null, 2)}\n`);
for (const { how, file = '', name, messages } of unsteady)
  console.log(`  UNSTEADY ${how}: ${file} ${name}: ${messages[0]?.split('\n')[0] ?? ''}`);
console.log(`busy: ${unsteady.length} unsteady tests in ${suites.length} suites`);
process.exitCode = unsteady.length > 0 && !isSample ? 1 : 0;

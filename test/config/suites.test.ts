/** Which suites run, whole or sampled, and what a failed file means for the run. Budget: 5 s. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { projectPath } from '../support/project.ts';

interface Suite {
  readonly path: string;
  readonly project: string;
  readonly budgetS: number;
  readonly isSampled: boolean;
}
interface Failure {
  readonly file: string;
  readonly tests: readonly { readonly name: string; readonly messages: readonly string[] }[];
  readonly errors: readonly string[];
  readonly isEnded?: boolean;
}
interface KeptRun {
  readonly failed: readonly Failure[];
  readonly unfinished: readonly string[];
  readonly outside: readonly string[];
}

const { listSuites, wholeSuites } = (await import(projectPath('config/suites.js'))) as {
  listSuites: () => Suite[];
  wholeSuites: (suites: Suite[], wish: { isLong?: boolean; isContinuous?: boolean }, number?: number) => Set<string>;
};
const { endedFiles, finalFault, isLate, seedsIn, verdictOf } = (await import(
  projectPath('config/test_verdict.js')
)) as {
  finalFault: (run: KeptRun | undefined) => string | undefined;
  endedFiles: (run: KeptRun) => Failure[];
  isLate: (failure: Failure) => boolean;
  seedsIn: (failure: Failure) => number[];
  verdictOf: (failure: Failure, again: readonly boolean[]) => string;
};

describe('which suites run', () => {
  const suites = listSuites();

  test('each is in one project, and those that import the samples are sampled', () => {
    assert.equal(new Set(suites.map(({ path }) => path)).size, suites.length);
    const projectOf = (path: string): string | undefined => suites.find((one) => one.path === path)?.project;
    assert.equal(projectOf('test/config/suites.test.ts'), 'unit');
    assert.equal(projectOf('test/e2e/oracle.test.ts'), 'processes');
    assert.equal(projectOf('test/rules/pages.test.ts'), 'rules');
    assert(suites.some(({ path, isSampled }) => path === 'test/kernels/webgpu.test.ts' && isSampled));
    expect(suites.filter(({ isSampled }) => isSampled).length).toBeGreaterThan(30);
  });

  test('three commits in a row run every sampled suite whole, each a third of the time; the long run has all', () => {
    const sampled = suites.filter(({ isSampled }) => isSampled);
    const all = sampled.map(({ path }) => path).sort();
    const thirds = [7, 8, 9].map((number) => wholeSuites(suites, { isContinuous: true }, number));
    assert.deepEqual(thirds.flatMap((third) => [...third]).sort(), all);
    const seconds = thirds.map((third) =>
      sampled.filter(({ path }) => third.has(path)).reduce((sum, one) => sum + one.budgetS, 0),
    );
    expect(Math.max(...seconds)).toBeLessThan(1.5 * Math.min(...seconds));
    assert.deepEqual([...wholeSuites(suites, { isLong: true })].sort(), all);
    assert.equal(wholeSuites(suites, {}).size, 0);
  });
});

const failure = (file: string, ...messages: string[]): Failure => ({
  file,
  tests: [{ name: 'it', messages }],
  errors: [],
});
const LATE = [
  'Error: Test timed out in 90000ms.',
  'Error: Hook timed out in 120000ms.',
  'AssertionError: not within 600000 ms: the router is back',
  'TimeoutError: locator.waitFor: Timeout 60000ms exceeded.',
];

describe('what a failed file means', () => {
  test.each(LATE)('%s is late: steady alone, it is unsteady; late again, it fails', (message) => {
    const late = failure('test/e2e/hold.test.ts', message);
    assert(isLate(late));
    assert.equal(verdictOf(late, [true, true]), 'unsteady');
    assert.equal(verdictOf(late, [true, false]), 'fails again');
  });

  test('a wrong value fails, whatever it does alone, also with one that was late', () => {
    const wrong = failure('test/e2e/hold.test.ts', LATE[0]!, 'AssertionError: 1 is not 2');
    assert.equal(verdictOf(wrong, [true, true]), 'wrong value');
  });

  test.each([
    'test/sim/sim.test.ts',
    'test/e2e/oracle.test.ts',
    'test/store/disk_tier.test.ts',
    'test/e2e/chaos/chaos.test.ts',
  ])('%s is exact: late is a failure', (file) => {
    assert.equal(verdictOf(failure(file, LATE[0]!), [true, true]), 'exact suite');
  });

  test('a failed hook counts, and a file that failed without a message is not late', () => {
    assert(isLate({ file: 'test/e2e/hold.test.ts', tests: [], errors: [LATE[1]!] }));
    assert(!isLate({ file: 'test/e2e/hold.test.ts', tests: [], errors: [] }));
  });

  test('no report, an error outside of tests, and more than three files end the run at once', () => {
    const files = ['a', 'b', 'c', 'd'].map((name) => failure(`test/e2e/${name}.test.ts`, LATE[0]!));
    assert.match(finalFault(undefined) ?? '', /without a report/);
    const outside = ['Error: a promise was rejected'];
    for (const unfinished of [[], ['test/e2e/hold.test.ts']])
      assert.match(finalFault({ failed: [], unfinished, outside }) ?? '', /outside of tests/);
    assert.match(finalFault({ failed: files, unfinished: [], outside: [] }) ?? '', /4 files failed/);
    assert.equal(finalFault({ failed: files.slice(0, 3), unfinished: [], outside: [] }), undefined);
  });

  test('a file whose process ended is named, and passes where it does so alone twice', () => {
    const outside = ['Error: [vitest-pool]: Worker forks emitted error.'];
    const unfinished = ['test/kernels/webgpu.test.ts'];
    assert.equal(finalFault({ failed: [], unfinished, outside }), undefined);
    assert.match(finalFault({ failed: [], unfinished: [], outside }) ?? '', /outside of tests/);
    const [ended] = endedFiles({ failed: [], unfinished, outside });
    assert(ended);
    assert.equal(ended.file, unfinished[0]);
    assert.equal(verdictOf(ended, [true, true]), 'worker ended');
    assert.equal(verdictOf(ended, [true, false]), 'fails again');
  });

  test('seeds of the simulation are read from its output', () => {
    const suite = 'test/sim/sim.test.ts';
    const output = 'AssertionError: seed 41 failed: npm run sim -- --seeds 1 --from 41\na trace\nseed 7 failed: npm';
    assert.deepEqual(seedsIn(failure(suite, output)), [41, 7]);
    assert.deepEqual(seedsIn(failure(suite, 'AssertionError: a seed has {}')), []);
    const one = failure(suite, output);
    const other = { name: 'the same seed is the same run', messages: ['AssertionError: a is not b'] };
    assert.deepEqual(seedsIn({ ...one, tests: [...one.tests, other] }), [], 'something else failed besides it');
    assert.deepEqual(seedsIn({ ...one, errors: ['Error: a hook'] }), []);
  });
});

/**
 * `npm test`: runs vitest once, then each file that failed again, alone, twice.
 *
 *   only limits of time were reached, and both runs pass   unsteady: reported last and in test-results/unsteady.json; the run passes
 *   a wrong value, or an exact suite                       the run fails: a race that shows once is a race
 *   fails once more                                        the run fails
 *   the process of its tests ended, and both runs pass     reported like an unsteady file; the run passes
 *   an error outside of tests, or more than three files    the run fails at once
 *   a seed of the simulation that fails on the commit      recorded in test-results/seeds.json; the run passes
 *   before too
 *
 * Then the suites of products run once more with another implementation than the fastest (products.js), where every failure fails the run.
 * Arguments go to vitest; with others than `--mode long` this second part is left out.
 */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { failingBefore } from './parent_seeds.js';
import { PRODUCTS_SUITES, productsHere, productsInTurn } from './products.js';
import { results, runVitest } from './run_vitest.js';
import { endedFiles, finalFault, seedsIn, verdictOf } from './test_verdict.js';

const record = (name, entries) => {
  writeFileSync(join(results, `${name}.json`), `${JSON.stringify(entries, null, 2)}\n`);
};

/** Arguments with which a file runs alone as it ran in the whole run. */
function aloneArgs(file) {
  const at = args.indexOf('--mode');
  return [...(at < 0 ? [] : args.slice(at, at + 2)), file];
}

function judge(failure, i) {
  const { file, tests, errors } = failure;
  const seeds = seedsIn(failure);
  const known = failingBefore(seeds);
  if (seeds.length > 0 && known.length === seeds.length) return { file, verdict: 'known seeds', seeds, tests, errors };
  const again = [];
  // A file that hangs takes its whole limit: once more is enough.
  for (let round = 1; round <= 2 && again.every(Boolean); round++)
    again.push(runVitest(`again-${i + 1}-${round}`, aloneArgs(file)).isPassed);
  return { file, verdict: verdictOf(failure, again), again, tests, errors };
}

function print({ file, verdict, again, tests, errors }) {
  const alone = again ? ` (alone: ${again.filter(Boolean).length} of ${again.length} passed)` : '';
  console.log(`  ${verdict.toUpperCase().padEnd(12)} ${file}${alone}`);
  for (const { name, messages } of tests) console.log(`               ${name}: ${messages[0]?.split('\n')[0] ?? ''}`);
  for (const error of errors) console.log(`               ${error.split('\n')[0]}`);
}

/** Prints the sums of runs in the words that other runners end with. */
function printSums(counts) {
  const sum = (of) => counts.reduce((all, one) => all + one[of], 0);
  console.log(`\n${sum('passed')} passed, ${sum('failed')} failed, ${sum('skipped')} skipped`);
}

/** Runs the suites of products with other implementations. Returns the counts of each run, and what failed, in words, if anything did. */
async function runProducts() {
  const { names, missing } = await productsHere();
  const runs = productsInTurn(names, args.includes('long')).map((name) => {
    console.log(`\nWith products ${name}:`);
    // Whole suites, a third of which continuous integration has, are those of the fastest.
    const environment = { PENSTOCK_PRODUCTS: name, CI: '' };
    return { name, ...runVitest(`products-${name.replace(':', '-')}`, PRODUCTS_SUITES, { environment }) };
  });
  if (missing.length > 0) console.log(`\nProducts that this machine lacks: ${missing.join(', ')}`);
  const failed = runs.filter(({ isPassed }) => !isPassed).map(({ name }) => name);
  return {
    counts: runs.flatMap(({ run }) => run?.counts ?? []),
    fault: failed.length > 0 ? `with products ${failed.join(', ')}` : undefined,
  };
}

/** Returns the verdicts about what failed in a run. */
function judgeAll(run) {
  const judged = [...run.failed, ...endedFiles(run)].map(judge);
  record(
    'unsteady',
    judged.filter(({ verdict }) => ['unsteady', 'worker ended'].includes(verdict)),
  );
  record(
    'seeds',
    judged.filter(({ verdict }) => verdict === 'known seeds'),
  );
  return judged;
}

/** Returns why the run fails; undefined when it passes. */
async function main() {
  rmSync(results, { recursive: true, force: true });
  mkdirSync(results, { recursive: true });
  record('unsteady', []);
  record('seeds', []);
  const first = runVitest('first', args);
  const { counts = { passed: 0, failed: 0, skipped: 0 } } = first.run ?? {};
  const fault = first.isPassed ? undefined : finalFault(first.run);
  if (fault) {
    printSums([counts]);
    return fault;
  }
  const judged = first.isPassed ? [] : judgeAll(first.run);
  const isRed = judged.some(({ verdict }) => !['unsteady', 'worker ended', 'known seeds'].includes(verdict));
  const products = isEverything && !isRed ? await runProducts() : { counts: [] };
  // Failed tests that passed when they ran alone.
  const mended = { ...counts, passed: counts.passed + counts.failed, failed: 0 };
  printSums([isRed ? counts : mended, ...products.counts]);
  if (judged.length > 0) console.log('\nFailed in the whole run, and what became of it:');
  for (const one of judged) print(one);
  return isRed ? 'see above' : products.fault;
}

const args = process.argv.slice(2);
const isEverything = args.length === 0 || args.join(' ') === '--mode long';
const fault = await main();
if (fault) console.error(`\nFAILED: ${fault}`);
process.exitCode = fault ? 1 : 0;

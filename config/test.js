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
 * Arguments go to vitest.
 */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { failingBefore } from './parent_seeds.js';
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

/** Prints the sums in the words that other runners end with. `isMended`: failed tests passed when they ran alone. */
function printSums({ passed, failed, skipped }, isMended) {
  const [good, bad] = isMended ? [passed + failed, 0] : [passed, failed];
  console.log(`\n${good} passed, ${bad} failed, ${skipped} skipped`);
}

/** Returns why the run fails; undefined when it passes. */
function main() {
  rmSync(results, { recursive: true, force: true });
  mkdirSync(results, { recursive: true });
  record('unsteady', []);
  record('seeds', []);
  const first = runVitest('first', args);
  const { counts } = first.run ?? {};
  const fault = first.isPassed ? undefined : finalFault(first.run);
  if (first.isPassed || fault) {
    if (counts) printSums(counts, false);
    return fault;
  }
  const judged = [...first.run.failed, ...endedFiles(first.run)].map(judge);
  record(
    'unsteady',
    judged.filter(({ verdict }) => ['unsteady', 'worker ended'].includes(verdict)),
  );
  record(
    'seeds',
    judged.filter(({ verdict }) => verdict === 'known seeds'),
  );
  const isRed = judged.some(({ verdict }) => !['unsteady', 'worker ended', 'known seeds'].includes(verdict));
  printSums(counts, !isRed);
  console.log('\nFailed in the whole run, and what became of it:');
  for (const one of judged) print(one);
  return isRed ? 'see above' : undefined;
}

const args = process.argv.slice(2);
const fault = main();
if (fault) console.error(`\nFAILED: ${fault}`);
process.exitCode = fault ? 1 : 0;

/** Trials of grammars: what is refused and why, what is remembered, and hostile texts in a row. Real threads. Budget: 30 s. */
import assert from 'node:assert/strict';
import { pathToFileURL } from 'node:url';
import { afterEach, expect, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { Failure } from '../../shared/base/failure.ts';
import { TrialCompiler, type TrialCompilerOptions } from '../../shared/grammar/matcher/trial_compiler.ts';
import { tableOf } from '../../shared/grammar/matcher/token_table.ts';
import { readTextFiles } from '../../shared/model/text_files.ts';
import { sized } from '../support/long.ts';
import { vocabularyFolder } from '../support/downloads.ts';
import { projectPath } from '../support/project.ts';
import { byteTable } from '../grammar/matcher/byte_table.ts';
import { slowGrammar } from '../grammar/matcher/slow_grammar.ts';
import { WatchedThreads } from '../grammar/matcher/watched_threads.ts';
import { failsWith } from '../support/failures.ts';

const failing = { url: pathToFileURL(projectPath('dist/test/grammar/matcher/failing_mask_thread.js')) };

let trials: TrialCompiler[] = [];
afterEach(async () => {
  await Promise.all(trials.map((trial) => trial.close()));
  trials = [];
});

function begin(threads: WatchedThreads, options: Partial<TrialCompilerOptions> = {}): TrialCompiler {
  const vocabulary = { kind: 'table', table: byteTable } as const;
  const trial = new TrialCompiler({ threads, clock: systemClock, vocabulary, ...options });
  trials.push(trial);
  return trial;
}

test('a grammar that compiles is tried once', async () => {
  const threads = new WatchedThreads();
  const trial = begin(threads);
  await Promise.all([trial.check('root ::= "a"'), trial.check('root ::= "a"')]);
  await trial.check('root ::= "a"');
  assert.equal(threads.argumentsOf('check').length, 1);
});

test('a grammar that the library refuses is refused with its reason, each time, by one trial; the next has a new thread', async () => {
  const threads = new WatchedThreads();
  const trial = begin(threads);
  const isRefused = failsWith('invalid_request', /cannot be used.*"nothing" is not defined/);
  const both = [0, 1].map(() => assert.rejects(trial.check('root ::= nothing'), isRefused));
  await Promise.all(both);
  await assert.rejects(trial.check('root ::= nothing'), isRefused);
  assert.equal(threads.argumentsOf('check').length, 1);
  assert.equal(threads.numRunning, 0);
  await trial.check('root ::= "a"');
  assert.equal(threads.started.length, 2);
});

test('a grammar that the vocabulary cannot begin is refused', async () => {
  const table = tableOf([Uint8Array.of(97), undefined]);
  const trial = begin(new WatchedThreads(), { vocabulary: { kind: 'table', table } });
  await trial.check('root ::= "a"');
  await trial.check('root ::= ""');
  await assert.rejects(trial.check('root ::= "b"'), failsWith('invalid_request', /can begin/));
  await assert.rejects(trial.check('root ::= root'), failsWith('invalid_request', /can begin/));
});

test.each(['exit', 'throw'])('a grammar that ends its thread twice (%s) is refused', async (fault) => {
  const threads = new WatchedThreads(failing);
  const trial = begin(threads);
  await assert.rejects(trial.check(`root ::= "a"\n# ${fault} check`), failsWith('invalid_request', /ends the thread/));
  assert.equal(threads.started.length, 2);
  await trial.check('root ::= "a"');
});

test('a grammar that takes too much CPU time is refused, for a minute', async () => {
  const threads = new WatchedThreads(failing);
  let nowMs = 0;
  const clock = { ...systemClock, nowMs: () => nowMs };
  const trial = begin(threads, { clock, compileCpuMs: 1_000 });
  for (let i = 0; i < 3; i++)
    await assert.rejects(
      trial.check('root ::= "a"\n# hang check'),
      failsWith('invalid_request', /not compiled after 1 s of CPU time/),
    );
  assert.equal(threads.started.length, 1);
  nowMs = 60_000;
  await assert.rejects(trial.check('root ::= "a"\n# hang check'), failsWith('invalid_request', /not compiled/));
  assert.equal(threads.started.length, 2);
});

test('a grammar whose thread gets no CPU time is not refused: its client may try again at once', async () => {
  const threads = new WatchedThreads(failing);
  // Minutes pass between two looks at the thread, which waits for something.
  let nowMs = 0;
  const sleep = async (_ms: number, signal?: AbortSignal): Promise<void> => {
    nowMs += 1_000;
    // eslint-disable-next-line time/speed -- a turn that the end of the wait cuts short
    await systemClock.sleep(5, signal);
  };
  const trial = begin(threads, { clock: { ...systemClock, nowMs: () => nowMs, sleep } });
  const isBusy = (error: unknown): boolean =>
    error instanceof Failure && error.code === 'overloaded' && (error.retryAfterMs ?? 0) > 0;
  for (let i = 1; i <= 2; i++) {
    await assert.rejects(trial.check('root ::= "a"\n# wait check'), isBusy);
    assert.equal(threads.started.length, i, 'the next one has a new thread');
  }
});

test('so many grammars wait; one whose client left fails at once', async () => {
  // One runs, and one waits.
  const trial = begin(new WatchedThreads(), { maxWaiting: 1 });
  const client = new AbortController();
  const [first, second] = [trial.check('root ::= "a"'), trial.check('root ::= "b"', client.signal)];
  await assert.rejects(trial.check('root ::= "c"'), failsWith('overloaded'));
  client.abort();
  await assert.rejects(second, failsWith('cancelled'));
  await first;
  await trial.check('root ::= "c"');
});

test('the end: what waits fails', async () => {
  const threads = new WatchedThreads();
  const trial = begin(threads);
  const waiting = ['a', 'b'].map((letter) =>
    assert.rejects(trial.check(`root ::= "${letter}"`), failsWith('cancelled')),
  );
  await trial.close();
  await Promise.all(waiting);
  await assert.rejects(trial.check('root ::= "a"'), failsWith('cancelled'));
  assert.equal(threads.numRunning, 0);
});

/** Hostile texts, each another one by its number, and why they are refused. */
const hostile: readonly (readonly [string, (i: number) => string, RegExp | undefined])[] = [
  ['depth', (i) => `root ::= ${'('.repeat(120 + i)}"a"${')'.repeat(120 + i)}`, /parentheses/],
  ['a large text', (i) => `root ::= "${'a'.repeat((1 << 20) + i)}"`, /characters/],
  ['a rule that is not there', (i) => `root ::= missing${i}`, /not defined/],
  ['a text that is no grammar', (i) => `${i}}{`, /line 1/],
  ['left recursion', (i) => `root ::= root "a${i}" | other\nother ::= root | "b"`, undefined],
  ['endless recursion', (i) => `root ::= r${i}\nr${i} ::= r${i} "a"`, /can begin/],
  ['optional rules', slowGrammar, /not compiled/],
];

test('hostile grammars in a row are refused, each with its reason, and hold no memory', async () => {
  const threads = new WatchedThreads();
  const trial = begin(threads, { compileCpuMs: 1_000 });
  const rounds = sized(40, 4);
  const rssMiB: number[] = [];
  for (let i = 0; i < rounds; i++) {
    for (const [name, text, reason] of hostile) {
      const checked = trial.check(text(i));
      if (reason) await assert.rejects(checked, failsWith('invalid_request', reason), name);
      else await checked;
    }
    // eslint-disable-next-line time/speed -- memory of this process, which is alone in it
    rssMiB.push(process.memoryUsage.rss() / 2 ** 20);
  }
  await trial.check('root ::= "a"');
  assert.equal(threads.numRunning, 1);
  // A hundred threads are replaced in the second half, where 20 to 34 MiB more were measured: one that stays has more than a MiB.
  expect(Math.max(...rssMiB.slice(rounds / 2)) - Math.max(...rssMiB.slice(0, rounds / 2))).toBeLessThan(128);
});

test('repetitions that take too long with a vocabulary of 128,000 are refused', async () => {
  const texts = readTextFiles(vocabularyFolder('llama3_2'));
  const trial = begin(new WatchedThreads(), {
    vocabulary: { kind: 'texts', texts, vocabSize: 128_256 },
    compileCpuMs: 1_000,
  });
  // Each of the eight alone took 6 s of CPU.
  const repetitions = Array.from({ length: 8 }, (_, i) => `"${i}" [^"\\\\${i}]{0,1000}`);
  await assert.rejects(trial.check(`root ::= ${repetitions.join(' ')}`), failsWith('invalid_request', /not compiled/));
  await trial.check('root ::= "\\"" [^"\\\\]* "\\""');
});

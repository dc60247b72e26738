/** Verdicts about failed test files: what was late may be tried again, what was wrong may not. */

/** More failed files than this are no coincidence. */
const MAX_FILES = 3;

/** Suites whose failures are never a matter of speed: tokens, bits, durability, the simulation. */
const EXACT = /^test\/(sim|kernels|engine|store|kv)\/|^test\/e2e\/(oracle|chaos|wrong_blocks|hybrid|golden_path)\b/;

/** How vitest, its poll, `until` of test/support and Playwright say that something took too long. */
const LATE = [
  /^(Error: )?(Test|Hook) timed out in \d+ms/,
  /not within \d+ ms: /,
  /Matcher did not succeed in time/,
  /^TimeoutError: .*Timeout \d+ms exceeded/,
];

/** Whether a failed file had nothing but limits of time that were reached. */
export function isLate({ tests, errors }) {
  const messages = [...tests.flatMap((test) => test.messages), ...errors];
  return messages.length > 0 && messages.every((message) => LATE.some((pattern) => pattern.test(message)));
}

/** How vitest says that the process of a worker ended. */
const WORKER_ENDED = /\[vitest-pool\]: Worker \w+ emitted error/;

/** Returns the files whose worker ended before their last test, as failures; none where something else went wrong outside of tests. */
export function endedFiles({ unfinished, outside }) {
  if (!outside.every((message) => WORKER_ENDED.test(message))) return [];
  return unfinished.map((file) => ({ file, tests: [], errors: ['the process of its tests ended'], isEnded: true }));
}

/**
 * Returns why the first run cannot be mended by running files again; undefined when it can. `run` is what the reporter kept, undefined
 * where vitest ended without it.
 */
export function finalFault(run) {
  if (!run) return 'vitest ended without a report: a worker that ended, or an error before the tests';
  const ended = endedFiles(run);
  if (run.outside.length > 0 && ended.length === 0)
    return `an error outside of tests: ${run.outside[0].split('\n')[0]}`;
  const numFailed = run.failed.length + ended.length;
  if (numFailed === 0) return 'vitest failed without a failed test';
  if (numFailed > MAX_FILES) return `${numFailed} files failed, more than ${MAX_FILES}`;
  return undefined;
}

/** Returns the verdict about a failed file; `again` says whether each run alone passed. */
export function verdictOf(failure, again) {
  // No test has found a wrong value: the driver or the runtime below it is at fault, or the tests alone show what is.
  if (failure.isEnded) return again.every(Boolean) ? 'worker ended' : 'fails again';
  if (EXACT.test(failure.file)) return 'exact suite';
  if (!isLate(failure)) return 'wrong value';
  return again.every(Boolean) ? 'unsteady' : 'fails again';
}

/** Returns the seeds of the simulation that a failure names; none where something else failed besides them. */
export function seedsIn({ tests, errors }) {
  // The first line of a message has the error's name in front.
  const named = tests.map(({ messages }) => [...messages.join('\n').matchAll(/(?:^|: )seed (\d+) failed:/gm)]);
  if (errors.length > 0 || named.some((seeds) => seeds.length === 0)) return [];
  return [...new Set(named.flat().map(([, seed]) => Number(seed)))];
}

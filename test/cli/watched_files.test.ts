/** Files that are read again while a role runs, under a clock of the test: how soon a change is seen, and what a file that is half written does. Budget: 2 s. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeEach, test } from 'vitest';
import type { Current } from '../../shared/base/current.ts';
import { ConfigError } from '../../shared/base/options.ts';
import { silentLog, type Log } from '../../shared/base/log.ts';
import { watchFilesWith } from '../../services/cli/watched_files.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';
import { temporaryFolder } from '../support/cluster.ts';

/** A change counts within this time, as users are told. */
const MAX_SEEN_MS = 2_000;
/** Between two looks; a text counts that two of them in a row have found. */
const LOOK_MS = 500;

const folder = temporaryFolder();
const file = join(folder.path, 'watched');
let text = '';
let numReads = 0;
let said: string[] = [];
let clock: SimulatedClock;
let stopped: AbortController;
beforeEach(() => {
  [text, numReads, said, clock, stopped] = ['first', 0, [], new SimulatedClock(), new AbortController()];
  writeFileSync(file, text);
});
afterEach(() => {
  stopped.abort();
});
afterAll(() => {
  folder.remove();
});

function watch(): Current<string> {
  const say = (fields: object, message: string): void => void said.push(`${message} ${JSON.stringify(fields)}`);
  const log = { ...silentLog, info: say, warn: say } as unknown as Log;
  // The clock waits for no file system.
  const readText = (): Promise<string> => {
    numReads++;
    return Promise.resolve(text);
  };
  const read = ([found = '']: readonly string[]): string => {
    if (found.includes('?')) throw new ConfigError('a text has no question mark');
    return found;
  };
  const files = { name: 'text', files: [file], read, shown: (value: string) => ({ used: value }) };
  return watchFilesWith(clock, log, readText)(files, '--text', stopped.signal);
}

const pass = (ms: number): Promise<void> => clock.run(clock.nowMs() + ms);

test('a change is seen within two seconds, whenever between two looks it comes', async () => {
  const current = watch();
  const listened: string[] = [];
  current.onReplace((value) => listened.push(value));
  await pass(3 * LOOK_MS);
  const expected: string[] = [];
  let slowestMs = 0;
  for (let lateMs = 0; lateMs < LOOK_MS; lateMs += 50) {
    await pass(lateMs);
    text = `changed ${lateMs}`;
    expected.push(text);
    const changedMs = clock.nowMs();
    while (current.value !== text) {
      await pass(10);
      assert(clock.nowMs() - changedMs <= MAX_SEEN_MS, `not seen within ${MAX_SEEN_MS} ms: ${text}`);
    }
    slowestMs = Math.max(slowestMs, clock.nowMs() - changedMs);
  }
  assert.deepEqual(listened, expected);
  assert(slowestMs > LOOK_MS && slowestMs <= 2 * LOOK_MS, `two looks take ${slowestMs} ms`);
});

test('a text counts that two looks have found: one that is only there for a moment never does', async () => {
  const current = watch();
  await pass(3 * LOOK_MS);
  for (const half of ['se', 'sec', 'secon', 'second']) {
    text = half;
    assert.equal(current.value, 'first');
    await pass(LOOK_MS);
  }
  await pass(LOOK_MS);
  assert.deepEqual([current.value, said.length], ['second', 1]);
  assert.match(said[0] ?? '', /the text has been renewed: connections that begin now use it \{"used":"second"\}/);
});

test('a text that cannot be used is said once, and the last good one stays', async () => {
  const current = watch();
  await pass(3 * LOOK_MS);
  text = 'what?';
  await pass(5 * MAX_SEEN_MS);
  assert.deepEqual([current.value, said.length], ['first', 1]);
  assert.match(said[0] ?? '', /cannot be used.*a text has no question mark.*"used":"first"/);
  text = 'third';
  await pass(MAX_SEEN_MS);
  assert.equal(current.value, 'third');
});

test('a file that cannot be used at the start is refused, and the end of the role ends the looks', async () => {
  writeFileSync(file, 'what?');
  assert.throws(watch, /no question mark/);
  writeFileSync(file, 'first');
  watch();
  await pass(10 * LOOK_MS);
  const before = numReads;
  stopped.abort();
  await pass(10 * LOOK_MS);
  assert(before >= 10);
  assert.equal(numReads, before);
});

/** Files of a role that are read again when they change: how often they are judged, and how large they may be. Budget: 2 s. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeEach, test } from 'vitest';
import type { Current } from '../../shared/base/current.ts';
import { silentLog, type Log } from '../../shared/base/log.ts';
import { ConfigError } from '../../shared/base/options.ts';
import { regularText } from '../../services/cli/renewed_files.ts';
import { watchFilesWith } from '../../services/cli/watched_files.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';
import { temporaryFolder } from '../support/cluster.ts';

const folder = temporaryFolder();
afterAll(() => {
  folder.remove();
});
const file = join(folder.path, 'file');
/** Bytes of the file that the test lets it have. */
const MAX_BYTES = 100;

let stopped = new AbortController();
let clock: SimulatedClock;
let judged: string[] = [];
let warned: string[] = [];
beforeEach(() => {
  [stopped, clock, judged, warned] = [new AbortController(), new SimulatedClock(), [], []];
});
afterEach(() => {
  stopped.abort();
});

/** Watches the file. A text with `bad` in it cannot be used, unless `isTimely` says so at the time. */
function begin(dependsOnTime: boolean, isTimely = () => false): Current<string> {
  const log = { ...silentLog, warn: (fields: object) => warned.push(JSON.stringify(fields)) } as unknown as Log;
  // The clock waits for no file system.
  const readText = async (name: string, maxBytes?: number): Promise<string> => {
    await Promise.resolve();
    const text = readFileSync(name, 'utf8');
    if (text.length > (maxBytes ?? 0)) throw new Error(`${name} is larger than ${maxBytes}`);
    return text;
  };
  const read = ([text = '']: readonly string[]): string => {
    judged.push(text);
    if (text.includes('bad') && !isTimely()) throw new Error(`${text} cannot be used`);
    return text;
  };
  const files = { name: 'file', files: [file], maxBytes: MAX_BYTES, dependsOnTime, read, shown: () => ({}) };
  return watchFilesWith(clock, log, readText)(files, '--file', stopped.signal);
}

const pass = (ms: number): Promise<void> => clock.run(clock.nowMs() + ms);

test('a text is judged once at the start and once for each change, whether it can be used or not', async () => {
  writeFileSync(file, 'one');
  const current = begin(false);
  await pass(60_000);
  assert.deepEqual(judged, ['one']);
  writeFileSync(file, 'bad');
  await pass(60_000);
  assert.deepEqual([judged, current.value, warned.length], [['one', 'bad'], 'one', 1]);
  writeFileSync(file, 'two');
  await pass(60_000);
  assert.deepEqual([judged, current.value], [['one', 'bad', 'two'], 'two']);
  // The same fault is judged, and said, again.
  writeFileSync(file, 'bad');
  await pass(60_000);
  assert.deepEqual([judged, current.value, warned.length], [['one', 'bad', 'two', 'bad'], 'two', 2]);
});

test('a text of which time decides is judged until it can be used', async () => {
  writeFileSync(file, 'one');
  let isTimely = false;
  const current = begin(true, () => isTimely);
  writeFileSync(file, 'bad');
  await pass(60_000);
  assert.deepEqual([current.value, warned.length], ['one', 1]);
  isTimely = true;
  await pass(60_000);
  assert.equal(current.value, 'bad');
});

test('a file that is too large later does not start a process either, and one that starts it is read again', async () => {
  const large = 'a'.repeat(MAX_BYTES + 1);
  writeFileSync(file, large);
  assert.throws(
    () => begin(false),
    (error) => {
      assert(error instanceof ConfigError);
      assert.match(error.message, /--file .*: it has 101 bytes, more than 100: make it smaller/);
      return true;
    },
  );
  writeFileSync(file, large.slice(1));
  const current = begin(false);
  const next = 'b'.repeat(MAX_BYTES);
  writeFileSync(file, next);
  await pass(60_000);
  assert.equal(current.value, next);
  writeFileSync(file, large);
  await pass(60_000);
  assert.equal(current.value, next);
  assert.match(warned.join(), /larger than 100/);
});

test('the bound of a file is that of its kind, and a MiB without one', async () => {
  writeFileSync(file, 'a'.repeat((1 << 20) + 1));
  await assert.rejects(regularText(file), /has 1048577 bytes, more than 1048576/);
  assert.equal((await regularText(file, 2 << 20)).length, (1 << 20) + 1);
});

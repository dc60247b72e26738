/** Checks the rule about time: places in a test that it finds, and exceptions without a reason. Budget: 5 s. */
import assert from 'node:assert/strict';
import { Linter } from 'eslint';
import { expect, test } from 'vitest';
import { projectPath } from '../support/project.ts';

interface Plugin {
  readonly rules: Record<string, object>;
}
const { time } = (await import(projectPath('config/eslint_time.js'))) as { time: Plugin };

function found(code: string): string[] {
  return messages(code, 'speed', true);
}

function messages(code: string, rule: string, allowInlineConfig: boolean): string[] {
  const config = { plugins: { time }, rules: { [`time/${rule}`]: 'error' } } as Linter.Config;
  return new Linter().verify(code, config, { allowInlineConfig }).map(({ message }) => message);
}

test.each([
  ['const startMs = performance.now();', /measures time/],
  ['assert(Date.now() < endMs);', /measures time/],
  ['const startMs = systemClock.nowMs();', /measures time/],
  ['assert(systemClock.nowMs() - startMs < 2_000);', /measures time/],
  ['const before = process.cpuUsage();', /measures CPU or memory/],
  ['const bytes = process.memoryUsage().heapUsed;', /measures CPU or memory/],
  ['const kib = process.memoryUsage.rss();', /measures CPU or memory/],
  ['await sleep(300);', /waits for a fixed time/],
  ['await sleep(random.below(9));', /waits for a fixed time/],
  ['import { setTimeout as wait } from "node:timers/promises";', /call it sleep/],
  ['await systemClock.sleep(50);', /waits for a fixed time/],
  ['await new Promise((resolve) => setTimeout(resolve, 50));', /waits for a fixed time/],
  ['const timer = setInterval(() => poll(), 50);', /waits for a fixed time/],
  ['await page.waitForTimeout(100);', /waits for a fixed time/],
  ['fetch(url, { signal: AbortSignal.timeout(500) });', /limits work by wall time/],
  ['ask({ timeoutMs: 5_000 });', /limits work by wall time/],
  ['await banner.waitFor({ timeout: 15_000 });', /limits work by wall time/],
  ['test("a", async () => run(), 60_000);', /limits work by wall time/],
  ['await until("it is there", () => isThere, 20_000);', /limits work by wall time/],
  ['const args = ["--silence-ms", "1000"];', /a limit of wall time in a running product/],
  ['const args = ["--silence-ms=1000"];', /a limit of wall time in a running product/],
  ['await expect.poll(() => count).toBe(3);', /has a limit of its own/],
  ['await vi.waitFor(() => expect(count).toBe(3));', /has a limit of its own/],
  ['const seed = Math.random();', /chance without a seed/],
])('%s', (code, message) => {
  const said = found(code);
  assert.equal(said.length, 1, said.join('\n'));
  expect(said[0]).toMatch(message);
});

test.each([
  'await until("it is there", () => isThere);',
  'await staysSo("nobody came", () => count === 0);',
  'const instance = new Instance(member, systemClock.nowMs());',
  'ask({ untilMs: systemClock.nowMs() + PATIENCE_MS, timeoutMs: PATIENCE_MS });',
  'setTimeout(resolve, 0);',
  'const flags = ["--silence-ms", "--hub-bind"];',
  'const sum = bytes.reduce((hash, byte) => hash ^ byte, 2_166_136_261);',
])('nothing in: %s', (code) => {
  assert.deepEqual(found(code), []);
});

test('an exception gives its reason', () => {
  const wait = 'await sleep(300);';
  const cure = 'an exception without a reason: end the comment with `-- why`';
  for (const [comment, reasons] of [
    ['// eslint-disable-next-line time/speed -- a pace', []],
    ['// eslint-disable-next-line time/speed', [cure]],
    ['// eslint-disable-next-line time/speed -- ', [cure]],
    ['/* eslint-disable */', [cure]],
  ] as const) {
    assert.deepEqual(found(`${comment}\n${wait}`), []);
    // Lint looks for it where a comment that disables every rule disables none.
    assert.deepEqual(messages(`${comment}\n${wait}`, 'reason', false), reasons);
  }
});

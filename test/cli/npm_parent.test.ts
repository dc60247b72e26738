/** The parent of a script that npm started, over a made /proc: npm, or a shell between. Budget: 1 s. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, test } from 'vitest';
import { parentOf, watchParent } from '../../services/cli/npm_parent.ts';

let proc: string;
beforeEach(() => {
  proc = mkdtempSync(join(tmpdir(), 'proc-'));
});
afterEach(() => {
  rmSync(proc, { recursive: true });
});

function isRunning(pid: number, name: string, parent: number): void {
  mkdirSync(join(proc, String(pid)), { recursive: true });
  writeFileSync(join(proc, String(pid), 'stat'), `${pid} (${name}) S ${parent} 1 1 0 -1`);
}

test('npm dies: the script has another parent', () => {
  isRunning(7, 'npm start', 5);
  let parent = 7;
  const isOrphan = watchParent(() => parent, proc, parentOf(7, proc));
  assert.equal(isOrphan(), false);
  parent = 1;
  assert.equal(isOrphan(), true);
});

test('npm dies and leaves its shell, which waits for the script', () => {
  isRunning(9, 'sh', 7);
  const isOrphan = watchParent(() => 9, proc, parentOf(9, proc));
  assert.equal(isOrphan(), false);
  isRunning(9, 'sh', 1);
  assert.equal(isOrphan(), true);
});

test('whoever started npm may go: npm lives', () => {
  isRunning(7, 'npm (start) x', 5);
  const isOrphan = watchParent(() => 7, proc, parentOf(7, proc));
  isRunning(7, 'npm (start) x', 1);
  assert.equal(isOrphan(), false);
});

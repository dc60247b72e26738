/** A child's log lines, as `up` shows them. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { LogLines } from '../../services/cli/log_lines.ts';

test('lines are cut where their chunks are not, JSON is told in words, and a line without an end is bounded (P1)', () => {
  const lines: string[] = [];
  const log = new LogLines('decode-1', (line) => lines.push(line));
  log.push('{"level":40,"msg":"lost","memb');
  log.push('er":"d2"}\nplain\n');
  assert.deepEqual(lines, ['decode-1 warn lost member=d2', 'decode-1 plain']);
  for (let i = 0; i < 200; i++) log.push('x'.repeat(1_000));
  log.push('\n');
  assert(lines.length === 3 && (lines[2]?.length ?? 0) < 66_700, `${lines[2]?.length}`);
});

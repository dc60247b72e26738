/** The alarm of an index that promises what nobody has. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { IndexDrift } from '../../../services/router/metrics/index_drift.ts';

test('an alarm when more than a tenth of what was promised is missing, once, and its end', () => {
  const alarms: number[] = [];
  const drift = new IndexDrift((missing) => alarms.push(missing));
  for (let i = 0; i < 15; i++) drift.observe(1_000, 0);
  assert(!drift.isAlarmed, 'fifteen requests say nothing yet');
  drift.observe(0, 0);
  assert(!drift.isAlarmed, 'nor does one that was promised nothing');
  drift.observe(1_000, 0);
  assert.deepEqual([drift.isAlarmed, alarms], [true, [1]]);
  // More than was promised makes up for nothing.
  for (let i = 0; i < 240; i++) drift.observe(1_000, 5_000);
  assert.deepEqual([drift.isAlarmed, drift.missing, alarms.length], [false, 16 / 256, 1]);
  for (let i = 0; i < 256; i++) drift.observe(1_000, 990);
  assert(Math.abs(drift.missing - 0.01) < 1e-9);
  for (let i = 0; i < 40; i++) drift.observe(1_000, 200);
  assert.deepEqual([drift.isAlarmed, alarms.length], [true, 2]);
});

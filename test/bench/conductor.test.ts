/** The benchmark of the conductor, tiny: it runs, and its figures are of the decisions that it says. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { LongestPrefixPolicy } from '../../shared/placement/longest_prefix_policy.ts';
import { benchConductor } from './conductor.ts';
import type { Figure } from './figures.ts';

test('every policy places all requests, and each cluster has its median and its 99th percentile', () => {
  const said: Figure[] = [];
  const figures = benchConductor({
    policies: { plain: () => new LongestPrefixPolicy(256) },
    numInstances: [3, 9],
    promptBlocks: 60,
    numDecisions: 20,
    clock: systemClock,
    onFigure: (figure) => said.push(figure),
  });
  assert.deepEqual(said, figures);
  assert.deepEqual(
    figures.map(({ name, unit }) => `${name} ${unit}`),
    ['3-instances/p50', '3-instances/p99', '9-instances/p50', '9-instances/p99'].map(
      (name) => `conductor/plain/${name} ms`,
    ),
  );
  for (const { value } of figures) assert(value > 0 && Number.isFinite(value));
});

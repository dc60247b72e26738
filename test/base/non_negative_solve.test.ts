/** Least squares whose solution may not be negative, against the conditions of the optimum. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { solveNonNegative } from '../../shared/base/non_negative_solve.ts';

const SIZE = 5;

test('a solution that is positive anyway is that of the equations', () => {
  const a = Float64Array.of(4, 1, 1, 3);
  const b = Float64Array.of(6, 7);
  const [x, y] = solveNonNegative(a, b);
  assert.ok(Math.abs(x! - 1) < 1e-12 && Math.abs(y! - 2) < 1e-12, `${x} ${y}`);
});

test('whatever the columns and their sizes, no value is negative and no other non-negative one is better', () => {
  const random = new Random(7);
  for (let round = 0; round < 500; round++) {
    // Products of random columns, some nearly the same, in units that lie ten powers of ten apart.
    const units = Array.from({ length: SIZE }, () => 10 ** (random.below(11) - 5));
    const rows = Array.from({ length: 9 }, () => {
      const values = units.map((unit) => unit * (random.below(1_000) / 500 - 0.5));
      if (round % 2) values[1] = (values[0]! / units[0]!) * units[1]! * (1 + random.below(10) / 1e4);
      return values;
    });
    const y = rows.map(() => random.below(1_000) / 500 - 1);
    const a = Float64Array.from({ length: SIZE * SIZE }, (_, at) => {
      const [i, j] = [Math.floor(at / SIZE), at % SIZE];
      const ridge = i === j ? 1e-6 * units[i]! * units[i]! : 0;
      return rows.reduce((sum, row) => sum + row[i]! * row[j]!, ridge);
    });
    const b = Float64Array.from({ length: SIZE }, (_, i) => rows.reduce((sum, row, at) => sum + row[i]! * y[at]!, 0));
    const solution = solveNonNegative(a, b);
    for (let i = 0; i < SIZE; i++) {
      assert.ok(solution[i]! >= 0);
      const gradient = solution.reduce((sum, value, j) => sum + a[i * SIZE + j]! * value, -b[i]!) / units[i]!;
      if (solution[i]! > 0) assert.ok(Math.abs(gradient) < 1e-6, `round ${round}, column ${i}: ${gradient}`);
      else assert.ok(gradient > -1e-6, `round ${round}, column ${i} at 0: ${gradient}`);
    }
  }
});

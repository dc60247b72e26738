/**
 * Solves small least-squares problems whose solution may not be negative, from their normal equations: A c = b, with A symmetric and
 * positive definite, as nearly as c ≥ 0 allows.
 *
 * Principal pivoting (K. G. Murty, Linear Complementarity, Linear and Nonlinear Programming, 1988): a set of columns is solved without
 * bounds, the others are 0. The last column that violates its condition (a value below 0 in the set, a descending gradient outside)
 * changes sides. For a positive definite A this ends at the one solution.
 */

/** Rounds for few columns take at most one per set of columns; more means that A is not positive definite. */
const MAX_ROUNDS = 64;
/** Violations smaller than this are rounding, in units of columns that are scaled to length 1. */
const TOLERANCE = 1e-10;

/** Returns the solution. `a` holds the rows of A [size, size] one after the other, `b` has [size]; neither is changed. */
export function solveNonNegative(a: Float64Array, b: Float64Array): Float64Array {
  const size = b.length;
  // Columns differ by ten powers of ten; scaled to a diagonal of ones they do not.
  const scale = b.map((_, i) => 1 / Math.sqrt(Math.max(a[i * size + i]!, Number.MIN_VALUE)));
  const scaled = a.map((value, at) => value * scale[Math.floor(at / size)]! * scale[at % size]!);
  const right = b.map((value, i) => value * scale[i]!);
  const isIn = new Array<boolean>(size).fill(true);
  let solution = solveColumns(scaled, right, isIn);
  for (let round = 0; round < MAX_ROUNDS; round++) {
    const violating = lastViolating(scaled, right, solution, isIn);
    if (violating < 0) break;
    isIn[violating] = !isIn[violating];
    solution = solveColumns(scaled, right, isIn);
  }
  return solution.map((value, i) => Math.max(0, value) * scale[i]!);
}

function lastViolating(a: Float64Array, b: Float64Array, solution: Float64Array, isIn: readonly boolean[]): number {
  const size = b.length;
  const least = TOLERANCE * Math.max(...b.map(Math.abs));
  for (let i = size - 1; i >= 0; i--) {
    if (isIn[i]) {
      if (solution[i]! < -least) return i;
      continue;
    }
    let gradient = -b[i]!;
    for (let j = 0; j < size; j++) gradient += a[i * size + j]! * solution[j]!;
    if (gradient < -least) return i;
  }
  return -1;
}

/** Solves the equations of the columns in the set by Gaussian elimination; the others are 0. */
function solveColumns(a: Float64Array, b: Float64Array, isIn: readonly boolean[]): Float64Array {
  const size = b.length;
  const [left, right] = [a.slice(), b.slice()];
  for (let i = 0; i < size; i++) {
    if (!isIn[i]) continue;
    const pivot = left[i * size + i]!;
    for (let j = i + 1; j < size; j++) {
      if (!isIn[j]) continue;
      const factor = left[j * size + i]! / pivot;
      for (let k = i; k < size; k++) left[j * size + k]! -= factor * left[i * size + k]!;
      right[j]! -= factor * right[i]!;
    }
  }
  const solution = new Float64Array(size);
  for (let i = size - 1; i >= 0; i--) {
    if (!isIn[i]) continue;
    let value = right[i]!;
    for (let k = i + 1; k < size; k++) value -= left[i * size + k]! * solution[k]!;
    solution[i] = value / left[i * size + i]!;
  }
  return solution;
}

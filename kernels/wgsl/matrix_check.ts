/**
 * Whether an adapter's matrix units compute what they should. Drivers differ in how they lay matrices out, and no software driver has
 * any to test with: so a device tries a small product both ways before it trusts them with a model.
 */
import type { Executable, LoadOptions, WeightSource } from '../device.ts';
import type { Program } from '../program.ts';
import { floatRows } from '../stored_rows.ts';

const [ROWS, INNER, OUTPUTS] = [70, 1_024, 80];
/** Tiles of f16. */
const TOLERANCE = 1e-2;

const program: Program = {
  operations: [{ kind: 'linear', x: 'x', weight: 'w', out: 'out', accumulate: false }],
  buffers: { x: { rows: 'rows', width: INNER }, out: { rows: 'rows', width: OUTPUTS } },
  weights: { w: { outputs: OUTPUTS, inner: INNER, parts: [{ tensor: 'w', outputs: OUTPUTS }] } },
  kv: [],
  rope: {},
};

const options: LoadOptions = {
  maxRows: ROWS,
  maxSamples: 1,
  maxBlocksPerSequence: 3,
  weightFormat: 'int8',
  kvDtype: 'f16',
  blockSize: 32,
  numBlocks: { min: 1, max: 1 },
};

/** No two rows, outputs or inputs alike, so that a transposed or shifted matrix shows. */
const pattern = (length: number, step: number): Float32Array =>
  Float32Array.from({ length }, (_, i) => Math.sin(i * step) + (i % 7) / 7);

const weights: WeightSource = {
  async *slices() {
    yield await Promise.resolve(floatRows(pattern(OUTPUTS * INNER, 0.37)));
  },
};

type Load = (program: Program, weights: WeightSource, options: LoadOptions) => Promise<Executable>;

async function product(load: Load): Promise<Float32Array> {
  const executable = await load(program, weights, options);
  await executable.write('x', pattern(ROWS * INNER, 0.11));
  await executable.run([{ tokens: new Array<number>(ROWS).fill(0), start: 0, blockTable: [0, 0, 0] }]);
  const out = await executable.read('out', ROWS);
  await executable.close();
  return out;
}

/** @param plain loads without matrix units, @param matrices with them. */
export async function matricesAgree(plain: Load, matrices: Load): Promise<boolean> {
  const want = await product(plain);
  try {
    const have = await product(matrices);
    const largest = want.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    return want.every((value, i) => Math.abs(value - (have[i] ?? NaN)) <= TOLERANCE * largest);
  } catch {
    // The shader does not compile here: the adapter promised what its driver does not keep.
    return false;
  }
}

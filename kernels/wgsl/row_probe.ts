/**
 * Whether a row's bits depend on what it is computed beside (E2). The kernels have one order of arithmetic for every number of rows, but
 * a driver's compiler may contract or reorder what WGSL leaves to it, and differently in the kernels for one row and for many. So a
 * device compares at its start: the same rows of a norm, products and attention, by every kernel that may have them, alone and beside
 * others.
 */
import type { Executable, LoadOptions, Segment, WeightSource } from '../device.ts';
import type { Program } from '../program.ts';
import { floatRows } from '../stored_rows.ts';

/** More tokens than a split of attention has, and more rows than a matrix-vector kernel takes. */
const NUM_TOKENS = 134;

/** No two values alike; sums of them are rounded. */
const pattern = (length: number, step: number): Float32Array =>
  Float32Array.from({ length }, (_, i) => Math.sin(i * step) + (i % 7) / 7);

/** Heads of common models, for a device that is looked at without one. */
const typicalHeads = { heads: 32, kvHeads: 8, headDim: 128 };
export const typicalProgram: Program = {
  operations: [
    { kind: 'rope_store', qkv: 'qkv', layer: 0, rope: 'rope', ...typicalHeads },
    { kind: 'attention', qkv: 'qkv', out: 'attended', layer: 0, scale: 128 ** -0.5, ...typicalHeads },
  ],
  ...{ buffers: {}, weights: {}, kv: [], rope: {} },
};

/** A decoder layer up to the product behind its attention, with the heads of `model`'s first one: its kernels are compiled but once. */
function probeOf({ operations, rope }: Program): { readonly program: Program; readonly width: number } | undefined {
  const attention = operations.find((op) => op.kind === 'attention');
  const stored = operations.find((op) => op.kind === 'rope_store');
  if (!attention || !stored) return undefined;
  const group = attention.heads / attention.kvHeads;
  const { headDim } = attention;
  const heads = { heads: group, kvHeads: 1, headDim };
  const width = group * headDim;
  const qkvWidth = width + 2 * headDim;
  const dim = rope[stored.rope]?.dim ?? headDim;
  const angles = (of: (x: number) => number): Float32Array =>
    Float32Array.from({ length: (NUM_TOKENS * dim) / 2 }, (_, i) => of((i % 97) / 7));
  const program: Program = {
    operations: [
      { kind: 'rms_norm', x: 'x', weight: 'norm', out: 'normed', epsilon: 1e-5 },
      { kind: 'linear', x: 'normed', weight: 'qkv', out: 'qkv', accumulate: false },
      { kind: 'rope_store', qkv: 'qkv', layer: 0, rope: 'rope', ...heads },
      { ...attention, qkv: 'qkv', out: 'attended', layer: 0, ...heads },
      { kind: 'linear', x: 'attended', weight: 'o', out: 'out', accumulate: false },
    ],
    buffers: {
      x: { rows: 'rows', width },
      normed: { rows: 'rows', width },
      qkv: { rows: 'rows', width: qkvWidth },
      attended: { rows: 'rows', width },
      out: { rows: 'rows', width },
    },
    weights: {
      norm: { outputs: width, inner: 1, parts: [{ tensor: 'norm', outputs: width }] },
      qkv: { outputs: qkvWidth, inner: width, parts: [{ tensor: 'qkv', outputs: qkvWidth }] },
      o: { outputs: width, inner: width, parts: [{ tensor: 'o', outputs: width }] },
    },
    kv: [{ planes: [headDim, headDim] }],
    rope: { rope: { dim, cos: angles(Math.cos), sin: angles(Math.sin) } },
  };
  return { program, width };
}

/** Rows of the one sequence: the first of them, and how many. */
type Stretch = readonly [start: number, count: number];
/** Steps whose rows are compared with those of the whole sequence in one. */
const STEPS: readonly (readonly Stretch[])[] = [
  [[NUM_TOKENS - 1, 1]],
  [[64, 5]],
  [[30, 70]],
  [133, 129, 128, 100, 64, 33, 1, 0].map((start): Stretch => [start, 1]),
  [
    [0, 70],
    [75, 5],
    [133, 1],
  ],
];

type Load = (program: Program, weights: WeightSource, options: LoadOptions) => Promise<Executable>;

/** What of a model its kernels depend on. */
export type ProbeOptions = Pick<LoadOptions, 'weightFormat' | 'kvDtype' | 'blockSize'>;

/** The first rows whose bits differ, in words; undefined when all are equal, as they should be, or `model` has no attention. */
export async function findUnequalRows(load: Load, model: Program, given: ProbeOptions): Promise<string | undefined> {
  const made = probeOf(model);
  if (!made) return undefined;
  const { program, width } = made;
  const numBlocks = Math.ceil(NUM_TOKENS / given.blockSize);
  const weights: WeightSource = {
    async *slices({ tensor, outputs }) {
      const length = outputs * (tensor === 'norm' ? 1 : width);
      yield await Promise.resolve(floatRows(pattern(length, tensor === 'qkv' ? 0.37 : 0.23)));
    },
  };
  const executable = await load(program, weights, {
    ...given,
    ...{ maxRows: NUM_TOKENS, maxSamples: 8, maxBlocksPerSequence: numBlocks },
    numBlocks: { min: numBlocks, max: numBlocks },
  });
  const x = pattern(NUM_TOKENS * width, 0.11);
  const blockTable = Array.from({ length: numBlocks }, (_, i) => i);
  const bitsOf = async (stretches: readonly Stretch[]): Promise<Uint32Array> => {
    const rows = joined(x, stretches, width);
    await executable.write('x', rows);
    await executable.run(
      stretches.map(([start, count]): Segment => ({ tokens: new Array<number>(count).fill(0), start, blockTable })),
    );
    const out = await executable.read('out', rows.length / width);
    return new Uint32Array(out.buffer, out.byteOffset, out.length);
  };
  try {
    const all = await bitsOf([[0, NUM_TOKENS]]);
    for (const stretches of STEPS) {
      const bits = await bitsOf(stretches);
      const want = joined(all, stretches, width);
      const at = want.findIndex((value, i) => value !== bits[i]);
      if (at >= 0) {
        const counts = stretches.map(([, count]) => count).join(' + ');
        return `row ${Math.floor(at / width)} of a step of ${counts} has other bits than in a step of ${NUM_TOKENS}`;
      }
    }
    return undefined;
  } finally {
    await executable.close();
  }
}

/** Those rows of a matrix, one after the other. */
function joined<T extends Float32Array | Uint32Array>(all: T, stretches: readonly Stretch[], width: number): T {
  const numRows = stretches.reduce((sum, [, count]) => sum + count, 0);
  const rows = all.slice(0, numRows * width) as T;
  let at = 0;
  for (const [start, count] of stretches) {
    rows.set(all.subarray(start * width, (start + count) * width), at);
    at += count * width;
  }
  return rows;
}

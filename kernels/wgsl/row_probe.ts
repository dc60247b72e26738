/**
 * Checks whether a row's bits depend on the rows computed with it (E2). The kernels have one order of arithmetic for every number of
 * rows, but a driver's compiler may contract or reorder what WGSL permits, and differently in the kernels for one row and for many. So
 * at its start a device compares the same rows of a norm, products, attention and a gate, computed by the kernels for every number of
 * rows, alone and with others. Mixtures, biases and other layers' windows are not compared.
 */
import {
  randomWeightsOnDevice,
  type Executable,
  type LoadOptions,
  type ProbeOptions,
  type Segment,
  type WeightSource,
} from '../device.ts';
import { layoutOfOneLayer } from '../kv_layout.ts';
import type { Program } from '../program.ts';
import { probedAttention, probedMatrix } from './probed_attention.ts';

/** More tokens than a split of attention has, and more rows than a matrix-vector kernel takes. */
const NUM_TOKENS = 134;

/** No two values alike; sums of them are rounded. */
const pattern = (length: number, step: number): Float32Array =>
  Float32Array.from({ length }, (_, i) => Math.sin(i * step) + (i % 7) / 7);

/** Heads of common models, for probing a device without a model. */
const typicalHeads = { heads: 32, kvHeads: 8, headDim: 128 };
/** Program that stands for a model when a device is probed without one. */
export const typicalProgram: Program = {
  operations: [
    { kind: 'rope_store', qkv: 'qkv', layer: 0, rope: 'rope', ...typicalHeads },
    { kind: 'attention', qkv: 'qkv', out: 'attended', layer: 0, scale: 128 ** -0.5, ...typicalHeads },
  ],
  buffers: {},
  weights: {},
  kv: [],
  rope: {},
};

interface Probe {
  readonly program: Program;
  /** Values of a row of x, and of out. */
  readonly width: number;
  readonly outWidth: number;
}

/**
 * Returns a decoder layer with the heads of the model's first one, so that its attention is compiled only once: a norm, products,
 * attention, a product that ends in a gate. On hardware the products have so many outputs that a thread computes one, two and four of
 * them, and more inputs than a section; a software driver has one kernel for all, and few cores. Undefined for a model without
 * attention.
 */
function probeOf(model: Program, isSoftware: boolean): Probe | undefined {
  const attention = probedAttention(model);
  if (!attention) return undefined;
  const { width, attendedWidth, rotary } = attention;
  const [middle, inner] = isSoftware ? [64, 64] : [2_048, 4_096];
  const angles = (of: (x: number) => number): Float32Array =>
    Float32Array.from({ length: (NUM_TOKENS * rotary) / 2 }, (_, i) => of((i % 97) / 7));
  const program: Program = {
    operations: [
      { kind: 'rms_norm', x: 'x', weight: 'norm', out: 'normed', epsilon: 1e-5 },
      ...attention.operations,
      { kind: 'linear', x: 'attended', weight: 'middle', out: 'middle', accumulate: false },
      { kind: 'linear', x: 'middle', weight: 'gate_up', out: 'gate_up', accumulate: false },
      { kind: 'silu_mul', gateUp: 'gate_up', out: 'out', inner },
    ],
    buffers: {
      x: { rows: 'rows', width },
      normed: { rows: 'rows', width },
      ...attention.buffers,
      attended: { rows: 'rows', width: attendedWidth },
      middle: { rows: 'rows', width: middle },
      gate_up: { rows: 'rows', width: 2 * inner },
      out: { rows: 'rows', width: inner },
    },
    weights: {
      norm: probedMatrix(width, 1, ['norm']),
      ...attention.weights,
      middle: probedMatrix(middle, attendedWidth, ['middle']),
      gate_up: probedMatrix(2 * inner, middle, ['gate', 'up']),
    },
    kv: [{ planes: attention.planes }],
    rope: { rope: { dim: rotary, cos: angles(Math.cos), sin: angles(Math.sin) } },
  };
  return { program, width, outWidth: inner };
}

/** Rows of the one sequence: the first of them, and how many. */
type RowRange = readonly [start: number, count: number];
/** Steps whose rows are compared with those of the whole sequence in one: for each number of columns of a kernel, and for tiles. */
const STEPS: readonly (readonly RowRange[])[] = [
  [[NUM_TOKENS - 1, 1]],
  [[90, 2]],
  [[31, 3]],
  [[64, 5]],
  [[30, 70]],
  [133, 129, 128, 100, 64, 33, 1, 0].map((start): RowRange => [start, 1]),
  [
    [0, 70],
    [75, 5],
    [133, 1],
  ],
];

type LoadProgram = (program: Program, weights: WeightSource, options: LoadOptions) => Promise<Executable>;

/** Findings of a probe; empty when all bits are equal, or `model` has no attention. */
export interface ProbeFindings {
  /** The first rows whose bits differ, in words. */
  readonly unequal?: string;
  /** Set when more than half of the computed values are zero, infinite or NaN: the device's results cannot be used. */
  readonly fault?: string;
}

/** Runs the probe: compares the bits of rows computed alone and with others. */
export async function findUnequalRows(
  load: LoadProgram,
  model: Program,
  given: ProbeOptions,
  isSoftware: boolean,
): Promise<ProbeFindings> {
  const made = probeOf(model, isSoftware);
  if (!made) return {};
  const { program, width, outWidth } = made;
  const numBlocks = Math.ceil(NUM_TOKENS / given.kv.blockSize);
  const weights = randomWeightsOnDevice(11);
  const executable = await load(program, weights, {
    weightFormat: given.weightFormat,
    kv: layoutOfOneLayer(program.kv[0]?.planes ?? [], given.kv.blockSize, given.kv.dtype),
    maxRows: NUM_TOKENS,
    maxSamples: 8,
    maxBlocksPerSequence: numBlocks,
    numBlocks: { min: numBlocks, max: numBlocks },
  });
  const x = pattern(NUM_TOKENS * width, 0.11);
  const blockTable = Array.from({ length: numBlocks }, (_, i) => i);
  const outOf = async (rowRanges: readonly RowRange[]): Promise<Float32Array> => {
    const rows = joined(x, rowRanges, width);
    await executable.write('x', rows);
    await executable.run(
      rowRanges.map(([start, count]): Segment => ({ tokens: new Array<number>(count).fill(0), start, blockTable })),
    );
    return executable.read('out', rows.length / width);
  };
  const bitsOf = (values: Float32Array): Uint32Array =>
    new Uint32Array(values.buffer, values.byteOffset, values.length);
  try {
    const whole = await outOf([[0, NUM_TOKENS]]);
    const numNumbers = whole.reduce((count, value) => count + (Number.isFinite(value) && value !== 0 ? 1 : 0), 0);
    if (numNumbers < whole.length / 2)
      return { fault: 'a layer with random weights computes mostly zeros, infinities or NaN' };
    const all = bitsOf(whole);
    for (const rowRanges of STEPS) {
      const bits = bitsOf(await outOf(rowRanges));
      const want = joined(all, rowRanges, outWidth);
      const at = want.findIndex((value, i) => value !== bits[i]);
      if (at >= 0) {
        const counts = rowRanges.map(([, count]) => count).join(' + ');
        return {
          unequal: `row ${Math.floor(at / outWidth)} of a step of ${counts} has other bits than in a step of ${NUM_TOKENS}`,
        };
      }
    }
    return {};
  } finally {
    await executable.close();
  }
}

/** Returns the rows of `rowRanges` from a matrix, one range after the other. */
function joined<T extends Float32Array | Uint32Array>(all: T, rowRanges: readonly RowRange[], width: number): T {
  const numRows = rowRanges.reduce((sum, [, count]) => sum + count, 0);
  const rows = all.slice(0, numRows * width) as T;
  let at = 0;
  for (const [start, count] of rowRanges) {
    rows.set(all.subarray(start * width, (start + count) * width), at);
    at += count * width;
  }
  return rows;
}

/** Helpers of the operation suites: programs of one operation at the edges of sizes, compared with the equation in f64. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import type { Device, Executable, LoadOptions, Segment, WeightSource } from '../../../kernels/device.ts';
import type { KvDtype, KvLayer, Program } from '../../../kernels/program.ts';
import { floatRows, type StoredRows } from '../../../kernels/weights/stored_rows.ts';
import type { WeightFormat } from '../../../kernels/weights/weight_format.ts';
import { Random } from '../../../shared/base/random.ts';
import { halfValue } from '../../support/half.ts';
import { kvLayoutFor } from '../../support/kv.ts';

/** Receiver of the suite's test cases; Vitest by default. */
export interface Cases {
  readonly describe: (name: string, body: () => void) => void;
  readonly test: (name: string, run: () => Promise<void>) => void;
}

export interface Conformance {
  /** Vitest when it does not say. */
  readonly cases?: Cases;
  readonly name: string;
  /** May give the same device again; the suite closes only what it loads. */
  readonly open: () => Promise<Device>;
  /** Largest error relative to the largest value; f32 sums in another order than the equation. */
  readonly tolerance: number;
  /** Tolerance of matrix products when it is wider than `tolerance`: tiles of f16. */
  readonly linearTolerance?: number;
  /** Products with int8 and int4 weights take activations as integers. */
  readonly quantisesActivations?: boolean;
  /** Weights in these formats; all when it does not say. */
  readonly formats?: readonly WeightFormat[];
  /** Samples by vocabulary; ten thousand when it does not say. */
  readonly sampling?: readonly { readonly vocab: number; readonly cases: number }[];
  /** One of so many shapes of attention, and fewer mixtures. */
  readonly sampled?: number;
  /** One of so many cases of each suite; all when it does not say. */
  readonly oneIn?: number;
}

/** Returns the receiver of one suite's cases, which leaves out those that the device does not want. `first` is not left out. */
export function casesOf({ cases = { describe, test }, oneIn = 1 }: Conformance, first = 0): Cases {
  let numCases = 0;
  return {
    describe: cases.describe,
    test: (name, run) => {
      if (numCases++ % oneIn === first % oneIn) cases.test(name, run);
    },
  };
}

const random = new Random(7);
export const noise = (length: number): Float32Array => Float32Array.from({ length }, () => random.u32() / 2 ** 31 - 1);

/** Tensors by name, as f32 values or as stored rows. */
type Tensors = Readonly<Record<string, Float32Array | StoredRows>>;

function sourceOf(tensors: Tensors): WeightSource {
  return {
    async *slices({ tensor }) {
      const values = tensors[tensor];
      assert(values, tensor);
      yield await Promise.resolve(values instanceof Float32Array ? floatRows(values) : values);
    },
  };
}

export const options = {
  maxRows: 160,
  maxSamples: 4,
  maxBlocksPerSequence: 40,
  weightFormat: 'f32' as WeightFormat,
  blockSize: 32,
  numBlocks: { min: 40, max: 40 },
};
export const numBlocksThere = options.numBlocks.max;

export const segments = (numRows: number): Segment[] => [
  { tokens: new Array<number>(numRows).fill(0), start: 0, blockTable: [0, 1, 2, 3, 4] },
];

export function close(actual: Float32Array, expected: readonly number[], tolerance: number): void {
  const scale = expected.reduce((highest, value) => Math.max(highest, Math.abs(value)), 1e-9);
  expected.forEach((value, i) => {
    assert(Math.abs((actual[i] ?? NaN) - value) <= tolerance * scale, `[${i}] ${actual[i]} is not ${value}`);
  });
}

/** A program without attention, unless it says otherwise. */
export function programOf(parts: Pick<Program, 'operations' | 'buffers'> & Partial<Program>): Program {
  return { weights: {}, kv: [], rope: {}, ...parts };
}

/** Layers that keep K and V. */
export function keysAndValues(layers: number, kvHeads: number, headDim: number): KvLayer[] {
  return Array.from({ length: layers }, () => ({ planes: [kvHeads * headDim, kvHeads * headDim] }));
}

/** Rows that nobody's tokens matter to. */
export async function loaded(
  { open }: Conformance,
  parts: Parameters<typeof programOf>[0],
  tensors: Tensors = {},
  { kvDtype = 'f32', ...more }: Partial<LoadOptions> & { readonly kvDtype?: KvDtype } = {},
): Promise<Executable> {
  const program = programOf(parts);
  const { blockSize, ...load } = options;
  const kv = kvLayoutFor(program.kv, kvDtype, blockSize);
  return (await open()).load(program, sourceOf(tensors), { ...load, kv, ...more });
}

/** Values that the type holds exactly, so that only the arithmetic is compared. */
export function roundTo(kvDtype: KvDtype, values: Float32Array): Float32Array {
  return kvDtype === 'f32' ? values : values.map((value) => Math.round(value * 256) / 256);
}

export function unpack(kvDtype: KvDtype, bytes: Uint8Array): Float32Array {
  if (kvDtype === 'f32') return new Float32Array(bytes.buffer.slice(0));
  return Float32Array.from(new Uint16Array(bytes.buffer.slice(0)), halfValue);
}

export function pack(kvDtype: KvDtype, values: Float32Array): Uint8Array {
  if (kvDtype === 'f32') return new Uint8Array(values.buffer.slice(0));
  const halves = Uint16Array.from(values, (value) => {
    if (value === 0) return 0;
    const exponent = Math.floor(Math.log2(Math.abs(value)));
    const mantissa = (Math.abs(value) / 2 ** exponent - 1) * 1_024;
    return (value < 0 ? 0x8000 : 0) | ((exponent + 15) << 10) | mantissa;
  });
  return new Uint8Array(halves.buffer);
}

/** GPTQ and AWQ matrices by input ranges: the wasm device has the same integers of them as of their rows. Budget: 5 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import type { Executable, WeightSource } from '../../kernels/device.ts';
import type { TensorRows } from '../../kernels/program.ts';
import type { ColumnFormat, StoredMatrix } from '../../kernels/weights/stored_columns.ts';
import type { StoredRows } from '../../kernels/weights/stored_rows.ts';
import type { WeightFormat } from '../../kernels/weights/weight_format.ts';
import { createWasmDevice } from '../../kernels/wasm/wasm_device.ts';
import { Random } from '../../shared/base/random.ts';
import { noKv } from '../../kernels/kv_layout.ts';

const ROWS = 3;
const random = new Random(31);

interface Shape {
  readonly format: ColumnFormat;
  readonly width: number;
  readonly inner: number;
  readonly inputsPerScale: number;
  readonly hasZeros: boolean;
  /** Inputs of each. */
  readonly inputRange: number;
}

function matrixOf({ format, width, inner, inputsPerScale, hasZeros, inputRange }: Shape): Omit<StoredMatrix, 'first'> {
  const data = Uint8Array.from({ length: (width * inner) / 2 }, () => random.below(256));
  const groups = (inner / inputsPerScale) * width;
  const whole = [0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4700, 0x4800, 0x4b80];
  return {
    format,
    width,
    inputsPerScale,
    scales: Uint16Array.from({ length: groups }, () => 0x2400 + random.below(0x0c00)),
    zeros: hasZeros ? Uint16Array.from({ length: groups }, () => whole[random.below(8)]!) : undefined,
    async *inputRanges() {
      const once = new Uint8Array((inputRange * width) / 2);
      for (let inputStart = 0; inputStart < inner; inputStart += inputRange) {
        const from = (inputStart * width) / 2;
        const some = data.subarray(from, Math.min(data.length, from + once.length));
        // The next one has the same memory.
        once.fill(0xee);
        once.set(some);
        yield await Promise.resolve({ inputStart, data: once.subarray(0, some.length) });
      }
    },
  };
}

/** Returns the same rows in the form that a device without input ranges receives. */
async function rowsOf(matrix: Omit<StoredMatrix, 'first'>, first: number, count: number): Promise<StoredRows> {
  const { format, width, scales, zeros } = matrix;
  const columns = <T extends Uint32Array | Uint16Array>(all: T, perWord: number): T =>
    all.filter((_, at) => {
      const row = (at % (width / perWord)) * perWord;
      return row >= first && row < first + count;
    }) as T;
  const inputRanges: Buffer[] = [];
  for await (const { data } of matrix.inputRanges()) inputRanges.push(Buffer.from(data));
  const words = new Uint32Array(Uint8Array.from(Buffer.concat(inputRanges)).buffer);
  return {
    rowStart: 0,
    format,
    data: new Uint8Array(columns(words, format === 'awq' ? 8 : 1).buffer),
    scales: new Uint8Array(columns(scales, 1).buffer),
    ...(zeros ? { zeros: new Uint8Array(columns(zeros, 1).buffer) } : {}),
  };
}

function load(
  parts: readonly TensorRows[],
  inner: number,
  weightFormat: WeightFormat,
  source: WeightSource,
  onProgress?: () => void,
): Promise<Executable> {
  const outputs = parts.reduce((sum, part) => sum + part.outputs, 0);
  // Helpers pack too.
  return createWasmDevice(2, true, 1, { minSharedBytes: 0 }).load(
    {
      operations: [{ kind: 'linear', x: 'x', weight: 'w', out: 'out', accumulate: false }],
      buffers: { x: { rows: 'rows', width: inner }, out: { rows: 'rows', width: outputs } },
      weights: { w: { outputs, inner, parts } },
      kv: [],
      rope: {},
    },
    source,
    {
      maxRows: ROWS,
      maxSamples: 1,
      maxBlocksPerSequence: 4,
      weightFormat,
      kv: noKv,
      numBlocks: { min: 4, max: 4 },
      ...(onProgress ? { onProgress } : {}),
    },
  );
}

async function product(executable: Executable, x: Float32Array): Promise<Float32Array> {
  await executable.write('x', x);
  await executable.run([{ tokens: [0, 0, 0], start: 0, blockTable: [0, 1, 2, 3] }]);
  const out = await executable.read('out', ROWS);
  await executable.close();
  return out;
}

const plain = { width: 48, inner: 256, inputsPerScale: 64, inputRange: 64 };

test.each([
  ['gptq, symmetric', 'int4', { ...plain, format: 'gptq', hasZeros: false }, [0, 48], true],
  ['gptq, symmetric, with others', 'uint4', { ...plain, format: 'gptq', hasZeros: false }, [0, 48], true],
  ['gptq, zeros', 'uint4', { ...plain, format: 'gptq', hasZeros: true }, [8, 32], true],
  [
    ...(['gptq, groups of several input ranges', 'uint4'] as const),
    ...([{ ...plain, format: 'gptq', hasZeros: true, inputsPerScale: 128, inputRange: 32 }, [16, 8], true] as const),
  ],
  ['awq, zeros', 'uint4', { ...plain, format: 'awq', hasZeros: true }, [0, 48], true],
  ['awq, no zeros', 'int4', { ...plain, format: 'awq', hasZeros: false }, [8, 16], true],
  [
    ...(['awq, input ranges that cut groups', 'uint4'] as const),
    ...([{ ...plain, format: 'awq', hasZeros: true, inputRange: 96 }, [40, 8], true] as const),
  ],
  [
    ...(['awq, more than a staging region has room for', 'uint4'] as const),
    ...([
      { ...plain, format: 'awq', hasZeros: true, width: 20_000, inner: 192, inputRange: 192 },
      [8, 19_992],
      true,
    ] as const),
  ],
  [
    ...(['awq, 32 inputs are more than there is room for', 'uint4'] as const),
    ...([
      { ...plain, format: 'awq', hasZeros: true, width: 48_000, inner: 64, inputRange: 32 },
      [0, 16],
      false,
    ] as const),
  ],
  ['gptq, zeros where the device has none', 'int4', { ...plain, format: 'gptq', hasZeros: true }, [0, 48], false],
  ['gptq, held in another format', 'int8', { ...plain, format: 'gptq', hasZeros: false }, [0, 48], false],
] as const)('%s, as %s', async (_name, held, shape, [first, count], isTaken) => {
  const matrix = matrixOf(shape);
  const rows = await rowsOf(matrix, first, count);
  const [parts, { inner }] = [[{ tensor: 'w', outputs: count, firstRow: first }], shape];
  const x = Float32Array.from({ length: ROWS * inner }, () => random.u32() / 2 ** 31 - 1);
  let numAsked = 0;
  const slices = async function* (): AsyncGenerator<StoredRows> {
    numAsked++;
    yield await Promise.resolve(rows);
  };
  const byRows = await product(await load(parts, inner, held, { slices }), x);
  assert.equal(numAsked, 1);
  const stored = { slices, matrix: () => Promise.resolve({ ...matrix, first }) };
  const byInputRanges = await product(await load(parts, inner, held, stored), x);
  assert.equal(numAsked, isTaken ? 1 : 2, 'the matrix is taken by input ranges');
  expect(byInputRanges).toEqual(byRows);
  assert(byRows.some((value) => value !== 0));
});

test.each([0x0001, 0x83ff, 0x7c00, 0xfe00])(
  'a matrix with a scale of %i, which is flushed or no number, is taken by rows',
  async (half) => {
    const matrix = matrixOf({ ...plain, format: 'awq', hasZeros: true });
    const scales = matrix.scales.slice();
    scales[7] = half;
    const stored = { ...matrix, first: 0, scales };
    const rows = await rowsOf(stored, 0, 48);
    let numAsked = 0;
    const source: WeightSource = {
      async *slices() {
        numAsked++;
        yield await Promise.resolve(rows);
      },
      matrix: () => Promise.resolve(stored),
    };
    const executable = await load([{ tensor: 'w', outputs: 48 }], plain.inner, 'uint4', source);
    const out = await product(executable, new Float32Array(ROWS * plain.inner).fill(0.25));
    assert.equal(numAsked, 1);
    assert(out.every(Number.isFinite));
  },
);

test('parts that begin in the middle of a panel are taken by rows, those after them too', async () => {
  const matrix = matrixOf({ ...plain, format: 'awq', hasZeros: true });
  const parts = [
    { tensor: 'a', outputs: 16 },
    { tensor: 'b', outputs: 4 },
    { tensor: 'c', outputs: 16 },
  ];
  const asked: string[] = [];
  const executable = await load(parts, plain.inner, 'uint4', {
    async *slices({ tensor, outputs }) {
      asked.push(tensor);
      const floats = new Float32Array(outputs * plain.inner).fill(0.5);
      yield await Promise.resolve({ rowStart: 0, format: 'f32', data: new Uint8Array(floats.buffer) });
    },
    matrix: () => Promise.resolve({ ...matrix, first: 0 }),
  });
  const out = await product(executable, new Float32Array(ROWS * plain.inner).fill(1));
  expect(asked).toEqual(['b', 'c']);
  expect(Math.round(out[16]!)).toBe(plain.inner / 2);
});

test('a load that is broken off reads no further', async () => {
  const matrix = matrixOf({ ...plain, format: 'gptq', hasZeros: true });
  let [numBegun, numEnded] = [0, 0];
  const parts = ['a', 'b', 'c'].map((tensor) => ({ tensor, outputs: 48 }));
  const source: WeightSource = {
    slices: () => assert.fail('by input ranges'),
    matrix: () =>
      Promise.resolve({
        ...matrix,
        first: 0,
        async *inputRanges() {
          numBegun++;
          try {
            yield* matrix.inputRanges();
          } finally {
            numEnded++;
          }
        },
      }),
  };
  const onProgress = (): void => {
    throw new Error('nobody waits for it');
  };
  await expect(load(parts, plain.inner, 'uint4', source, onProgress)).rejects.toThrow('nobody waits for it');
  assert.deepEqual([numBegun, numEnded], [2, 2]);
});

test('input ranges that are not those of the matrix are refused', async () => {
  const matrix = matrixOf({ ...plain, format: 'gptq', hasZeros: true });
  const parts = [{ tensor: 'w', outputs: 48 }];
  const stored = (inputs: readonly number[]): WeightSource => ({
    slices: () => assert.fail('by input ranges'),
    matrix: () =>
      Promise.resolve({
        ...matrix,
        first: 0,
        async *inputRanges() {
          for (const inputStart of inputs)
            yield await Promise.resolve({ inputStart, data: new Uint8Array(32 * plain.width) });
        },
      }),
  });
  await expect(load(parts, plain.inner, 'uint4', stored([0, 64, 128]))).rejects.toThrow('w has 192 inputs, want 256');
  await expect(load(parts, plain.inner, 'uint4', stored([0, 128]))).rejects.toThrow('in ascending order');
  await expect(load(parts, plain.inner, 'uint4', stored([0, 64, 128, 192, 256]))).rejects.toThrow('more than 256');
});

test('a file that cannot be read fails the load, and nobody reads on', async () => {
  const matrix = matrixOf({ ...plain, format: 'gptq', hasZeros: true });
  let numEnded = 0;
  const parts = ['a', 'b', 'c'].map((tensor) => ({ tensor, outputs: 48 }));
  const loading = load(parts, plain.inner, 'uint4', {
    slices: () => assert.fail('by input ranges'),
    matrix: ({ tensor }) =>
      Promise.resolve({
        ...matrix,
        first: 0,
        async *inputRanges() {
          try {
            for await (const inputRange of matrix.inputRanges()) {
              if (tensor === 'a' && inputRange.inputStart > 0) throw new Error('the disk is gone');
              yield inputRange;
            }
          } finally {
            numEnded++;
          }
        },
      }),
  });
  await expect(loading).rejects.toThrow('the disk is gone');
  assert.equal(numEnded, 2, 'the one that was read, and the one that was begun');
});

/**
 * What every device must do: the equations in f64, at the edges of sizes. A device's own test file names it and how close it
 * must come.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import type { Device, Executable, KvDtype, Program, Segment, WeightSource } from '../../kernels/device.ts';
import { Random } from '../../shared/base/random.ts';

export interface Conformance {
  readonly name: string;
  readonly open: () => Promise<Device>;
  /** Largest error relative to the largest value; f32 sums in another order than the equation. */
  readonly tolerance: number;
}

const random = new Random(7);
const noise = (length: number): Float32Array => Float32Array.from({ length }, () => random.u32() / 2 ** 31 - 1);

function sourceOf(tensors: Readonly<Record<string, Float32Array>>): WeightSource {
  return {
    async *slices(name) {
      const values = tensors[name];
      assert(values, name);
      yield await Promise.resolve({ rowStart: 0, values });
    },
  };
}

const options = {
  maxRows: 64,
  maxSamples: 4,
  maxBlocksPerSequence: 16,
  kvDtype: 'f32' as KvDtype,
  blockSize: 32,
  numBlocks: 20,
};

const segments = (numRows: number): Segment[] => [
  { tokens: new Array<number>(numRows).fill(0), start: 0, blockTable: [0, 1, 2] },
];

function close(actual: Float32Array, expected: readonly number[], tolerance: number): void {
  const scale = expected.reduce((highest, value) => Math.max(highest, Math.abs(value)), 1e-9);
  expected.forEach((value, i) => {
    assert(Math.abs((actual[i] ?? NaN) - value) <= tolerance * scale, `[${i}] ${actual[i]} is not ${value}`);
  });
}

export function conformance(device: Conformance): void {
  const { name, open, tolerance } = device;
  layerConformance(device);
  const run = async (
    program: Program,
    tensors: Record<string, Float32Array>,
    kvDtype: KvDtype = 'f32',
  ): Promise<Executable> => (await open()).load(program, sourceOf(tensors), { ...options, kvDtype });

  describe(`${name}: rms_norm`, () => {
    for (const [rows, hidden] of [
      [1, 4],
      [3, 63],
      [2, 64],
      [5, 65],
      [64, 257],
    ] as const) {
      test(`[${rows}, ${hidden}] is the equation`, async () => {
        const [x, weight] = [noise(rows * hidden), noise(hidden)];
        const executable = await run(
          {
            operations: [{ kind: 'rms_norm', x: 'x', weight: 'w', out: 'out', epsilon: 1e-5 }],
            buffers: { x: { rows: 'rows', width: hidden }, out: { rows: 'rows', width: hidden } },
            weights: { w: { outputs: hidden, inner: 1, parts: [{ tensor: 'w', outputs: hidden }] } },
          },
          { w: weight },
        );
        await executable.write('x', x);
        await executable.run(segments(rows));
        const expected = Array.from(x, (value, i) => {
          const start = i - (i % hidden);
          const meanSquare = x.subarray(start, start + hidden).reduce((sum, v) => sum + v * v, 0) / hidden;
          return ((weight[i % hidden] ?? 0) * value) / Math.sqrt(meanSquare + 1e-5);
        });
        close(await executable.read('out', rows), expected, tolerance);
        await executable.close();
      });
    }
  });

  describe(`${name}: linear`, () => {
    for (const [rows, inner, outputs] of [
      [1, 4, 8],
      [1, 100, 333],
      [5, 63, 9],
      [4, 64, 64],
      [7, 129, 17],
    ] as const) {
      for (const accumulate of [false, true]) {
        test(`[${rows}, ${inner}] · [${outputs}, ${inner}]ᵀ + bias${accumulate ? ', added to what is there' : ''}`, async () => {
          const [x, weight, bias, before] = [
            noise(rows * inner),
            noise(outputs * inner),
            noise(outputs),
            noise(rows * outputs),
          ];
          const executable = await run(
            {
              operations: [{ kind: 'linear', x: 'x', weight: 'w', bias: 'b', out: 'out', accumulate }],
              buffers: { x: { rows: 'rows', width: inner }, out: { rows: 'rows', width: outputs } },
              weights: {
                w: { outputs, inner, parts: [{ tensor: 'w', outputs }] },
                b: { outputs, inner: 1, parts: [{ tensor: 'b', outputs }] },
              },
            },
            { w: weight, b: bias },
          );
          await executable.write('x', x);
          await executable.write('out', before);
          await executable.run(segments(rows));
          const expected = Array.from({ length: rows * outputs }, (_, i) => {
            const [row, output] = [Math.floor(i / outputs), i % outputs];
            let sum = (bias[output] ?? 0) + (accumulate ? (before[i] ?? 0) : 0);
            for (let k = 0; k < inner; k++) sum += (x[row * inner + k] ?? 0) * (weight[output * inner + k] ?? 0);
            return sum;
          });
          close(await executable.read('out', rows), expected, tolerance);
          await executable.close();
        });
      }
    }
  });

  describe(`${name}: attention`, () => {
    const cases = [
      { rows: 1, start: 0, heads: 1, kvHeads: 1, headDim: 4, kvDtype: 'f32' },
      { rows: 1, start: 31, heads: 4, kvHeads: 2, headDim: 64, kvDtype: 'f16' },
      { rows: 1, start: 32, heads: 4, kvHeads: 1, headDim: 12, kvDtype: 'f32' },
      { rows: 33, start: 40, heads: 6, kvHeads: 2, headDim: 12, kvDtype: 'f16' },
      { rows: 2, start: 126, heads: 2, kvHeads: 2, headDim: 128, kvDtype: 'f16' },
    ] as const;
    for (const { rows, start, heads, kvHeads, headDim, kvDtype } of cases) {
      test(`${rows} rows from ${start}, ${heads}/${kvHeads} heads of ${headDim}, ${kvDtype}, scattered blocks`, async () => {
        const [width, layers, layer, scale] = [(heads + 2 * kvHeads) * headDim, 2, 1, 1 / Math.sqrt(headDim)];
        const executable = await run(
          {
            operations: [{ kind: 'attention', qkv: 'qkv', out: 'out', layer, scale }],
            buffers: { qkv: { rows: 'rows', width }, out: { rows: 'rows', width: heads * headDim } },
            weights: {},
            attention: { layers, heads, kvHeads, headDim, ropeCos: new Float32Array(0), ropeSin: new Float32Array(0) },
          },
          {},
          kvDtype,
        );
        const numBlocks = Math.ceil((start + rows) / options.blockSize);
        const blockTable = Array.from({ length: numBlocks }, (_, i) => (i * 7 + 3) % options.numBlocks);
        const values = blockTable.map(() =>
          roundTo(kvDtype, noise(layers * 2 * options.blockSize * kvHeads * headDim)),
        );
        for (const [i, block] of blockTable.entries())
          await executable.importBlock(block, pack(kvDtype, values[i] ?? new Float32Array(0)));
        const qkv = noise(rows * width);
        await executable.write('qkv', qkv);
        await executable.run([{ tokens: new Array<number>(rows).fill(0), start, blockTable }]);
        const at = (plane: number, token: number, kvHead: number, d: number): number =>
          values[Math.floor(token / options.blockSize)]?.[
            (((layer * 2 + plane) * options.blockSize + (token % options.blockSize)) * kvHeads + kvHead) * headDim + d
          ] ?? NaN;
        const expected: number[] = [];
        for (let row = 0; row < rows; row++) {
          for (let head = 0; head < heads; head++) {
            const kvHead = Math.floor(head / (heads / kvHeads));
            const scores = Array.from({ length: start + row + 1 }, (_, token) => {
              let dot = 0;
              for (let d = 0; d < headDim; d++)
                dot += (qkv[row * width + head * headDim + d] ?? 0) * at(0, token, kvHead, d);
              return dot * scale;
            });
            const highest = Math.max(...scores);
            const weights = scores.map((score) => Math.exp(score - highest));
            const sum = weights.reduce((a, b) => a + b, 0);
            for (let d = 0; d < headDim; d++) {
              expected.push(
                weights.reduce((total, weight, token) => total + (weight / sum) * at(1, token, kvHead, d), 0),
              );
            }
          }
        }
        close(await executable.read('out', rows), expected, tolerance);

        const exported = new Uint8Array(executable.blockBytes);
        await executable.exportBlock(blockTable[0] ?? 0, exported);
        assert.deepEqual(
          Buffer.from(exported),
          Buffer.from(pack(kvDtype, values[0] ?? new Float32Array(0))),
          'a block comes out as it went in',
        );
        await executable.close();
      });
    }
  });
}

/** The three operations in one program, as a layer has them: norm, product, attention over what is in the blocks. */
function layerConformance({ name, open, tolerance }: Conformance): void {
  test(`${name}: rms_norm, linear and attention in one program, several sequences in a step`, async () => {
    const [hidden, heads, headDim, blockSize] = [24, 2, 8, options.blockSize];
    const width = 3 * heads * headDim;
    const [norm, weight] = [noise(hidden), noise(width * hidden)];
    const executable = await (
      await open()
    ).load(
      {
        operations: [
          { kind: 'rms_norm', x: 'x', weight: 'norm', out: 'normed', epsilon: 1e-5 },
          { kind: 'linear', x: 'normed', weight: 'w', out: 'qkv', accumulate: false },
          { kind: 'attention', qkv: 'qkv', out: 'out', layer: 0, scale: 0.5 },
        ],
        buffers: {
          x: { rows: 'rows', width: hidden },
          normed: { rows: 'rows', width: hidden },
          qkv: { rows: 'rows', width },
          out: { rows: 'rows', width: heads * headDim },
        },
        weights: {
          norm: { outputs: hidden, inner: 1, parts: [{ tensor: 'norm', outputs: hidden }] },
          w: { outputs: width, inner: hidden, parts: [{ tensor: 'w', outputs: width }] },
        },
        attention: {
          layers: 1,
          heads,
          kvHeads: heads,
          headDim,
          ropeCos: new Float32Array(0),
          ropeSin: new Float32Array(0),
        },
      },
      sourceOf({ norm, w: weight }),
      options,
    );
    const kv = [4, 9].map(() => noise(2 * blockSize * heads * headDim));
    await executable.importBlock(4, pack('f32', kv[0]!));
    await executable.importBlock(9, pack('f32', kv[1]!));
    const segments: Segment[] = [
      { tokens: [0, 0, 0], start: 5, blockTable: [4] },
      { tokens: [0], start: 20, blockTable: [9] },
    ];
    const x = noise(4 * hidden);
    await executable.write('x', x);
    await executable.run(segments);
    const expected: number[] = [];
    [5, 6, 7, 20].forEach((position, row) => {
      const values = x.subarray(row * hidden, (row + 1) * hidden);
      const scale = 1 / Math.sqrt(values.reduce((sum, v) => sum + v * v, 0) / hidden + 1e-5);
      const q = Array.from({ length: heads * headDim }, (_, o) =>
        values.reduce((sum, v, k) => sum + v * scale * norm[k]! * weight[o * hidden + k]!, 0),
      );
      const block = kv[row < 3 ? 0 : 1]!;
      for (let head = 0; head < heads; head++) {
        const at = (plane: number, t: number, d: number): number =>
          block[((plane * blockSize + t) * heads + head) * headDim + d]!;
        const weights = Array.from({ length: position + 1 }, (_, t) =>
          Math.exp(
            0.5 *
              Array.from({ length: headDim }, (_, d) => q[head * headDim + d]! * at(0, t, d)).reduce(
                (a, b) => a + b,
                0,
              ),
          ),
        );
        const sum = weights.reduce((a, b) => a + b, 0);
        for (let d = 0; d < headDim; d++)
          expected.push(weights.reduce((total, w, t) => total + (w / sum) * at(1, t, d), 0));
      }
    });
    close(await executable.read('out', 4), expected, 4 * tolerance);
    await executable.close();
  });
}

/** Values that the type holds exactly, so that only the arithmetic is compared. */
function roundTo(kvDtype: KvDtype, values: Float32Array): Float32Array {
  return kvDtype === 'f32' ? values : values.map((value) => Math.round(value * 256) / 256);
}

function pack(kvDtype: KvDtype, values: Float32Array): Uint8Array {
  if (kvDtype === 'f32') return new Uint8Array(values.buffer.slice(0));
  const halves = Uint16Array.from(values, (value) => {
    if (value === 0) return 0;
    const exponent = Math.floor(Math.log2(Math.abs(value)));
    const mantissa = (Math.abs(value) / 2 ** exponent - 1) * 1_024;
    return (value < 0 ? 0x8000 : 0) | ((exponent + 15) << 10) | mantissa;
  });
  return new Uint8Array(halves.buffer);
}

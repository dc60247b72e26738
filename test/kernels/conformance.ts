/**
 * What every device must do: the equations in f64, at the edges of sizes. A device's own test file names it and how close it
 * must come.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import type {
  Device,
  Executable,
  KvDtype,
  Operation,
  Program,
  SampleRequest,
  Segment,
  WeightSource,
} from '../../kernels/device.ts';
import { roundRows, weightFormats, type WeightFormat } from '../../kernels/weight_format.ts';
import { Random } from '../../shared/base/random.ts';
import { halfValue } from '../support/half.ts';

export interface Conformance {
  readonly name: string;
  /** May give the same device again; the suite closes only what it loads. */
  readonly open: () => Promise<Device>;
  /** Largest error relative to the largest value; f32 sums in another order than the equation. */
  readonly tolerance: number;
  /** Of products, where it is wider: tiles of f16. */
  readonly linearTolerance?: number;
  /** Products with int8 and int4 weights take activations as integers. */
  readonly quantisesActivations?: boolean;
  /** Weights in these formats; all when it does not say. */
  readonly formats?: readonly WeightFormat[];
  /** One of so many shapes of attention. */
  readonly sampled?: number;
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
  maxRows: 160,
  maxSamples: 4,
  maxBlocksPerSequence: 40,
  weightFormat: 'f32' as WeightFormat,
  kvDtype: 'f32' as KvDtype,
  blockSize: 32,
  numBlocks: { min: 40, max: 40 },
};
const numBlocksThere = options.numBlocks.max;

const segments = (numRows: number): Segment[] => [
  { tokens: new Array<number>(numRows).fill(0), start: 0, blockTable: [0, 1, 2, 3, 4] },
];

function close(actual: Float32Array, expected: readonly number[], tolerance: number): void {
  const scale = expected.reduce((highest, value) => Math.max(highest, Math.abs(value)), 1e-9);
  expected.forEach((value, i) => {
    assert(Math.abs((actual[i] ?? NaN) - value) <= tolerance * scale, `[${i}] ${actual[i]} is not ${value}`);
  });
}

export function conformance(device: Conformance): void {
  const { name, open, tolerance, sampled = 1 } = device;
  layerConformance(device);
  const run = async (
    program: Program,
    tensors: Record<string, Float32Array>,
    kvDtype: KvDtype = 'f32',
    weightFormat: WeightFormat = 'f32',
  ): Promise<Executable> => (await open()).load(program, sourceOf(tensors), { ...options, kvDtype, weightFormat });

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

  linearConformance(device);
  tokenConformance(device);
  sampleConformance(device);

  describe(`${name}: attention`, () => {
    const cases = [
      { rows: 1, start: 0, heads: 1, kvHeads: 1, headDim: 4, kvDtype: 'f32' },
      { rows: 1, start: 31, heads: 4, kvHeads: 2, headDim: 64, kvDtype: 'f16' },
      { rows: 1, start: 32, heads: 4, kvHeads: 1, headDim: 12, kvDtype: 'f32' },
      { rows: 33, start: 40, heads: 6, kvHeads: 2, headDim: 12, kvDtype: 'f16' },
      { rows: 2, start: 126, heads: 2, kvHeads: 2, headDim: 128, kvDtype: 'f16' },
      { rows: 1, start: 127, heads: 8, kvHeads: 1, headDim: 64, kvDtype: 'f16' },
      { rows: 1, start: 128, heads: 2, kvHeads: 2, headDim: 8, kvDtype: 'f32' },
      { rows: 1, start: 520, heads: 3, kvHeads: 1, headDim: 64, kvDtype: 'f16' },
      { rows: 1, start: 1_150, heads: 9, kvHeads: 3, headDim: 64, kvDtype: 'f16' },
      { rows: 70, start: 210, heads: 9, kvHeads: 3, headDim: 64, kvDtype: 'f16' },
      { rows: 1, start: 400, heads: 4, kvHeads: 2, headDim: 16, kvDtype: 'f16', window: 100 },
      { rows: 40, start: 230, heads: 2, kvHeads: 1, headDim: 16, kvDtype: 'f32', window: 33 },
      { rows: 3, start: 10, heads: 2, kvHeads: 1, headDim: 16, kvDtype: 'f16', window: 1 },
    ] as readonly AttentionCase[];
    for (const [i, { rows, start, heads, kvHeads, headDim, kvDtype, window = 0 }] of cases.entries()) {
      if (i % sampled !== sampled - 1) continue;
      test(`${rows} rows from ${start}, ${heads}/${kvHeads} heads of ${headDim}, ${kvDtype}, scattered blocks${window ? `, window ${window}` : ''}`, async () => {
        const [width, layers, layer, scale] = [(heads + 2 * kvHeads) * headDim, 2, 1, 1 / Math.sqrt(headDim)];
        const executable = await run(
          {
            operations: [{ kind: 'attention', qkv: 'qkv', out: 'out', layer, scale, ...(window ? { window } : {}) }],
            buffers: { qkv: { rows: 'rows', width }, out: { rows: 'rows', width: heads * headDim } },
            weights: {},
            attention: { layers, heads, kvHeads, headDim, ropeCos: new Float32Array(0), ropeSin: new Float32Array(0) },
          },
          {},
          kvDtype,
        );
        const numBlocks = Math.ceil((start + rows) / options.blockSize);
        const blockTable = Array.from({ length: numBlocks }, (_, i) => (i * 7 + 3) % numBlocksThere);
        const values = blockTable.map(() =>
          roundTo(kvDtype, noise(layers * 2 * options.blockSize * kvHeads * headDim)),
        );
        await executable.importBlocks(
          blockTable,
          values.map((one) => pack(kvDtype, one)),
        );
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
              return window > 0 && token + window <= start + row ? -Infinity : dot * scale;
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

        const exported = blockTable.map(() => new Uint8Array(executable.blockBytes));
        await executable.exportBlocks(blockTable, exported);
        assert.deepEqual(
          exported.map((bytes) => Buffer.from(bytes).toString('hex')),
          values.map((one) => Buffer.from(pack(kvDtype, one)).toString('hex')),
          'blocks come out as they went in',
        );
        await executable.close();
      });
    }
  });
}

interface AttentionCase {
  readonly rows: number;
  readonly start: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly kvDtype: KvDtype;
  readonly window?: number;
}

/** x · weightᵀ in f64, of the values that the format keeps. */
function product(x: Float32Array, weight: Float32Array, inner: number): number[] {
  const [rows, outputs] = [x.length / inner, weight.length / inner];
  return Array.from({ length: rows * outputs }, (_, i) => {
    const [row, output] = [Math.floor(i / outputs), i % outputs];
    let sum = 0;
    for (let k = 0; k < inner; k++) sum += x[row * inner + k]! * weight[output * inner + k]!;
    return sum;
  });
}

/** What a device that quantises activations multiplies: per row and group of 32, q · (max |x| / 127), computed in f32. */
function quantised(x: Float32Array, inner: number): Float32Array {
  const { fround } = Math;
  const values = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += inner) {
    for (let k = 0; k < inner; k += 32) {
      const group = x.subarray(start + k, start + Math.min(inner, k + 32));
      const largest = group.reduce((highest, value) => Math.max(highest, Math.abs(value)), 0);
      const [scale, inverse] = [fround(largest / 127), largest > 0 ? fround(127 / largest) : 0];
      for (let i = 0; i < group.length; i++) values[start + k + i] = toNearestEven(fround(group[i]! * inverse)) * scale;
    }
  }
  return values;
}

function toNearestEven(value: number): number {
  const floor = Math.floor(value);
  if (value - floor !== 0.5) return Math.round(value);
  return floor % 2 === 0 ? floor : floor + 1;
}

const isInteger = (format: WeightFormat): boolean => format === 'int8' || format === 'int4';

/** Of weights alone: products of every format, and rows of the embedding. */
export function weightConformance(device: Conformance): void {
  linearConformance(device);
  tokenConformance(device);
}

function linearConformance({
  name,
  open,
  tolerance,
  linearTolerance = tolerance,
  quantisesActivations = false,
  formats = weightFormats,
}: Conformance): void {
  describe(`${name}: linear`, () => {
    const shapes = [
      [1, 4, 8],
      [1, 100, 333],
      [2, 257, 31],
      [5, 63, 9],
      [4, 64, 64],
      [7, 129, 17],
      [9, 64, 66],
      [16, 96, 5],
      [17, 33, 70],
      [64, 32, 64],
      [65, 160, 65],
      [130, 31, 63],
      [11, 1_100, 24],
    ] as const;
    for (const format of formats) {
      for (const [i, [rows, inner, outputs]] of shapes.entries()) {
        const accumulate = i % 2 === 1;
        test(`${format} [${rows}, ${inner}] · [${outputs}, ${inner}]ᵀ + bias${accumulate ? ', added to what is there' : ''}`, async () => {
          const [x, weight, bias, before] = [
            noise(rows * inner),
            noise(outputs * inner),
            noise(outputs),
            noise(rows * outputs),
          ];
          const executable = await (
            await open()
          ).load(
            {
              operations: [{ kind: 'linear', x: 'x', weight: 'w', bias: 'b', out: 'out', accumulate }],
              buffers: { x: { rows: 'rows', width: inner }, out: { rows: 'rows', width: outputs } },
              weights: {
                w: { outputs, inner, parts: [{ tensor: 'w', outputs }] },
                b: { outputs, inner: 1, parts: [{ tensor: 'b', outputs }] },
              },
            },
            sourceOf({ w: weight, b: bias }),
            { ...options, weightFormat: format },
          );
          await executable.write('x', x);
          await executable.write('out', before);
          await executable.run(segments(rows));
          const kept = weight.slice();
          roundRows(format, kept, inner);
          const multiplied = quantisesActivations && isInteger(format) ? quantised(x, inner) : x;
          const expected = product(multiplied, kept, inner).map(
            (sum, at) => sum + bias[at % outputs]! + (accumulate ? before[at]! : 0),
          );
          close(await executable.read('out', rows), expected, linearTolerance);
          await executable.close();
        });
      }
    }

    for (const [format, rows, hidden, inner] of [
      ['f32', 1, 65, 34],
      ['f16', 1, 64, 33],
      ['int8', 3, 96, 40],
      ['int4', 1, 100, 17],
      ['int4', 33, 64, 70],
      ['f16', 70, 40, 130],
    ] as const) {
      test(`${format} norm, gate and up, silu, product of ${rows} rows: [${hidden}] to [${inner}]`, async () => {
        const tensors = {
          norm: noise(hidden),
          gate: noise(inner * hidden),
          up: noise(inner * hidden),
          bias: noise(2 * inner),
        };
        const executable = await (
          await open()
        ).load(
          {
            operations: [
              { kind: 'rms_norm', x: 'x', weight: 'norm', out: 'normed', epsilon: 1e-5 },
              { kind: 'linear', x: 'normed', weight: 'w', bias: 'b', out: 'gate_up', accumulate: false },
              { kind: 'silu_mul', gateUp: 'gate_up', out: 'out', inner },
            ],
            buffers: {
              x: { rows: 'rows', width: hidden },
              normed: { rows: 'rows', width: hidden },
              gate_up: { rows: 'rows', width: 2 * inner },
              out: { rows: 'rows', width: inner },
            },
            weights: {
              norm: { outputs: hidden, inner: 1, parts: [{ tensor: 'norm', outputs: hidden }] },
              w: {
                outputs: 2 * inner,
                inner: hidden,
                parts: [
                  { tensor: 'gate', outputs: inner },
                  { tensor: 'up', outputs: inner },
                ],
              },
              b: { outputs: 2 * inner, inner: 1, parts: [{ tensor: 'bias', outputs: 2 * inner }] },
            },
          },
          sourceOf(tensors),
          { ...options, weightFormat: format },
        );
        const x = noise(rows * hidden);
        await executable.write('x', x);
        await executable.run(segments(rows));
        const normed = x.map((value, i) => {
          const row = x.subarray(i - (i % hidden), i - (i % hidden) + hidden);
          const meanSquare = row.reduce((sum, v) => sum + v * v, 0) / hidden;
          return (tensors.norm[i % hidden]! * value) / Math.sqrt(meanSquare + 1e-5);
        });
        for (const weight of [tensors.gate, tensors.up]) roundRows(format, weight, hidden);
        const areQuantised = quantisesActivations && isInteger(format);
        const multiplied = areQuantised ? quantised(normed, hidden) : normed;
        const [gates, ups] = [product(multiplied, tensors.gate, hidden), product(multiplied, tensors.up, hidden)];
        const expected = gates.map((value, i) => {
          const gate = value + tensors.bias[i % inner]!;
          return (gate / (1 + Math.exp(-gate))) * (ups[i]! + tensors.bias[inner + (i % inner)]!);
        });
        // Where a norm's last bit differs from the equation's, an integer may be the next one.
        close(await executable.read('out', rows), expected, areQuantised ? 1e-2 : 4 * linearTolerance);
        await executable.close();
      });
    }
  });

  for (const [rows, inner] of [
    [1, 1],
    [3, 63],
    [70, 65],
  ] as const) {
    test(`${name}: silu_mul alone [${rows}, ${inner}]`, async () => {
      const executable = await (
        await open()
      ).load(
        {
          operations: [{ kind: 'silu_mul', gateUp: 'gate_up', out: 'out', inner }],
          buffers: { gate_up: { rows: 'rows', width: 2 * inner }, out: { rows: 'rows', width: inner } },
          weights: {},
        },
        sourceOf({}),
        options,
      );
      const gateUp = noise(rows * 2 * inner).map((value) => 8 * value);
      await executable.write('gate_up', gateUp);
      await executable.run(segments(rows));
      const expected = Array.from({ length: rows * inner }, (_, i) => {
        const at = Math.floor(i / inner) * 2 * inner + (i % inner);
        return (gateUp[at]! / (1 + Math.exp(-gateUp[at]!))) * gateUp[at + inner]!;
      });
      close(await executable.read('out', rows), expected, tolerance);
      await executable.close();
    });
  }
}

/** What reads tokens, positions and slots. */
function tokenConformance({ name, open, tolerance, formats = weightFormats }: Conformance): void {
  for (const format of formats) {
    test(`${name}: embed gives the token's row in ${format}, the last token's too`, async () => {
      const [vocab, hidden] = [77, 50];
      const table = noise(vocab * hidden);
      const executable = await (
        await open()
      ).load(
        {
          operations: [{ kind: 'embed', table: 'w', out: 'out' }],
          buffers: { out: { rows: 'rows', width: hidden } },
          weights: { w: { outputs: vocab, inner: hidden, parts: [{ tensor: 'w', outputs: vocab }] } },
        },
        sourceOf({ w: table }),
        { ...options, weightFormat: format },
      );
      const tokens = [0, 76, 1, 40, 40];
      await executable.run([
        { tokens: tokens.slice(0, 3), start: 0, blockTable: [0] },
        { tokens: tokens.slice(3), start: 7, blockTable: [1] },
      ]);
      roundRows(format, table, hidden);
      const expected = tokens.flatMap((token) => [...table.subarray(token * hidden, (token + 1) * hidden)]);
      close(await executable.read('out', tokens.length), expected, 1e-7);
      await executable.close();
    });
  }

  for (const [headDim, heads, kvHeads, kvDtype] of [
    [4, 2, 1, 'f32'],
    [12, 3, 3, 'f16'],
    [64, 4, 2, 'f16'],
  ] as const) {
    test(`${name}: rope_store rotates heads of ${headDim} and stores k and v in ${kvDtype} at their slots`, async () => {
      const [half, width, layers, layer] = [headDim / 2, (heads + 2 * kvHeads) * headDim, 2, 1];
      const [ropeCos, ropeSin] = [noise(300 * half), noise(300 * half)];
      const executable = await (
        await open()
      ).load(
        {
          operations: [{ kind: 'rope_store', qkv: 'qkv', layer }],
          buffers: { qkv: { rows: 'rows', width } },
          weights: {},
          attention: { layers, heads, kvHeads, headDim, ropeCos, ropeSin },
        },
        sourceOf({}),
        { ...options, kvDtype },
      );
      const batch: Segment[] = [
        { tokens: [0, 0, 0], start: 30, blockTable: [7, 2] },
        { tokens: [0], start: 64, blockTable: [1, 3, 11] },
      ];
      const positions = [30, 31, 32, 64];
      const qkv = noise(4 * width);
      await executable.write('qkv', qkv);
      await executable.run(batch);
      const rotated = [...qkv];
      positions.forEach((position, row) => {
        for (let head = 0; head < heads + kvHeads; head++) {
          for (let i = 0; i < half; i++) {
            const at = row * width + head * headDim + i;
            const [c, s] = [ropeCos[position * half + i]!, ropeSin[position * half + i]!];
            const [low, high] = [qkv[at]!, qkv[at + half]!];
            rotated[at] = low * c - high * s;
            rotated[at + half] = high * c + low * s;
          }
        }
      });
      close(await executable.read('qkv', 4), rotated, tolerance);
      const blockOf = [7, 7, 2, 11];
      const blocks = [7, 2, 11].map(() => new Uint8Array(executable.blockBytes));
      await executable.exportBlocks([7, 2, 11], blocks);
      positions.forEach((position, row) => {
        const bytes = blocks[[7, 2, 11].indexOf(blockOf[row]!)]!;
        for (const plane of [0, 1]) {
          const kvWidth = kvHeads * headDim;
          const from = ((layer * 2 + plane) * options.blockSize + (position % options.blockSize)) * kvWidth;
          const values = unpack(kvDtype, bytes).subarray(from, from + kvWidth);
          const want = rotated.slice(row * width + (heads + plane * kvHeads) * headDim).slice(0, kvWidth);
          close(values, want, kvDtype === 'f16' ? 2 ** -11 : tolerance);
        }
      });
      await executable.close();
    });
  }
}

/** What reads samples. */
function sampleConformance({ name, open, tolerance }: Conformance): void {
  const load = async (vocab: number): Promise<Executable> =>
    (await open()).load(
      {
        operations: [
          { kind: 'gather_samples', x: 'x', out: 'logits' },
          { kind: 'candidates', logits: 'logits', vocab },
        ] satisfies Operation[],
        buffers: { x: { rows: 'rows', width: vocab }, logits: { rows: 'samples', width: vocab } },
        weights: {},
      },
      sourceOf({}),
      { ...options, maxRows: 8 },
    );
  const request = (numCandidates: number, askedTokens: number[] = [], isFullRowWanted = false): SampleRequest => ({
    numCandidates,
    askedTokens,
    isFullRowWanted,
  });

  for (const vocab of [5, 128, 2_047, 2_049, 5_000]) {
    test(`${name}: candidates of ${vocab} logits are the best in order, ties to the smaller id, with the log-sum-exp`, async () => {
      const executable = await load(vocab);
      // Quarters, so that ties are many.
      const x = noise(3 * vocab).map((value) => Math.round(value * 20) / 4);
      await executable.write('x', x);
      const wanted = [
        request(1),
        request(Math.min(vocab, 128), [vocab - 1, 0]),
        request(Math.min(vocab, 20), [1], true),
      ];
      const results = await executable.run(
        wanted.map((sample, i) => ({ tokens: [0], start: i, blockTable: [i], sample })),
      );
      assert.equal(results.length, 3);
      results.forEach((result, row) => {
        const logits = x.subarray(row * vocab, (row + 1) * vocab);
        const order = Array.from(logits.keys()).sort((a, b) => logits[b]! - logits[a]! || a - b);
        const { numCandidates, askedTokens, isFullRowWanted } = wanted[row]!;
        assert.deepEqual([...result.candidateIds], order.slice(0, numCandidates));
        assert.deepEqual(
          [...result.candidateLogits],
          order.slice(0, numCandidates).map((id) => logits[id]),
        );
        assert.deepEqual(
          [...result.askedLogits],
          askedTokens.map((id) => logits[id]),
        );
        assert.deepEqual(result.fullRow && [...result.fullRow], isFullRowWanted ? [...logits] : undefined);
        const highest = logits[order[0]!]!;
        const sum = highest + Math.log(logits.reduce((total, value) => total + Math.exp(value - highest), 0));
        close(Float32Array.of(result.logSumExp), [sum], 4 * tolerance);
      });
      await executable.close();
    });
  }

  test(`${name}: samples are the last rows of those segments that ask`, async () => {
    const executable = await load(40);
    const x = new Float32Array(6 * 40);
    for (let row = 0; row < 6; row++) x[row * 40 + row] = 1;
    await executable.write('x', x);
    const results = await executable.run([
      { tokens: [0, 0], start: 0, blockTable: [0], sample: request(1) },
      { tokens: [0, 0, 0], start: 0, blockTable: [1] },
      { tokens: [0], start: 0, blockTable: [2], sample: request(1) },
    ]);
    assert.deepEqual(
      results.map(({ candidateIds }) => [...candidateIds]),
      [[1], [5]],
    );
    await executable.close();
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
    await executable.importBlocks(
      [4, 9],
      kv.map((one) => pack('f32', one)),
    );
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

function unpack(kvDtype: KvDtype, bytes: Uint8Array): Float32Array {
  if (kvDtype === 'f32') return new Float32Array(bytes.buffer.slice(0));
  return Float32Array.from(new Uint16Array(bytes.buffer.slice(0)), halfValue);
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

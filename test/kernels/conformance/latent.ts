/** The operations of latent attention against their equations in f64. */
import type { Segment } from '../../../kernels/device.ts';
import type { KvDtype } from '../../../kernels/program.ts';
import { isInteger, roundRows, weightFormats } from '../../../kernels/weights/weight_format.ts';
import { product, quantised } from './linear.ts';
import {
  casesOf,
  close,
  loaded,
  noise,
  numBlocksThere,
  options,
  pack,
  roundTo,
  segments,
  unpack,
  type Conformance,
} from './suite.ts';

/** Tests the three operations of latent attention. */
export function latentConformance(device: Conformance): void {
  headLinearConformance(device);
  latentStoreConformance(device);
  latentAttentionConformance(device);
}

function headLinearConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance, quantisesActivations = false, formats = weightFormats } = device;
  const cases = [
    // Heads whose inputs or outputs are part of what lies in a row; outputs that fill no whole panels.
    { rows: 1, heads: 4, inner: 16, outputs: 24, xHead: 24, outHead: 32 },
    { rows: 3, heads: 3, inner: 24, outputs: 20, xHead: 24, outHead: 20 },
    { rows: 70, heads: 3, inner: 96, outputs: 160, xHead: 128, outHead: 192 },
    { rows: 1, heads: 20, inner: 512, outputs: 64, xHead: 512, outHead: 64 },
    { rows: 9, heads: 2, inner: 40, outputs: 76, xHead: 48, outHead: 80 },
  ] as const;
  for (const format of formats) {
    for (const { rows, heads, inner, outputs, xHead, outHead } of cases) {
      test(`${name}: ${rows} rows, products of ${heads} heads from ${inner} of ${xHead} to ${outputs} of ${outHead} in ${format}`, async () => {
        const [x, weight, before] = [
          noise(rows * heads * xHead),
          noise(heads * outputs * inner),
          noise(rows * heads * outHead),
        ];
        const executable = await loaded(
          device,
          {
            operations: [{ kind: 'head_linear', x: 'x', weight: 'w', out: 'out', heads, xHead, outHead }],
            buffers: { x: { rows: 'rows', width: heads * xHead }, out: { rows: 'rows', width: heads * outHead } },
            weights: {
              w: {
                outputs: heads * outputs,
                inner,
                expertOutputs: outputs,
                // A part for each head, as a model has them.
                parts: Array.from({ length: heads }, (_, head) => ({ tensor: `w${head}`, outputs })),
              },
            },
          },
          Object.fromEntries(
            Array.from({ length: heads }, (_, head) => [
              `w${head}`,
              weight.subarray(head * outputs * inner, (head + 1) * outputs * inner),
            ]),
          ),
          { weightFormat: format },
        );
        await executable.write('x', x);
        await executable.write('out', before);
        await executable.run(segments(rows));
        roundRows(format, weight, inner);
        const isQuantised = quantisesActivations && isInteger(format);
        // Values between the outputs of two heads stay.
        const expected = [...before];
        for (let row = 0; row < rows; row++) {
          for (let head = 0; head < heads; head++) {
            const from = x.slice((row * heads + head) * xHead).subarray(0, inner);
            const own = weight.subarray(head * outputs * inner, (head + 1) * outputs * inner);
            const made = product(isQuantised ? quantised(from, inner) : from, own, inner);
            made.forEach((value, output) => (expected[(row * heads + head) * outHead + output] = value));
          }
        }
        close(await executable.read('out', rows), expected, tolerance);
        await executable.close();
      });
    }
  }
}

function latentStoreConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  for (const [heads, rank, rotary, qHead, kvDtype, isInterleaved, width] of [
    [4, 24, 8, 24, 'f32', true, 32],
    [4, 24, 8, 24, 'f16', false, 32],
    [3, 512, 64, 192, 'f16', true, 576],
    [128, 64, 16, 32, 'f32', false, 80],
    [5, 36, 12, 16, 'f16', true, 52],
    [5, 36, 12, 16, 'f32', false, 48],
  ] as const) {
    const pairs = isInterleaved ? 'neighbours' : 'halves';
    test(`${name}: latent_store norms ${rank} values, rotates ${rotary} of ${heads} heads in ${pairs}, and stores in ${kvDtype}`, async () => {
      const [layers, layer, half] = [2, 1, rotary / 2];
      const [cos, sin, weight] = [noise(300 * half), noise(300 * half), noise(rank)];
      const outHead = rank + rotary;
      const executable = await loaded(
        device,
        {
          operations: [
            {
              kind: 'latent_store',
              latent: 'latent',
              q: 'q',
              out: 'query',
              layer,
              weight: 'norm',
              rope: 'table',
              epsilon: 1e-6,
              qHead,
              isInterleaved,
              heads,
              rank,
              rotary,
            },
          ],
          buffers: {
            latent: { rows: 'rows', width: rank + rotary },
            q: { rows: 'rows', width: heads * qHead },
            query: { rows: 'rows', width: heads * outHead },
          },
          weights: { norm: { outputs: rank, inner: 1, parts: [{ tensor: 'norm', outputs: rank }] } },
          kv: Array.from({ length: layers }, () => ({ planes: [width] })),
          rope: { table: { dim: rotary, cos, sin } },
        },
        { norm: weight },
        { kvDtype },
      );
      const batch: Segment[] = [
        { tokens: [0, 0, 0], start: 30, blockTable: [7, 2] },
        { tokens: [0], start: 64, blockTable: [1, 3, 11] },
      ];
      const [positions, blockOf] = [
        [30, 31, 32, 64],
        [7, 7, 2, 11],
      ];
      const [latent, q, before] = [noise(4 * (rank + rotary)), noise(4 * heads * qHead), noise(4 * heads * outHead)];
      await executable.write('latent', latent);
      await executable.write('q', q);
      await executable.write('query', before);
      await executable.run(batch);
      const rotated = (values: Float32Array, position: number): number[] => {
        const low = (i: number): number => values[isInterleaved ? 2 * i : i]!;
        const high = (i: number): number => values[isInterleaved ? 2 * i + 1 : half + i]!;
        const [c, s] = [(i: number) => cos[position * half + i]!, (i: number) => sin[position * half + i]!];
        const indices = Array.from({ length: half }, (_, i) => i);
        return [
          ...indices.map((i) => low(i) * c(i) - high(i) * s(i)),
          ...indices.map((i) => high(i) * c(i) + low(i) * s(i)),
        ];
      };
      const wanted = [...before];
      positions.forEach((position, row) => {
        for (let head = 0; head < heads; head++) {
          const own = q.slice((row * heads + head) * qHead).subarray(qHead - rotary, qHead);
          rotated(own, position).forEach((value, i) => {
            wanted[(row * heads + head) * outHead + rank + i] = value;
          });
        }
      });
      close(await executable.read('query', 4), wanted, tolerance);
      const blocks = blockOf.map(() => new Uint8Array(executable.blockBytes));
      await executable.exportBlocks(blockOf, blocks);
      positions.forEach((position, row) => {
        const own = latent.slice(row * (rank + rotary), (row + 1) * (rank + rotary));
        const scale = 1 / Math.sqrt(own.subarray(0, rank).reduce((sum, v) => sum + v * v, 0) / rank + 1e-6);
        const normed = [...own.subarray(0, rank)].map((value, i) => value * scale * weight[i]!);
        const at = (layer * options.blockSize + (position % options.blockSize)) * width;
        const stored = unpack(kvDtype, blocks[row]!).subarray(at, at + rank + rotary);
        close(stored, [...normed, ...rotated(own.subarray(rank), position)], kvDtype === 'f16' ? 2 ** -11 : tolerance);
      });
      await executable.close();
    });
  }
}

interface LatentCase {
  readonly rows: number;
  readonly start: number;
  readonly heads: number;
  readonly rank: number;
  readonly rotary: number;
  readonly kvDtype: KvDtype;
  /** Values of a token in the plane; rank + rotary when it does not say. */
  readonly width?: number;
}

function latentAttentionConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance, sampled = 1 } = device;
  const cases: readonly LatentCase[] = [
    { rows: 1, start: 0, heads: 1, rank: 4, rotary: 4, kvDtype: 'f32' },
    { rows: 1, start: 31, heads: 4, rank: 24, rotary: 8, kvDtype: 'f16' },
    { rows: 33, start: 40, heads: 4, rank: 24, rotary: 8, kvDtype: 'f32' },
    { rows: 2, start: 126, heads: 5, rank: 36, rotary: 12, kvDtype: 'f16', width: 52 },
    { rows: 1, start: 520, heads: 20, rank: 512, rotary: 64, kvDtype: 'f16' },
    { rows: 1, start: 150, heads: 128, rank: 512, rotary: 64, kvDtype: 'f32' },
    { rows: 70, start: 210, heads: 16, rank: 128, rotary: 32, kvDtype: 'f16' },
    { rows: 17, start: 128, heads: 18, rank: 64, rotary: 16, kvDtype: 'f32' },
    { rows: 3, start: 1_100, heads: 2, rank: 40, rotary: 8, kvDtype: 'f16' },
  ];
  for (const [i, one] of cases.entries()) {
    const { rows, start, heads, rank, rotary, kvDtype, width = rank + rotary } = one;
    if (sampled > 1 && i % 3 !== 2) continue;
    test(`${name}: latent attention of ${rows} rows from ${start}, ${heads} heads, ${rank} + ${rotary} values of ${width}, ${kvDtype}`, async () => {
      const [layers, layer, key, scale] = [2, 1, rank + rotary, 1 / Math.sqrt(rank + rotary)];
      const executable = await loaded(
        device,
        {
          operations: [{ kind: 'latent_attention', query: 'query', out: 'out', layer, scale, heads, rank, rotary }],
          buffers: { query: { rows: 'rows', width: heads * key }, out: { rows: 'rows', width: heads * rank } },
          kv: Array.from({ length: layers }, () => ({ planes: [width] })),
        },
        {},
        { kvDtype },
      );
      const numBlocks = Math.ceil((start + rows) / options.blockSize);
      const blockTable = Array.from({ length: numBlocks }, (_, i) => (i * 7 + 3) % numBlocksThere);
      const values = blockTable.map(() => roundTo(kvDtype, noise(layers * options.blockSize * width)));
      await executable.importBlocks(
        blockTable,
        values.map((one) => pack(kvDtype, one)),
      );
      const query = noise(rows * heads * key).map((value) => 2 * value);
      await executable.write('query', query);
      await executable.run([{ tokens: new Array<number>(rows).fill(0), start, blockTable }]);
      const { blockSize } = options;
      const tokenAt = (token: number): Float32Array =>
        values[Math.floor(token / blockSize)]!.subarray((layer * blockSize + (token % blockSize)) * width);
      const expected: number[] = [];
      for (let row = 0; row < rows; row++) {
        for (let head = 0; head < heads; head++) {
          const q = query.subarray((row * heads + head) * key, (row * heads + head + 1) * key);
          const scores = Array.from({ length: start + row + 1 }, (_, token) => {
            const stored = tokenAt(token);
            let dot = 0;
            for (let d = 0; d < key; d++) dot += q[d]! * stored[d]!;
            return dot * scale;
          });
          const highest = Math.max(...scores);
          const weights = scores.map((score) => Math.exp(score - highest));
          const sum = weights.reduce((a, b) => a + b, 0);
          const out = new Float64Array(rank);
          weights.forEach((weight, token) => {
            const stored = tokenAt(token);
            for (let d = 0; d < rank; d++) out[d]! += (weight / sum) * stored[d]!;
          });
          expected.push(...out);
        }
      }
      close(await executable.read('out', rows), expected, 2 * tolerance);
      await executable.close();
    });
  }
}

import type { Operation } from '../../../kernels/program.ts';
import { casesOf, close, loaded, noise, segments, type Conformance } from './suite.ts';

export function rmsNormConformance(device: Conformance): void {
  const { describe, test } = casesOf(device);
  const { name, tolerance } = device;
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
        const executable = await loaded(
          device,
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
    for (const more of [{}, { scalar: 's' }]) {
      const what = `what is there${'scalar' in more ? ', and all of it times a scalar' : ''}`;
      test(`what is stored less one has it added, and a norm is added to ${what}`, async () => {
        const [rows, hidden, scalar] = [3, 70, -0.75];
        const [x, weight, before] = [noise(rows * hidden), noise(hidden), noise(rows * hidden)];
        const executable = await loaded(
          device,
          {
            operations: [
              { kind: 'rms_norm', x: 'x', weight: 'w', out: 'out', epsilon: 1e-5, accumulate: true, ...more },
            ],
            buffers: { x: { rows: 'rows', width: hidden }, out: { rows: 'rows', width: hidden } },
            weights: {
              w: { outputs: hidden, inner: 1, parts: [{ tensor: 'w', outputs: hidden }], offset: 1 },
              s: { outputs: 1, inner: 1, parts: [{ tensor: 's', outputs: 1 }] },
            },
          },
          { w: weight, s: Float32Array.of(scalar) },
        );
        await executable.write('x', x);
        await executable.write('out', before);
        await executable.run(segments(rows));
        const expected = Array.from({ length: rows }, (_, row) => {
          const normed = normalised([...x.subarray(row * hidden, (row + 1) * hidden)], weight, 1);
          const factor = 'scalar' in more ? scalar : 1;
          return normed.map((value, i) => (value + before[row * hidden + i]!) * factor);
        }).flat();
        close(await executable.read('out', rows), expected, tolerance);
        await executable.close();
      });
    }
  });
}

const EPSILON = 1e-5;

function normalised(values: readonly number[], weight: Float32Array, offset = 0): number[] {
  const meanSquare = values.reduce((sum, value) => sum + value * value, 0) / values.length;
  return values.map((value, i) => ((weight[i]! + offset) * value) / Math.sqrt(meanSquare + EPSILON));
}

export function qkNormConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  for (const [span, headDim, heads, kvHeads, more] of [
    ['head', 4, 3, 1],
    ['head', 128, 2, 2],
    ['head', 12, 6, 2],
    ['all', 20, 3, 1],
    ['all', 64, 10, 5],
    ['head', 16, 4, 2, { hasValueNorm: true }],
    ['head', 512, 2, 1, { hasValueNorm: true, keys: 'computed' }],
    ['head', 256, 3, 0],
  ] as readonly (readonly [
    ...['head' | 'all', number, number, number],
    ({ readonly hasValueNorm: true; readonly keys?: 'computed' } | undefined)?,
  ])[]) {
    const what = more?.keys ? ' and of v, without k' : more ? ' and of v' : '';
    test(`${name}: qk_norm of ${span}, ${heads}/${kvHeads} heads of ${headDim}${what}`, async () => {
      const [rows, width] = [5, (heads + 2 * kvHeads) * headDim];
      const [q, k] = span === 'head' ? [headDim, headDim] : [heads * headDim, kvHeads * headDim];
      const [qkv, qWeight, kWeight] = [noise(rows * width), noise(q), noise(k)];
      const op: Operation = {
        kind: 'qk_norm',
        qkv: 'qkv',
        weight: 'w',
        epsilon: EPSILON,
        span,
        heads,
        kvHeads,
        headDim,
        ...more,
      };
      const parts = [
        { tensor: 'q', outputs: q },
        { tensor: 'k', outputs: k },
      ];
      const executable = await loaded(
        device,
        {
          operations: [op],
          buffers: { qkv: { rows: 'rows', width } },
          weights: { w: { outputs: q + k, inner: 1, parts } },
        },
        { q: qWeight, k: kWeight },
      );
      await executable.write('qkv', qkv);
      await executable.run(segments(rows));
      const expected = [...qkv];
      for (let row = 0; row < rows; row++) {
        const put = (at: number, length: number, weight: Float32Array): void => {
          const start = row * width + at;
          expected.splice(start, length, ...normalised([...qkv.subarray(start, start + length)], weight));
        };
        for (let at = 0; at < heads * headDim; at += q) put(at, q, qWeight);
        const kEnd = (heads + (more?.keys ? 0 : kvHeads)) * headDim;
        for (let at = heads * headDim; at < kEnd; at += k) put(at, k, kWeight);
        const vEnd = more ? kEnd + kvHeads * headDim : kEnd;
        for (let at = kEnd; at < vEnd; at += headDim) put(at, headDim, new Float32Array(headDim).fill(1));
      }
      close(await executable.read('qkv', rows), expected, tolerance);
      await executable.close();
    });
  }
}

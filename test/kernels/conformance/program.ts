import type { Segment } from '../../../kernels/device.ts';
import { casesOf, close, keysAndValues, loaded, noise, options, pack, type Conformance } from './suite.ts';

/** The three operations in one program, as a layer has them: norm, product, attention over what is in the blocks. */
export function layerConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  test(`${name}: rms_norm, linear and attention in one program, several sequences in a step`, async () => {
    const [hidden, heads, headDim, blockSize] = [24, 2, 8, options.blockSize];
    const width = 3 * heads * headDim;
    const [norm, weight] = [noise(hidden), noise(width * hidden)];
    const executable = await loaded(
      device,
      {
        operations: [
          { kind: 'rms_norm', x: 'x', weight: 'norm', out: 'normed', epsilon: 1e-5 },
          { kind: 'linear', x: 'normed', weight: 'w', out: 'qkv', accumulate: false },
          { kind: 'attention', qkv: 'qkv', out: 'out', layer: 0, scale: 0.5, heads, kvHeads: heads, headDim },
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
        kv: keysAndValues(1, heads, headDim),
      },
      { norm, w: weight },
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

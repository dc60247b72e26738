import { describe, test } from 'vitest';
import { close, loaded, noise, segments, type Conformance } from './suite.ts';

export function rmsNormConformance(device: Conformance): void {
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
  });
}

import type { Gate } from '../../../kernels/program.ts';
import { casesOf, close, loaded, noise, segments, type Conformance } from './suite.ts';

export const gates: Readonly<Record<Gate['kind'], (x: number) => number>> = {
  silu_mul: (x) => x / (1 + Math.exp(-x)),
  gelu_mul: (x) => (x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)))) / 2,
};

export function gateConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  for (const kind of ['silu_mul', 'gelu_mul'] as const) {
    for (const [rows, inner] of [
      [1, 1],
      [3, 63],
      [70, 65],
    ] as const) {
      test(`${name}: ${kind} alone [${rows}, ${inner}]`, async () => {
        const executable = await loaded(device, {
          operations: [{ kind, gateUp: 'gate_up', out: 'out', inner }],
          buffers: { gate_up: { rows: 'rows', width: 2 * inner }, out: { rows: 'rows', width: inner } },
        });
        const gateUp = noise(rows * 2 * inner).map((value) => 8 * value);
        await executable.write('gate_up', gateUp);
        await executable.run(segments(rows));
        const expected = Array.from({ length: rows * inner }, (_, i) => {
          const at = Math.floor(i / inner) * 2 * inner + (i % inner);
          return gates[kind](gateUp[at]!) * gateUp[at + inner]!;
        });
        close(await executable.read('out', rows), expected, tolerance);
        await executable.close();
      });
    }
  }
}

export function softCapConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  for (const [rows, width, cap] of [
    [1, 1, 30],
    [3, 63, 2],
    [4, 1_300, 0.25],
  ] as const) {
    test(`${name}: soft_cap ${cap} of [${rows}, ${width}]`, async () => {
      const executable = await loaded(device, {
        operations: [{ kind: 'soft_cap', x: 'x', cap }],
        buffers: { x: { rows: 'rows', width } },
      });
      // Some inputs lie far beyond the point where e^2z is infinite.
      const x = noise(rows * width).map((value, i) => value * (i % 5 === 0 ? 1e4 : 3));
      await executable.write('x', x);
      await executable.run(segments(rows));
      const expected = Array.from(x, (value) => cap * Math.tanh(value / cap));
      close(await executable.read('x', rows), expected, tolerance);
      await executable.close();
    });
  }
}

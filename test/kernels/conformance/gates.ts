import type { Gate } from '../../../kernels/program.ts';
import { casesOf, close, loaded, noise, segments, type Conformance } from './suite.ts';

/** Alpha and limit of the clamped gate; gates beyond the limit occur. */
const clamped = { alpha: 1.702, limit: 1.5 };

/** Fields of the operations of each gate besides its buffers. */
const gateFields = { silu_mul: {}, gelu_mul: {}, clamped_swiglu: clamped, mul: {} } as const;

export const gates: Readonly<Record<Gate['kind'], (gate: number, up: number) => number>> = {
  silu_mul: (x, up) => (x / (1 + Math.exp(-x))) * up,
  gelu_mul: (x, up) => ((x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)))) / 2) * up,
  clamped_swiglu: (x, up) => {
    const gate = Math.min(x, clamped.limit);
    return ((Math.max(-clamped.limit, Math.min(up, clamped.limit)) + 1) * gate) / (1 + Math.exp(-clamped.alpha * gate));
  },
  mul: (x, up) => x * up,
};

/** Returns an operation of the gate. */
export function gateOf(kind: Gate['kind'], gateUp: string, out: string, inner: number): Gate {
  return { kind, gateUp, out, inner, ...gateFields[kind] } as Gate;
}

export function gateConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  for (const kind of ['silu_mul', 'gelu_mul', 'clamped_swiglu', 'mul'] as const) {
    for (const [rows, inner] of [
      [1, 1],
      [3, 63],
      [70, 65],
    ] as const) {
      test(`${name}: ${kind} alone [${rows}, ${inner}]`, async () => {
        const executable = await loaded(device, {
          operations: [gateOf(kind, 'gate_up', 'out', inner)],
          buffers: { gate_up: { rows: 'rows', width: 2 * inner }, out: { rows: 'rows', width: inner } },
        });
        const gateUp = noise(rows * 2 * inner).map((value) => 8 * value);
        await executable.write('gate_up', gateUp);
        await executable.run(segments(rows));
        const expected = Array.from({ length: rows * inner }, (_, i) => {
          const at = Math.floor(i / inner) * 2 * inner + (i % inner);
          return gates[kind](gateUp[at]!, gateUp[at + inner]!);
        });
        close(await executable.read('out', rows), expected, tolerance);
        await executable.close();
      });
    }
  }
}

/** Gates whose ups lie in a buffer of their own, among other values. */
export function apartGateConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  for (const [kind, rows, inner, width, firstUp] of [
    ['gelu_mul', 3, 8, 48, 16],
    ['silu_mul', 70, 65, 200, 131],
    ['mul', 70, 65, 200, 131],
  ] as const) {
    test(`${name}: ${kind} with ups of another buffer [${rows}, ${inner}]`, async () => {
      const executable = await loaded(device, {
        operations: [{ kind, gateUp: 'gates', ups: 'ups', firstUp, out: 'out', inner }],
        buffers: {
          gates: { rows: 'rows', width: inner },
          ups: { rows: 'rows', width },
          out: { rows: 'rows', width: inner },
        },
      });
      const [gate, up] = [noise(rows * inner), noise(rows * width)];
      await executable.write('gates', gate);
      await executable.write('ups', up);
      await executable.run(segments(rows));
      const expected = Array.from(gate, (value, i) =>
        gates[kind](value, up[Math.floor(i / inner) * width + firstUp + (i % inner)]!),
      );
      close(await executable.read('out', rows), expected, tolerance);
      await executable.close();
    });
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

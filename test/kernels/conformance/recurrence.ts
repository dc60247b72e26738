/**
 * Recurrent operations: the causal convolution, the delta rule and the gated norm against their equations in f64, over several segments
 * with states that they begin with and save; and their bits, which depend neither on cuts nor on what is next to them (E2).
 */
import type { Executable } from '../../../kernels/device.ts';
import type { OperationOf, Program } from '../../../kernels/program.ts';
import { assertSameCuts, compare, few, load, mixed, segmentsOf, type Reference } from './recurrent_steps.ts';
import { casesOf, close, loaded, noise, type Conformance } from './suite.ts';

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));

interface Convolution {
  readonly channels: number;
  readonly taps: number;
  readonly isActivated: boolean;
  readonly hasBias: boolean;
}

/** [channels, taps] weights; the window of a state is [taps - 1][channels]. */
function convolution(
  { channels, taps, isActivated, hasBias }: Convolution,
  width: number,
  weight: Float32Array,
  bias: Float32Array,
): Reference {
  return {
    width,
    outWidth: channels,
    stateValues: (taps - 1) * channels,
    unused: 0,
    step: (row, state) => {
      const window = [...state, ...row.subarray(0, channels)];
      state.splice(0, state.length, ...window.slice(channels));
      return Array.from({ length: channels }, (_, c) => {
        let sum = hasBias ? bias[c]! : 0;
        for (let tap = 0; tap < taps; tap++) sum += weight[c * taps + tap]! * window[tap * channels + c]!;
        return isActivated ? sum * sigmoid(sum) : sum;
      });
    },
  };
}

function convolutionProgram({ channels, taps, isActivated, hasBias }: Convolution, width: number): Program {
  return {
    operations: [
      {
        kind: 'causal_conv',
        x: 'x',
        weight: 'w',
        out: 'out',
        layer: 0,
        channels,
        taps,
        isActivated,
        ...(hasBias ? { bias: 'b' } : {}),
      },
    ],
    buffers: { x: { rows: 'rows', width }, out: { rows: 'rows', width: channels } },
    weights: {
      w: { outputs: channels, inner: taps, isExact: true, parts: [{ tensor: 'w', outputs: channels }] },
      b: { outputs: channels, inner: 1, parts: [{ tensor: 'b', outputs: channels }] },
    },
    kv: [{ planes: [] }],
    state: [{ planes: [(taps - 1) * channels] }],
    rope: {},
  };
}

type Heads = Pick<OperationOf<'delta_rule'>, 'keyHeads' | 'valueHeads' | 'keyDim' | 'valueDim' | 'isTiled'>;

const EPSILON = 1e-6;
/** Values of plane 0, which the delta rule leaves alone. */
const UNUSED = 5;

const widthsOf = ({ keyHeads, valueHeads, keyDim, valueDim }: Heads): { qkv: number; out: number; matrix: number } => ({
  qkv: 2 * keyHeads * keyDim + valueHeads * valueDim,
  out: valueHeads * valueDim,
  matrix: valueHeads * keyDim * valueDim,
});

/** A row is qkv, then b and a of the value heads. */
function deltaReference(heads: Heads, aLog: Float32Array, dtBias: Float32Array): Reference {
  const { keyHeads, valueHeads, keyDim, valueDim, isTiled } = heads;
  const { qkv, out, matrix } = widthsOf(heads);
  return {
    width: qkv + 2 * valueHeads,
    outWidth: out,
    stateValues: UNUSED + matrix,
    unused: UNUSED,
    step: (row, state) =>
      Array.from({ length: valueHeads }, (_, head) => {
        const keyHead = isTiled ? head % keyHeads : Math.floor(head / (valueHeads / keyHeads));
        const unit = (at: number): number[] => {
          const values = [...row.subarray(at, at + keyDim)];
          const length = Math.sqrt(values.reduce((sum, v) => sum + v * v, 0) + EPSILON);
          return values.map((v) => v / length);
        };
        const q = unit(keyHead * keyDim).map((v) => v / Math.sqrt(keyDim));
        const k = unit((keyHeads + keyHead) * keyDim);
        const v = row.subarray(2 * keyHeads * keyDim + head * valueDim);
        const beta = sigmoid(row[qkv + head]!);
        const rate = Math.log1p(Math.exp(row[qkv + valueHeads + head]! + dtBias[head]!));
        const decay = Math.exp(-Math.exp(aLog[head]!) * rate);
        const at = UNUSED + head * keyDim * valueDim;
        return Array.from({ length: valueDim }, (_, column) => {
          let recalled = 0;
          for (let key = 0; key < keyDim; key++) recalled += decay * state[at + key * valueDim + column]! * k[key]!;
          const difference = beta * (v[column]! - recalled);
          let answer = 0;
          for (let key = 0; key < keyDim; key++) {
            const index = at + key * valueDim + column;
            state[index] = decay * state[index]! + k[key]! * difference;
            answer += state[index] * q[key]!;
          }
          return answer;
        });
      }).flat(),
  };
}

function deltaProgram(heads: Heads): Program {
  const { qkv, out, matrix } = widthsOf(heads);
  const { valueHeads } = heads;
  const vector = (tensor: string): Program['weights'][string] => ({
    outputs: valueHeads,
    inner: 1,
    parts: [{ tensor, outputs: valueHeads }],
  });
  return {
    operations: [
      {
        kind: 'delta_rule',
        qkv: 'qkv',
        gates: 'gates',
        aLog: 'a',
        dtBias: 'b',
        out: 'out',
        layer: 0,
        ...heads,
        epsilon: EPSILON,
      },
    ],
    buffers: {
      qkv: { rows: 'rows', width: qkv },
      gates: { rows: 'rows', width: 2 * valueHeads },
      out: { rows: 'rows', width: out },
    },
    weights: { a: vector('a'), b: vector('b') },
    kv: [{ planes: [] }],
    state: [{ planes: [UNUSED, matrix] }],
    rope: {},
  };
}

/** Rows of the delta rule, into their two buffers. */
async function writeDelta(executable: Executable, heads: Heads, rows: Float32Array): Promise<void> {
  const { qkv } = widthsOf(heads);
  const width = qkv + 2 * heads.valueHeads;
  const count = rows.length / width;
  const columns = (from: number, to: number): Float32Array =>
    Float32Array.from({ length: count * (to - from) }, (_, i) => {
      const row = Math.floor(i / (to - from));
      return rows[row * width + from + (i % (to - from))]!;
    });
  await executable.write('qkv', columns(0, qkv));
  await executable.write('gates', columns(qkv, width));
}

function convolutionCases(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  for (const [channels, taps, isActivated, hasBias] of [
    [5, 4, true, false],
    [64, 3, false, true],
    [300, 2, true, true],
    [520, 4, true, false],
  ] as const) {
    test(`${name}: causal_conv of ${channels} channels over ${taps} rows is the equation, from and into slots`, async () => {
      const shape = { channels, taps, isActivated, hasBias };
      // Other values lie after the channels.
      const width = channels + 12;
      const [weight, bias] = [noise(channels * taps), noise(channels)];
      const executable = await load(device, convolutionProgram(shape, width), { w: weight, b: bias });
      const reference = convolution(shape, width, weight, bias);
      const write = (rows: Float32Array): Promise<void> => executable.write('x', rows);
      for (const parts of [mixed, few, [{ rows: 40, saves: [] }]])
        await compare(executable, reference, parts, write, tolerance);
      await assertSameCuts(executable, reference, write);
      await executable.close();
    });
  }
}

function deltaCases(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  for (const [keyHeads, valueHeads, keyDim, valueDim, isTiled] of [
    [1, 1, 4, 4, false],
    [2, 6, 16, 24, false],
    [2, 4, 20, 35, true],
    [1, 2, 128, 128, false],
  ] as const) {
    const heads = { keyHeads, valueHeads, keyDim, valueDim, isTiled };
    test(`${name}: delta_rule of ${keyHeads}/${valueHeads} heads, ${keyDim} x ${valueDim}${isTiled ? ', tiled' : ''}, is the equation, from and into slots`, async () => {
      const [aLog, dtBias] = [noise(valueHeads), noise(valueHeads)];
      const executable = await load(device, deltaProgram(heads), { a: aLog, b: dtBias });
      const reference = deltaReference(heads, aLog, dtBias);
      const write = (rows: Float32Array): Promise<void> => writeDelta(executable, heads, rows);
      // Sums of 128 products, of which each row's state is the last row's.
      for (const parts of [mixed, [{ rows: 40, saves: [{ rows: 40, slot: 0 }] }]])
        await compare(executable, reference, parts, write, 4 * tolerance);
      await assertSameCuts(executable, reference, write);
      await executable.close();
    });
  }
}

function gateCases(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  for (const [spans, width, isGateFirst, isWide] of [
    [1, 4, false, false],
    [6, 24, false, false],
    [2, 516, true, true],
    [3, 128, true, false],
  ] as const) {
    test(`${name}: gated_norm of ${spans} spans of ${width}, gate ${isGateFirst ? 'before' : 'after'} the norm`, async () => {
      const [rows, first] = [5, 8];
      const all = spans * width;
      const gateWidth = first + all;
      const weights = isWide ? all : width;
      const [x, gate, weight] = [noise(rows * all), noise(rows * gateWidth), noise(weights)];
      const executable = await loaded(
        device,
        {
          operations: [
            { kind: 'gated_norm', x: 'x', gate: 'gate', weight: 'w', epsilon: 1e-5, first, spans, width, isGateFirst },
          ],
          buffers: { x: { rows: 'rows', width: all }, gate: { rows: 'rows', width: gateWidth } },
          weights: { w: { outputs: weights, inner: 1, parts: [{ tensor: 'w', outputs: weights }] } },
        },
        { w: weight },
      );
      await executable.write('x', x);
      await executable.write('gate', gate);
      await executable.run(segmentsOf([{ rows, saves: [] }]));
      const expected = Array.from({ length: rows * spans }, (_, i) => {
        const [row, span] = [Math.floor(i / spans), i % spans];
        const gates = [...gate.subarray(row * gateWidth + first + span * width)].slice(0, width);
        const silu = gates.map((g) => g * sigmoid(g));
        const values = [...x.subarray(i * width, (i + 1) * width)].map((v, j) => (isGateFirst ? v * silu[j]! : v));
        const root = Math.sqrt(values.reduce((sum, v) => sum + v * v, 0) / width + 1e-5);
        return values.map((v, j) => (weight[isWide ? span * width + j : j]! * v * (isGateFirst ? 1 : silu[j]!)) / root);
      }).flat();
      close(await executable.read('x', rows), expected, tolerance);
      await executable.close();
    });
  }
  for (const isPerRow of [false, true]) {
    test(`${name}: sigmoid_mul with ${isPerRow ? 'a gate per row' : 'gates of their own'}`, async () => {
      for (const [rows, width, first] of [
        [1, 5, 3],
        [7, 70, 0],
      ] as const) {
        const gateWidth = first + (isPerRow ? 1 : width);
        // x has values after those that are gated.
        const [x, gate] = [noise(rows * (width + 3)), noise(rows * gateWidth)];
        const executable = await loaded(device, {
          operations: [{ kind: 'sigmoid_mul', x: 'x', width, gate: 'gate', first, isPerRow }],
          buffers: { x: { rows: 'rows', width: width + 3 }, gate: { rows: 'rows', width: gateWidth } },
        });
        await executable.write('x', x);
        await executable.write('gate', gate);
        await executable.run(segmentsOf([{ rows, saves: [] }]));
        const expected = [...x].map((value, i) => {
          const [row, column] = [Math.floor(i / (width + 3)), i % (width + 3)];
          if (column >= width) return value;
          return value * sigmoid(gate[row * gateWidth + first + (isPerRow ? 0 : column)]!);
        });
        close(await executable.read('x', rows), expected, tolerance);
        await executable.close();
      }
    });
  }
}

export function recurrenceConformance(device: Conformance): void {
  convolutionCases(device);
  deltaCases(device);
  gateCases(device);
}

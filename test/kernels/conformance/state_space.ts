/** The state space of Mamba2 against its equation in f64, over several segments with states, and its bits in every cut (E2). */
import type { Executable } from '../../../kernels/device.ts';
import type { OperationOf, Program } from '../../../kernels/program.ts';
import { assertSameCuts, compare, load, mixed, type Reference } from './recurrent_steps.ts';
import { casesOf, noise, type Conformance } from './suite.ts';

type Space = Pick<OperationOf<'state_space'>, 'groups' | 'heads' | 'stateDim' | 'headDim' | 'leastStep' | 'mostStep'>;

/** Values of plane 0, which the operation leaves alone. */
const UNUSED = 3;

const widthsOf = ({ groups, heads, stateDim, headDim }: Space): { cbx: number; out: number; matrix: number } => ({
  cbx: 2 * groups * stateDim + heads * headDim,
  out: heads * headDim,
  matrix: heads * stateDim * headDim,
});

type Vectors = Readonly<Record<'aLog' | 'dtBias' | 'skips', Float32Array>>;

/** A row is cbx, then a value for the step of each head. */
function reference(space: Space, { aLog, dtBias, skips }: Vectors): Reference {
  const { groups, heads, stateDim, headDim, leastStep = 0, mostStep = Infinity } = space;
  const { cbx, out, matrix } = widthsOf(space);
  return {
    width: cbx + heads,
    outWidth: out,
    stateValues: UNUSED + matrix,
    unused: UNUSED,
    step: (row, state) =>
      Array.from({ length: heads }, (_, head) => {
        const group = Math.floor(head / (heads / groups));
        const c = row.subarray(group * stateDim, (group + 1) * stateDim);
        const b = row.subarray((groups + group) * stateDim, (groups + group + 1) * stateDim);
        const x = row.subarray(2 * groups * stateDim + head * headDim);
        const softplus = Math.log1p(Math.exp(row[cbx + head]! + dtBias[head]!));
        const width = Math.min(Math.max(softplus, leastStep), mostStep);
        const decay = Math.exp(-Math.exp(aLog[head]!) * width);
        const at = UNUSED + head * stateDim * headDim;
        return Array.from({ length: headDim }, (__, column) => {
          let answer = skips[head]! * x[column]!;
          for (let i = 0; i < stateDim; i++) {
            const index = at + i * headDim + column;
            state[index] = decay * state[index]! + b[i]! * width * x[column]!;
            answer += state[index] * c[i]!;
          }
          return answer;
        });
      }).flat(),
  };
}

function program(space: Space): Program {
  const { cbx, out, matrix } = widthsOf(space);
  const { heads } = space;
  const vector = (tensor: string): Program['weights'][string] => ({
    outputs: heads,
    inner: 1,
    parts: [{ tensor, outputs: heads }],
  });
  return {
    operations: [
      {
        kind: 'state_space',
        cbx: 'cbx',
        steps: 'steps',
        out: 'out',
        layer: 0,
        aLog: 'a',
        dtBias: 'b',
        skips: 'd',
        ...space,
      },
    ],
    buffers: {
      cbx: { rows: 'rows', width: cbx },
      steps: { rows: 'rows', width: 2 * heads },
      out: { rows: 'rows', width: out },
    },
    weights: { a: vector('a'), b: vector('b'), d: vector('d') },
    kv: [{ planes: [] }],
    state: [{ planes: [UNUSED, matrix] }],
    rope: {},
  };
}

/** Rows of the state space, into their two buffers. */
async function write(executable: Executable, space: Space, rows: Float32Array): Promise<void> {
  const { cbx } = widthsOf(space);
  const { heads } = space;
  const count = rows.length / (cbx + heads);
  const steps = new Float32Array(count * 2 * heads);
  const others = new Float32Array(count * cbx);
  for (let row = 0; row < count; row++) {
    const own = rows.subarray(row * (cbx + heads), (row + 1) * (cbx + heads));
    others.set(own.subarray(0, cbx), row * cbx);
    steps.set(own.subarray(cbx), row * 2 * heads);
  }
  await executable.write('cbx', others);
  await executable.write('steps', steps);
}

export function stateSpaceConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  const cases: readonly Space[] = [
    { groups: 1, heads: 1, stateDim: 4, headDim: 4 },
    { groups: 1, heads: 5, stateDim: 24, headDim: 16 },
    { groups: 2, heads: 4, stateDim: 20, headDim: 35, leastStep: 0.6, mostStep: 0.9 },
    { groups: 1, heads: 2, stateDim: 128, headDim: 64 },
  ];
  for (const space of cases) {
    const { groups, heads, stateDim, headDim, leastStep } = space;
    const bounds = leastStep === undefined ? '' : ', bounded steps';
    test(`${name}: state_space of ${groups}/${heads} heads, ${stateDim} x ${headDim}${bounds}, is the equation, from and into slots`, async () => {
      const vectors = { aLog: noise(heads), dtBias: noise(heads), skips: noise(heads) };
      const { aLog: a, dtBias: b, skips: d } = vectors;
      const executable = await load(device, program(space), { a, b, d });
      const equation = reference(space, vectors);
      const writeRows = (rows: Float32Array): Promise<void> => write(executable, space, rows);
      // Sums of 128 products, of which each row's state is the last row's.
      for (const parts of [mixed, [{ rows: 40, saves: [{ rows: 40, slot: 0 }] }]])
        await compare(executable, equation, parts, writeRows, 4 * tolerance);
      await assertSameCuts(executable, equation, writeRows);
      await executable.close();
    });
  }
}

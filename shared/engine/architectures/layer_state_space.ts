/** The state space of a decoder's layer, Mamba2: norm, products, causal convolution, recurrence, gated norm, output product. */
import type { StateLayer, TensorRows } from '../../../kernels/program.ts';
import type { LayerShape, StateSpaceShape } from '../../model/model_shape.ts';
import { matrix, type Module, type ProgramParts } from './program_parts.ts';

/** Emits the recurrent branch of layer `index`. Returns what the layer keeps per sequence: the convolution's inputs, the matrices. */
export function emitStateSpace(
  program: ProgramParts,
  layer: LayerShape,
  space: StateSpaceShape,
  index: number,
): StateLayer {
  const { hidden, epsilon } = program.shape;
  const { heads, groups, headDim, stateDim, taps, hasBias, steps: bounds } = space;
  const at = `model.layers.${index}`;
  const own = `${at}.mamba`;
  const inner = heads * headDim;
  const channels = inner + 2 * groups * stateDim;
  const mixed = program.buffer('space_mixed', { rows: 'rows', width: channels + inner });
  const steps = program.buffer('space_steps', { rows: 'rows', width: 2 * heads });
  const cbx = program.buffer('space_cbx', { rows: 'rows', width: channels });
  const out = program.buffer('space_out', { rows: 'rows', width: inner });
  const convolution = emitTaps(program, `${own}.conv1d`, space);
  const perHead = (name: string): string => program.vector(`${own}.${name}`, heads);
  const vectors = { aLog: perHead('A_log'), dtBias: perHead('dt_bias'), skips: perHead('D') };
  const norm = program.vector(`${own}.norm.weight`, inner);
  program.branch(layer, { before: `${at}.input_layernorm`, after: '' }, (x, to) => {
    const { products, factors } = modulesOf(`${own}.in_proj`, space);
    const common = { x, inner: hidden, hasBias };
    program.linear({ ...common, name: `${at}.cbxz`, modules: products, to: { out: mixed, accumulate: false } });
    // A state forgets by these factors over all tokens, so they are as exact as a router.
    const exact = { modules: factors, isExact: true, to: { out: steps, accumulate: false } };
    program.linear({ ...common, name: `${at}.dt`, ...exact });
    program.operations.push(
      { kind: 'causal_conv', x: mixed, ...convolution, out: cbx, layer: index, channels, taps, isActivated: true },
      {
        kind: 'state_space',
        cbx,
        steps,
        ...vectors,
        out,
        layer: index,
        groups,
        heads,
        stateDim,
        headDim,
        ...(bounds ? { leastStep: bounds.least } : {}),
        ...(bounds?.most === undefined ? {} : { mostStep: bounds.most }),
      },
      {
        kind: 'gated_norm',
        x: out,
        gate: mixed,
        first: channels,
        weight: norm,
        epsilon,
        spans: groups,
        width: inner / groups,
        isGateFirst: true,
      },
    );
    const modules = [{ name: `${own}.out_proj`, outputs: hidden }];
    program.linear({ x: out, name: `${at}.o`, inner, modules, hasBias, to });
  });
  return { planes: [(taps - 1) * channels, inner * stateDim] };
}

/** Adds the weight of the convolution, and its bias if there is one, by which channels lie as the recurrence reads them. */
function emitTaps(
  program: ProgramParts,
  module: string,
  space: StateSpaceShape,
): { readonly weight: string; readonly bias?: string } {
  const [weight, bias] = [`${module}.weight`, `${module}.bias`];
  const partsOf = (tensor: string): TensorRows[] => channelsOf(space, 0).map((rows) => ({ tensor, ...rows }));
  program.weights[weight] = { ...matrix(space.taps, partsOf(weight)), isExact: true };
  if (!space.hasConvolutionBias) return { weight };
  program.weights[bias] = matrix(1, partsOf(bias));
  return { weight, bias };
}

type Rows = Pick<Module, 'outputs'> & { readonly firstRow: number };

/** Returns the rows of c, b and x, in this order, of a tensor that has those of x, b and c from row `first` on. */
function channelsOf({ heads, groups, headDim, stateDim }: StateSpaceShape, first: number): Rows[] {
  const [inner, state] = [heads * headDim, groups * stateDim];
  return [
    { firstRow: first + inner + state, outputs: state },
    { firstRow: first + inner, outputs: state },
    { firstRow: first, outputs: inner },
  ];
}

/** Returns the modules of c, b, x and the gate, in this order, and of the steps: rows of one tensor, which has the gate first. */
function modulesOf(
  name: string,
  space: StateSpaceShape,
): { readonly products: readonly Module[]; readonly factors: readonly Module[] } {
  const { heads, groups, headDim, stateDim } = space;
  const inner = heads * headDim;
  const rows = [...channelsOf(space, inner), { firstRow: 0, outputs: inner }];
  return {
    products: rows.map((one) => ({ name, ...one })),
    factors: [{ name, firstRow: 2 * (inner + groups * stateDim), outputs: heads }],
  };
}

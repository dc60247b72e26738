/** The gated delta net of a decoder's layer: norm, products, causal convolution, delta rule, norm with a gate, output product. */
import type { StateLayer } from '../../../kernels/program.ts';
import type { DeltaShape, LayerShape } from '../../model/model_shape.ts';
import { matrix, type Module, type ProgramParts } from './program_parts.ts';

/** Added to the squares of q, and of k, before the root that divides them. */
const LENGTH_EPSILON = 1e-6;

/** Emits the recurrent branch of layer `index`. Returns what the layer keeps per sequence: the convolution's inputs, the matrices. */
export function emitDelta(program: ProgramParts, layer: LayerShape, delta: DeltaShape, index: number): StateLayer {
  const { hidden, epsilon } = program.shape;
  const { keyHeads, valueHeads, keyDim, valueDim, taps, isTiled = false } = delta;
  const at = `model.layers.${index}`;
  const own = `${at}.linear_attn`;
  const values = valueHeads * valueDim;
  const channels = 2 * keyHeads * keyDim + values;
  const mixed = program.buffer('delta_mixed', { rows: 'rows', width: channels + values });
  const gates = program.buffer('delta_gates', { rows: 'rows', width: 2 * valueHeads });
  const qkv = program.buffer('delta_qkv', { rows: 'rows', width: channels });
  const out = program.buffer('delta_out', { rows: 'rows', width: values });
  const weight = `${own}.conv1d.weight`;
  program.weights[weight] = { ...matrix(taps, [{ tensor: weight, outputs: channels }]), isExact: true };
  const aLog = program.vector(`${own}.A_log`, valueHeads);
  const dtBias = program.vector(`${own}.dt_bias`, valueHeads);
  const norm = program.vector(`${own}.norm.weight`, valueDim);
  const after = layer.norms === 'before' ? '' : `${at}.post_attention_layernorm`;
  program.branch(layer, { before: `${at}.input_layernorm`, after }, (x, to) => {
    const { products, factors } = modulesOf(own, delta);
    const common = { x, inner: hidden, hasBias: false };
    program.linear({ ...common, name: `${at}.qkvz`, modules: products, to: { out: mixed, accumulate: false } });
    // A state forgets by these factors over all tokens, so they are as exact as a router.
    const exact = { modules: factors, isExact: true, to: { out: gates, accumulate: false } };
    program.linear({ ...common, name: `${at}.ba`, ...exact });
    program.operations.push(
      { kind: 'causal_conv', x: mixed, weight, out: qkv, layer: index, channels, taps, isActivated: true },
      {
        kind: 'delta_rule',
        qkv,
        gates,
        aLog,
        dtBias,
        out,
        layer: index,
        epsilon: LENGTH_EPSILON,
        keyHeads,
        valueHeads,
        keyDim,
        valueDim,
        isTiled,
      },
      {
        kind: 'gated_norm',
        x: out,
        gate: mixed,
        first: channels,
        weight: norm,
        epsilon,
        spans: valueHeads,
        width: valueDim,
        isGateFirst: false,
      },
    );
    const modules = [{ name: `${own}.out_proj`, outputs: hidden }];
    program.linear({ x: out, name: `${at}.o`, inner: values, modules, hasBias: false, to });
  });
  return { planes: [(taps - 1) * channels, values * keyDim] };
}

/** The modules of q, k, v and z, in this order, and of b and a. */
interface DeltaModules {
  readonly products: readonly Module[];
  readonly factors: readonly Module[];
}

/**
 * Returns the modules of a delta net. A fused module has, for each key head, its q, its k, and v and z of the value heads that it
 * serves; or b and a of these.
 */
function modulesOf(own: string, { keyHeads, valueHeads, keyDim, valueDim, fused }: DeltaShape): DeltaModules {
  const [group, values] = [valueHeads / keyHeads, valueHeads * valueDim];
  const byHeads = (name: string, widths: readonly number[]): Module[] => {
    const perHead = widths.reduce((sum, width) => sum + width, 0);
    let first = 0;
    return widths.flatMap((outputs) => {
      first += outputs;
      const skipped = first - outputs;
      return Array.from({ length: keyHeads }, (_, head) => ({ name, outputs, firstRow: head * perHead + skipped }));
    });
  };
  const products = [
    { name: `${own}.in_proj_qkv`, outputs: 2 * keyHeads * keyDim + values },
    { name: `${own}.in_proj_z`, outputs: values },
  ];
  const factors = [
    { name: `${own}.in_proj_b`, outputs: valueHeads },
    { name: `${own}.in_proj_a`, outputs: valueHeads },
  ];
  const widths = [keyDim, keyDim, group * valueDim, group * valueDim];
  return {
    products: fused === 'all' ? byHeads(`${own}.in_proj_qkvz`, widths) : products,
    factors: fused ? byHeads(`${own}.in_proj_ba`, [group, group]) : factors,
  };
}

/** The short convolution of a decoder's layer: norm, product, gate, causal convolution, gate, output product. */
import type { StateLayer } from '../../../kernels/program.ts';
import type { ConvolutionShape, LayerShape } from '../../model/model_shape.ts';
import { matrix, type ProgramParts } from './program_parts.ts';

/** Emits the convolution branch of layer `index`. Returns what the layer keeps per sequence: the convolution's inputs. */
export function emitConvolution(
  program: ProgramParts,
  layer: LayerShape,
  { taps, hasBias }: ConvolutionShape,
  index: number,
): StateLayer {
  const { hidden } = program.shape;
  const at = `model.layers.${index}`;
  const own = `${at}.conv`;
  const row = { rows: 'rows', width: hidden } as const;
  // The gate before the convolution, the gate after it, and what they gate.
  const mixed = program.buffer('conv_mixed', { rows: 'rows', width: 3 * hidden });
  const inputs = program.buffer('conv_inputs', row);
  const convolved = program.buffer('convolved', row);
  const gated = program.buffer('conv_gated', row);
  const [weight, bias] = [`${own}.conv.weight`, `${own}.conv.bias`];
  program.weights[weight] = { ...matrix(taps, [{ tensor: weight, outputs: hidden }]), isExact: true };
  if (hasBias) program.vector(bias, hidden);
  program.branch(layer, { before: `${at}.input_layernorm`, after: '' }, (x, to) => {
    const common = { inner: hidden, hasBias };
    const modules = [{ name: `${own}.in_proj`, outputs: 3 * hidden }];
    const toMixed = { out: mixed, accumulate: false };
    program.linear({ ...common, x, name: `${at}.conv_in`, modules, to: toMixed });
    program.operations.push(
      { kind: 'mul', gateUp: mixed, ups: mixed, firstUp: 2 * hidden, out: inputs, inner: hidden },
      {
        kind: 'causal_conv',
        x: inputs,
        weight,
        out: convolved,
        layer: index,
        channels: hidden,
        taps,
        ...(hasBias ? { bias } : {}),
        isActivated: false,
      },
      { kind: 'mul', gateUp: convolved, ups: mixed, firstUp: hidden, out: gated, inner: hidden },
    );
    const output = [{ name: `${own}.out_proj`, outputs: hidden }];
    program.linear({ ...common, x: gated, name: `${at}.o`, modules: output, to });
  });
  return { planes: [(taps - 1) * hidden] };
}

/** The gated MLP of a decoder's layer. */
import type { LayerShape } from '../../model/model_shape.ts';
import { gateOf, modulesOf, type ProgramParts } from './program_parts.ts';

/** Emits the MLP branch of layer `index`, which all tokens pass. */
export function emitMlp(program: ProgramParts, layer: LayerShape, index: number): void {
  const { hidden } = program.shape;
  const { inner, hasMlpBias: hasBias } = layer;
  const at = `model.layers.${index}`;
  const own = `${at}.mlp`;
  const before = `${at}.${layer.norms === 'both' ? 'pre_feedforward' : 'post_attention'}_layernorm`;
  const gateUp = program.buffer('gate_up', { rows: 'rows', width: 2 * inner });
  const gated = program.buffer('gated', { rows: 'rows', width: inner });
  // The branch that reads the layer's input comes after this one, and is the last then.
  const scalar = layer.hasScalar && !program.shape.layerInputs ? `${at}.layer_scalar` : undefined;
  program.branch(layer, { before, after: `${at}.post_feedforward_layernorm`, scalar }, (x, to) => {
    const names = program.tensors.fused ? [`${own}.gate_up_proj`] : [`${own}.gate_proj`, `${own}.up_proj`];
    const modules = modulesOf(names, [inner, inner]);
    const pair = { out: gateUp, accumulate: false };
    program.linear({ x, name: `${at}.gate_up`, inner: hidden, modules, hasBias, to: pair });
    program.operations.push(gateOf(layer, gateUp, gated));
    const down = [{ name: `${own}.down_proj`, outputs: hidden }];
    program.linear({ x: gated, name: `${at}.down`, inner, modules: down, hasBias, to });
  });
}

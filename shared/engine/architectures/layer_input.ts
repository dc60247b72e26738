/**
 * Inputs of single layers, as Gemma 4's smaller models have them: besides the residual stream, every layer reads a vector of the token
 * that no layer writes.
 *
 *   token ─► table ────────────────────────────┐
 *   embedding ─► product ─► norm by layer ─────+► inputs [layers][width]
 *   x ─► gate ─► GELU ─► × input of the layer ─► product ─► norm ─+► x
 */
import type { LayerShape } from '../../model/model_shape.ts';
import { gateOf, matrix, type ProgramParts } from './program_parts.ts';

const INPUTS = 'layer_inputs';

/** Emits the inputs of all layers, [rows, layers · width] without the factor 2^-½ of both their parts; nothing for models without them. */
export function beginLayerInputs(program: ProgramParts): void {
  const { hidden, layers, epsilon, layerInputs } = program.shape;
  if (!layerInputs) return;
  const { width, vocabSize } = layerInputs;
  const outputs = layers.length * width;
  program.buffer(INPUTS, { rows: 'rows', width: outputs });
  const [projection, norm] = ['model.per_layer_model_projection.weight', 'model.per_layer_projection_norm.weight'];
  const table = 'model.embed_tokens_per_layer.weight';
  program.weights[projection] = matrix(hidden, [{ tensor: projection, outputs }]);
  program.weights[norm] = program.normWeight([{ tensor: norm, outputs: width }]);
  program.weights[table] = matrix(outputs, [{ tensor: table, outputs: vocabSize }]);
  program.operations.push(
    { kind: 'linear', x: 'x', weight: projection, out: INPUTS, accumulate: false, scale: 1 / Math.sqrt(hidden) },
    {
      kind: 'qk_norm',
      qkv: INPUTS,
      weight: norm,
      epsilon,
      span: 'head',
      heads: layers.length,
      kvHeads: 0,
      headDim: width,
    },
    { kind: 'embed', table, out: INPUTS, scale: Math.sqrt(width), accumulate: true },
  );
}

/** Emits the branch of layer `index` that reads its input, which is the layer's last. */
export function emitLayerInput(program: ProgramParts, layer: LayerShape, index: number): void {
  const { hidden, layerInputs } = program.shape;
  if (!layerInputs) return;
  const { width } = layerInputs;
  const at = `model.layers.${index}`;
  const gate = program.buffer('input_gate', { rows: 'rows', width });
  const gated = program.buffer('gated_input', { rows: 'rows', width });
  const branch = program.buffer('branch', { rows: 'rows', width: hidden });
  const [gateWeight, projection] = [`${at}.per_layer_input_gate.weight`, `${at}.per_layer_projection.weight`];
  program.weights[gateWeight] = matrix(hidden, [{ tensor: gateWeight, outputs: width }]);
  program.weights[projection] = matrix(width, [{ tensor: projection, outputs: hidden }]);
  program.operations.push(
    { kind: 'linear', x: 'x', weight: gateWeight, out: gate, accumulate: false },
    { ...gateOf({ ...layer, inner: width }, gate, gated), ups: INPUTS, firstUp: index * width },
    { kind: 'linear', x: gated, weight: projection, out: branch, accumulate: false, scale: Math.SQRT1_2 },
  );
  const scalar = layer.hasScalar ? `${at}.layer_scalar` : undefined;
  program.norm(branch, `${at}.post_per_layer_input_norm`, 'x', { accumulate: true, scalar });
}

/**
 * Builds the program of a decoder such as Llama and its relatives. Runs once, when a model is loaded, and emits operations over
 * named buffers.
 *
 *   x ─► [ norm ─► qkv ─► qk_norm ─► rope_store ─► attention ─► o ─► norm ─+► norm ─► gate_up ─► its gate ─► down ─► norm ─+► ] × layers
 *                                                        residual: x ──────┘                           residual: x ──────┘
 *   then the sampled rows only: gather ─► norm ─► logits ─► soft_cap ─► candidates ─► sample
 *
 * The shape decides which parts a layer has, and which norms, caps, biases, windows, scales and gates there are; each part has a
 * file of its own (`layer_*.ts`).
 */
import type { KvLayer, Program, RopeTable, StateLayer } from '../../../kernels/program.ts';
import type { LayerShape, ModelShape, RopeShape } from '../../model/model_shape.ts';
import { ropeFrequencies, ropesServed } from './decoder_rope.ts';
import { emitAttention } from './layer_attention.ts';
import { emitLatentAttention } from './layer_latent.ts';
import { emitConvolution } from './layer_convolution.ts';
import { emitDelta } from './layer_delta.ts';
import { beginLayerInputs, emitLayerInput } from './layer_input.ts';
import { emitMixture } from './layer_mixture.ts';
import { emitStateSpace } from './layer_state_space.ts';
import { emitMlp } from './layer_mlp.ts';
import { emitMlpAndMixture } from './layer_mlp_and_mixture.ts';
import { matrix, ProgramParts, scaledBy, type DecoderTensors } from './program_parts.ts';

/** Returns the program of a decoder; its rotary tables have `numPositions` positions. */
export function decoderProgram(shape: ModelShape, numPositions: number, tensors: DecoderTensors = {}): Program {
  const program = new ProgramParts(shape, tensors);
  begin(program);
  const kv: KvLayer[] = [];
  const state: StateLayer[] = [];
  for (const [i, layer] of shape.layers.entries()) {
    const recurrent = emitRecurrence(program, layer, i);
    kv.push(recurrent ? { planes: [] } : emitMixer(program, layer, i));
    state.push(recurrent ?? { planes: [] });
    if (layer.parallelMixture) emitMlpAndMixture(program, layer, layer.parallelMixture, i);
    else if (layer.experts) emitMixture(program, layer, layer.experts, i);
    else emitMlp(program, layer, i);
    emitLayerInput(program, layer, i);
  }
  end(program);
  const ropes = Object.entries(ropesServed(shape.ropes, numPositions));
  return program.program({
    kv,
    ...(state.some(({ planes }) => planes.length > 0) ? { state } : {}),
    rope: Object.fromEntries(ropes.map(([name, rope]) => [name, ropeTable(rope, numPositions)])),
  });
}

/** Emits the recurrence of layer `index`. Returns what the layer keeps per sequence; undefined where it has attention. */
function emitRecurrence(program: ProgramParts, layer: LayerShape, index: number): StateLayer | undefined {
  const { delta, convolution, stateSpace } = layer;
  if (delta) return emitDelta(program, layer, delta, index);
  if (convolution) return emitConvolution(program, layer, convolution, index);
  return stateSpace && emitStateSpace(program, layer, stateSpace, index);
}

/** Emits the attention of layer `index`. Returns what it stores per token. */
function emitMixer(program: ProgramParts, layer: LayerShape, index: number): KvLayer {
  return layer.latent ? emitLatentAttention(program, layer, layer.latent, index) : emitAttention(program, layer, index);
}

function begin(program: ProgramParts): void {
  const { hidden, vocabSize, embeddingScale } = program.shape;
  program.buffer('x', { rows: 'rows', width: hidden });
  program.buffer('normed', { rows: 'rows', width: hidden });
  program.weights['embed'] = matrix(hidden, [{ tensor: 'model.embed_tokens.weight', outputs: vocabSize }]);
  program.operations.push({ kind: 'embed', table: 'embed', out: 'x', ...scaledBy(embeddingScale) });
  beginLayerInputs(program);
}

function end(program: ProgramParts): void {
  const { hidden, vocabSize, isTied, logitScale, logitCap } = program.shape;
  program.buffer('hidden', { rows: 'hidden', width: hidden });
  const last = program.buffer('last', { rows: 'samples', width: hidden });
  const normed = program.buffer('last_normed', { rows: 'samples', width: hidden });
  const logits = program.buffer('logits', { rows: 'samples', width: vocabSize });
  program.operations.push({ kind: 'gather_samples', x: 'x', out: last });
  program.norm('x', 'model.norm', 'hidden');
  program.norm(last, 'model.norm', normed);
  if (!isTied) program.weights['lm_head'] = matrix(hidden, [{ tensor: 'lm_head.weight', outputs: vocabSize }]);
  const weight = isTied ? 'embed' : 'lm_head';
  program.operations.push({
    kind: 'linear',
    x: normed,
    weight,
    out: logits,
    accumulate: false,
    ...scaledBy(logitScale),
  });
  if (logitCap > 0) program.operations.push({ kind: 'soft_cap', x: logits, cap: logitCap });
  program.operations.push({ kind: 'candidates', logits, vocab: vocabSize });
  program.operations.push({ kind: 'sample', logits, vocab: vocabSize });
}

/**
 * Angles in f32 as transformers computes them: inv_freq rounded, then position · inv_freq rounded, [positions, dim / 2]; and the
 * factors of q.
 */
function ropeTable(shape: RopeShape, numPositions: number): RopeTable {
  const half = shape.dim / 2;
  const { inverse, attentionFactor } = ropeFrequencies(shape);
  const cos = new Float32Array(numPositions * half);
  const sin = new Float32Array(numPositions * half);
  for (let i = 0; i < half; i++) {
    const frequency = inverse[i] ?? 0;
    for (let position = 0; position < numPositions; position++) {
      const angle = Math.fround(position * frequency);
      cos[position * half + i] = Math.cos(angle) * attentionFactor;
      sin[position * half + i] = Math.sin(angle) * attentionFactor;
    }
  }
  const { dim, span, queryScale } = shape;
  const table = { dim, ...(span === undefined ? {} : { pairDistance: span / 2 }), cos, sin };
  if (!queryScale) return table;
  const { beta, originalPositions } = queryScale;
  const queryFactors = Float32Array.from(
    { length: numPositions },
    (_, position) => 1 + beta * Math.log(1 + Math.floor(position / originalPositions)),
  );
  return { ...table, queryFactors };
}

/**
 * A pre-norm decoder as a program, which Llama and its relatives are: runs once, at load, and emits operations over named buffers.
 *
 *   x ─► [ norm ─► qkv ─► rope_store ─► attention ─► o ─+► norm ─► gate_up ─► its gate ─► down ─+► ] × layers
 *                                       residual: x ────┘                      residual: x ─────┘
 *   then the sampled rows only: gather ─► norm ─► logits ─► candidates ─► draw
 */
import type { Operation, Program, RopeTable, WeightSpec } from '../../../kernels/program.ts';
import type { Activation, ModelShape, RopeShape } from '../../model/model_shape.ts';
import { ropeFrequencies } from './decoder_rope.ts';

const gates: Readonly<Record<Activation, 'silu_mul' | 'gelu_mul'>> = { silu: 'silu_mul', gelu_tanh: 'gelu_mul' };

/** Biases, windows and gates are what the layers' shapes say. `numPositions`: of the rope tables. */
export function decoderProgram(shape: ModelShape, numPositions: number): Program {
  const { hidden, layers, epsilon, vocabSize, isTied } = shape;
  const operations: Operation[] = [{ kind: 'embed', table: 'embed', out: 'x' }];
  const weights: Record<string, WeightSpec> = { embed: matrix(hidden, ['model.embed_tokens.weight', vocabSize]) };

  const norm = (x: string, tensor: string, out: string): void => {
    weights[tensor] = vector([tensor, hidden]);
    operations.push({ kind: 'rms_norm', x, weight: tensor, out, epsilon });
  };
  /** `parts` are module names and outputs; their weights, and biases when there are any, are stacked. */
  const linear = (
    x: string,
    name: string,
    width: number,
    parts: readonly [string, number][],
    hasBias: boolean,
    out: string,
    accumulate: boolean,
  ): void => {
    weights[name] = matrix(width, ...parts.map(([module, outputs]): [string, number] => [`${module}.weight`, outputs]));
    const bias = `${name}.bias`;
    if (hasBias)
      weights[bias] = vector(...parts.map(([module, outputs]): [string, number] => [`${module}.bias`, outputs]));
    operations.push({ kind: 'linear', x, weight: name, ...(hasBias ? { bias } : {}), out, accumulate });
  };

  layers.forEach(({ window, rope, inner, activation, hasQkvBias, hasOutputBias, hasMlpBias, ...shape }, layer) => {
    const at = `model.layers.${layer}`;
    const { heads, kvHeads, headDim } = shape;
    const [qWidth, kvWidth] = [heads * headDim, kvHeads * headDim];
    norm('x', `${at}.input_layernorm.weight`, 'normed');
    const qkv: [string, number][] = [
      [`${at}.self_attn.q_proj`, qWidth],
      [`${at}.self_attn.k_proj`, kvWidth],
      [`${at}.self_attn.v_proj`, kvWidth],
    ];
    linear('normed', `${at}.qkv`, hidden, qkv, hasQkvBias, 'qkv', false);
    operations.push({ kind: 'rope_store', qkv: 'qkv', layer, rope, heads, kvHeads, headDim });
    operations.push({
      ...{ kind: 'attention', qkv: 'qkv', out: 'attended', layer, heads, kvHeads, headDim },
      scale: 1 / Math.sqrt(headDim),
      ...(window > 0 ? { window } : {}),
    });
    linear('attended', `${at}.o`, qWidth, [[`${at}.self_attn.o_proj`, hidden]], hasOutputBias, 'x', true);
    norm('x', `${at}.post_attention_layernorm.weight`, 'normed');
    const gateUp: [string, number][] = [
      [`${at}.mlp.gate_proj`, inner],
      [`${at}.mlp.up_proj`, inner],
    ];
    linear('normed', `${at}.gate_up`, hidden, gateUp, hasMlpBias, 'gate_up', false);
    operations.push({ kind: gates[activation], gateUp: 'gate_up', out: 'gated', inner });
    linear('gated', `${at}.down`, inner, [[`${at}.mlp.down_proj`, hidden]], hasMlpBias, 'x', true);
  });

  operations.push({ kind: 'gather_samples', x: 'x', out: 'last' });
  norm('last', 'model.norm.weight', 'last_normed');
  if (!isTied) weights['lm_head'] = matrix(hidden, ['lm_head.weight', vocabSize]);
  const head = isTied ? 'embed' : 'lm_head';
  operations.push({ kind: 'linear', x: 'last_normed', weight: head, out: 'logits', accumulate: false });
  operations.push({ kind: 'candidates', logits: 'logits', vocab: vocabSize });
  operations.push({ kind: 'draw', logits: 'logits', vocab: vocabSize });

  const widest = (of: (layer: ModelShape['layers'][number]) => number): number => Math.max(...layers.map(of));
  return {
    operations,
    weights,
    buffers: {
      x: { rows: 'rows', width: hidden },
      normed: { rows: 'rows', width: hidden },
      qkv: { rows: 'rows', width: widest(({ heads, kvHeads, headDim }) => (heads + 2 * kvHeads) * headDim) },
      attended: { rows: 'rows', width: widest(({ heads, headDim }) => heads * headDim) },
      gate_up: { rows: 'rows', width: widest(({ inner }) => 2 * inner) },
      gated: { rows: 'rows', width: widest(({ inner }) => inner) },
      last: { rows: 'samples', width: hidden },
      last_normed: { rows: 'samples', width: hidden },
      logits: { rows: 'samples', width: vocabSize },
    },
    kv: layers.map(({ kvHeads, headDim }) => ({ planes: [kvHeads * headDim, kvHeads * headDim] })),
    rope: Object.fromEntries(Object.entries(shape.ropes).map(([name, rope]) => [name, ropeTable(rope, numPositions)])),
  };
}

/** Angles in f32 as transformers computes them: inv_freq rounded, then position · inv_freq rounded. [positions, dim / 2] */
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
  return { cos, sin };
}

function matrix(inner: number, ...parts: readonly [string, number][]): WeightSpec {
  return {
    inner,
    outputs: parts.reduce((sum, [, outputs]) => sum + outputs, 0),
    parts: parts.map(([tensor, outputs]) => ({ tensor, outputs })),
  };
}

function vector(...parts: readonly [string, number][]): WeightSpec {
  return matrix(1, ...parts);
}

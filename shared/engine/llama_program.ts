/**
 * The Llama architecture as a program: runs once, at load, and emits operations over named buffers.
 *
 *   x ─► [ norm ─► qkv ─► rope_store ─► attention ─► o ─+► norm ─► gate_up ─► silu_mul ─► down ─+► ] × layers
 *                                       residual: x ────┘                      residual: x ─────┘
 *   then the sampled rows only: gather ─► norm ─► logits ─► candidates
 */
import type { Operation, Program, WeightSpec } from '../../kernels/device.ts';
import type { LlamaConfig } from '../model/model_folder.ts';
import { ModelError } from '../model/model_folder.ts';
import type { TensorInfo } from '../model/safetensors.ts';

export function llamaProgram(config: LlamaConfig, numPositions: number): Program {
  const { hidden, inner, heads, kvHeads, headDim, layers, epsilon, vocabSize } = config;
  const [qWidth, kvWidth] = [heads * headDim, kvHeads * headDim];
  const operations: Operation[] = [{ kind: 'embed', table: 'embed', out: 'x' }];
  const weights: Record<string, WeightSpec> = { embed: matrix(hidden, ['model.embed_tokens.weight', vocabSize]) };

  const norm = (x: string, tensor: string, out: string): void => {
    weights[tensor] = vector([tensor, hidden]);
    operations.push({ kind: 'rms_norm', x, weight: tensor, out, epsilon });
  };
  /** `parts` are module names and outputs; their weights, and biases when the model has them, are stacked. */
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

  for (let layer = 0; layer < layers; layer++) {
    const at = `model.layers.${layer}`;
    const { hasAttentionBias, hasMlpBias } = config;
    norm('x', `${at}.input_layernorm.weight`, 'normed');
    const qkv: [string, number][] = [
      [`${at}.self_attn.q_proj`, qWidth],
      [`${at}.self_attn.k_proj`, kvWidth],
      [`${at}.self_attn.v_proj`, kvWidth],
    ];
    linear('normed', `${at}.qkv`, hidden, qkv, hasAttentionBias, 'qkv', false);
    operations.push({ kind: 'rope_store', qkv: 'qkv', layer });
    operations.push({ kind: 'attention', qkv: 'qkv', out: 'attended', layer, scale: 1 / Math.sqrt(headDim) });
    linear('attended', `${at}.o`, qWidth, [[`${at}.self_attn.o_proj`, hidden]], hasAttentionBias, 'x', true);
    norm('x', `${at}.post_attention_layernorm.weight`, 'normed');
    const gateUp: [string, number][] = [
      [`${at}.mlp.gate_proj`, inner],
      [`${at}.mlp.up_proj`, inner],
    ];
    linear('normed', `${at}.gate_up`, hidden, gateUp, hasMlpBias, 'gate_up', false);
    operations.push({ kind: 'silu_mul', gateUp: 'gate_up', out: 'gated', inner });
    linear('gated', `${at}.down`, inner, [[`${at}.mlp.down_proj`, hidden]], hasMlpBias, 'x', true);
  }

  operations.push({ kind: 'gather_samples', x: 'x', out: 'last' });
  norm('last', 'model.norm.weight', 'last_normed');
  const head = config.isTied ? 'embed' : 'lm_head';
  if (!config.isTied) weights['lm_head'] = matrix(hidden, ['lm_head.weight', vocabSize]);
  operations.push({ kind: 'linear', x: 'last_normed', weight: head, out: 'logits', accumulate: false });
  operations.push({ kind: 'candidates', logits: 'logits', vocab: vocabSize });

  return {
    operations,
    weights,
    buffers: {
      x: { rows: 'rows', width: hidden },
      normed: { rows: 'rows', width: hidden },
      qkv: { rows: 'rows', width: qWidth + 2 * kvWidth },
      attended: { rows: 'rows', width: qWidth },
      gate_up: { rows: 'rows', width: 2 * inner },
      gated: { rows: 'rows', width: inner },
      last: { rows: 'samples', width: hidden },
      last_normed: { rows: 'samples', width: hidden },
      logits: { rows: 'samples', width: vocabSize },
    },
    attention: { layers, heads, kvHeads, headDim, ...ropeTables(config, numPositions) },
  };
}

/** Angles in f32 as transformers computes them: inv_freq rounded, then position · inv_freq rounded. [positions, head_dim/2] */
function ropeTables(config: LlamaConfig, numPositions: number): { ropeCos: Float32Array; ropeSin: Float32Array } {
  const half = config.headDim / 2;
  const ropeCos = new Float32Array(numPositions * half);
  const ropeSin = new Float32Array(numPositions * half);
  for (let i = 0; i < half; i++) {
    const frequency = Math.fround(1 / config.ropeTheta ** ((2 * i) / config.headDim));
    for (let position = 0; position < numPositions; position++) {
      const angle = Math.fround(position * frequency);
      ropeCos[position * half + i] = Math.cos(angle);
      ropeSin[position * half + i] = Math.sin(angle);
    }
  }
  return { ropeCos, ropeSin };
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

/** @throws ModelError when the file lacks a tensor of the program or has it in another shape. */
export function checkTensors(program: Program, tensors: ReadonlyMap<string, TensorInfo>, path: string): void {
  for (const { inner, parts } of Object.values(program.weights)) {
    for (const { tensor, outputs } of parts) {
      const info = tensors.get(tensor);
      if (!info) {
        throw new ModelError(`${path} has no tensor ${tensor} in f32, f16 or bf16, which config.json calls for`);
      }
      const want = inner === 1 ? [outputs] : [outputs, inner];
      if (info.shape.join() !== want.join()) {
        throw new ModelError(
          `${path}: ${tensor} is [${info.shape.join(', ')}], config.json makes it [${want.join(', ')}]`,
        );
      }
    }
  }
}

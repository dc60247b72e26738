/** What the configurations of pre-norm decoders have in common: Llama's fields, which others took over. */
import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { Activation, LayerShape, ModelShape } from '../../model/model_shape.ts';
import { ropeScaling } from './decoder_rope.ts';

const positive = z.int().positive();

const decoderSchema = z.looseObject({
  hidden_size: positive,
  intermediate_size: positive,
  num_hidden_layers: positive,
  num_attention_heads: positive,
  num_key_value_heads: positive.nullish(),
  head_dim: positive.nullish(),
  rms_norm_eps: z.number().positive(),
  rope_theta: z.number().positive().nullish(),
  rope_parameters: z.looseObject({ rope_theta: z.number().positive().nullish() }).nullish(),
  hidden_act: z.string(),
  tie_word_embeddings: z.boolean().nullish(),
});

const activations: Readonly<Record<string, Activation>> = { silu: 'silu', gelu_pytorch_tanh: 'gelu_tanh' };

type Biases = Pick<LayerShape, 'hasQkvBias' | 'hasOutputBias' | 'hasMlpBias'>;

/** A decoder whose layers differ in their windows at most. @throws ModelError */
export function decoderShape(config: ModelConfig, biases: Biases, windowOf: (layer: number) => number): ModelShape {
  const raw = config.read(decoderSchema);
  const activation = activations[raw.hidden_act] ?? refuse(config, `hidden_act ${JSON.stringify(raw.hidden_act)}`);
  const scaling = ropeScaling(config);
  const heads = raw.num_attention_heads;
  const kvHeads = raw.num_key_value_heads ?? heads;
  if (heads % kvHeads !== 0) refuse(config, `${heads} attention heads over ${kvHeads} KV heads`);
  const headDim = raw.head_dim ?? raw.hidden_size / heads;
  if (!Number.isInteger(headDim) || headDim % 2 !== 0) refuse(config, `head_dim ${headDim}`);
  const layer = { heads, kvHeads, headDim, rope: 'plain', inner: raw.intermediate_size, activation, ...biases };
  return {
    vocabSize: config.vocabSize,
    hidden: raw.hidden_size,
    maxPositions: config.maxPositions,
    epsilon: raw.rms_norm_eps,
    isTied: raw.tie_word_embeddings ?? false,
    layers: Array.from({ length: raw.num_hidden_layers }, (_, i) => ({ ...layer, window: windowOf(i) })),
    ropes: {
      plain: {
        ...{ theta: raw.rope_theta ?? raw.rope_parameters?.rope_theta ?? 10_000, dim: headDim },
        ...(scaling ? { scaling } : {}),
      },
    },
  };
}

/** Configuration fields that decoders share: Llama's, which other families adopted. */
import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { Activation, LayerShape, ModelShape } from '../../model/model_shape.ts';
import { ropeScaling, scaledPositions } from './decoder_rope.ts';
import { rotaryParameters } from './decoder_rotary.ts';

const positive = z.int().positive();

/** No model has as many. */
const MAX_LAYERS = 4_096;

const decoderSchema = z.looseObject({
  hidden_size: positive,
  intermediate_size: positive,
  num_hidden_layers: positive.max(MAX_LAYERS),
  num_attention_heads: positive,
  num_key_value_heads: positive.nullish(),
  head_dim: positive.nullish(),
  rms_norm_eps: z.number().positive(),
  hidden_act: z.string().nullish(),
  hidden_activation: z.string().nullish(),
  attention_bias: z.boolean().nullish(),
  mlp_bias: z.boolean().nullish(),
  tie_word_embeddings: z.boolean().nullish(),
});

const activations: Readonly<Record<string, Activation>> = { silu: 'silu', gelu_pytorch_tanh: 'gelu_tanh' };

/** Differences of a family from Llama; an absent field means Llama's behaviour. */
export interface DecoderTraits {
  /** Fields that differ from Llama's in every layer. */
  readonly layer?: Partial<
    Pick<LayerShape, 'hasQkvBias' | 'hasOutputBias' | 'hasMlpBias' | 'scoreScale' | 'scoreCap' | 'qkNorm' | 'norms'>
  >;
  readonly model?: Partial<
    Pick<
      ModelShape,
      'isTied' | 'hasNormOffset' | 'embeddingScale' | 'branchScale' | 'logitScale' | 'logitCap' | 'ropes'
    >
  >;
  /** Activation used when the configuration names none; default `silu`, like Llama. */
  readonly activation?: string;
  /** Returns the width and experts of layer i when the layer is a mixture of experts, undefined when it is dense. */
  readonly mixtureOf?: (layer: number) => Pick<LayerShape, 'inner' | 'experts'> | undefined;
  /** Tokens that layer i sees; 0: all. */
  readonly windowOf?: (layer: number) => number;
  /** Base of the rotary table when the configuration names none; default 10,000. */
  readonly theta?: number;
  /** The rotary table of layer i. */
  readonly ropeOf?: (layer: number) => string;
  /** Rotary parameters differ by kinds of layers: `model.ropes` has the tables of those with a window. */
  readonly hasRopesByLayers?: boolean;
  /** With linear scaling, too, `max_position_embeddings` names the whole context. */
  readonly isLinearWhole?: boolean;
}

/**
 * Returns the shape of a decoder from its configuration and the traits of its family. @throws ModelError for values that this version
 * does not support.
 */
export function decoderShape(config: ModelConfig, traits: DecoderTraits = {}): ModelShape {
  const raw = config.read(decoderSchema);
  const named = raw.hidden_activation ?? raw.hidden_act ?? traits.activation ?? 'silu';
  const activation = activations[named] ?? refuse(config, `hidden_act ${JSON.stringify(named)}`);
  const heads = raw.num_attention_heads;
  const kvHeads = raw.num_key_value_heads ?? heads;
  if (heads % kvHeads !== 0) refuse(config, `${heads} attention heads over ${kvHeads} KV heads`);
  const headDim = raw.head_dim ?? raw.hidden_size / heads;
  if (!Number.isInteger(headDim) || headDim % 2 !== 0) refuse(config, `head_dim ${headDim}`);
  const rope = rotaryParameters(config, 'full_attention', { isByLayers: traits.hasRopesByLayers ?? false });
  const partial = rope.partial_rotary_factor ?? 1;
  const dim = Math.floor(headDim * partial);
  // Kernels process pairs of neighbours of each half, so a half must have an even number of values.
  if (dim < headDim && dim % 4 !== 0) refuse(config, `partial_rotary_factor ${partial}`);
  const scaling = ropeScaling(config, rope, dim);
  const isWhole = traits.isLinearWhole && scaling?.kind === 'linear';
  const { windowOf = () => 0, ropeOf = () => 'plain', mixtureOf = () => undefined } = traits;
  const layer = {
    ...{ heads, kvHeads, headDim, inner: raw.intermediate_size, experts: null, activation },
    ...({ scoreScale: 1 / Math.sqrt(headDim), scoreCap: 0, qkNorm: 'none', norms: 'before' } as const),
    ...{ hasQkvBias: raw.attention_bias ?? false, hasOutputBias: raw.attention_bias ?? false },
    ...{ hasMlpBias: raw.mlp_bias ?? false },
    ...traits.layer,
  };
  return {
    vocabSize: config.vocabSize,
    hidden: raw.hidden_size,
    maxPositions: isWhole ? config.maxPositions : scaledPositions(config.maxPositions, scaling),
    epsilon: raw.rms_norm_eps,
    isTied: raw.tie_word_embeddings ?? false,
    ...{ hasNormOffset: false, embeddingScale: 1, branchScale: 1, logitScale: 1, logitCap: 0 },
    layers: Array.from({ length: raw.num_hidden_layers }, (_, i) => ({
      ...layer,
      ...mixtureOf(i),
      window: windowOf(i),
      rope: ropeOf(i),
    })),
    ...traits.model,
    ropes: {
      plain: {
        ...{ theta: rope.rope_theta ?? traits.theta ?? 10_000, dim },
        ...(scaling ? { scaling } : {}),
      },
      ...traits.model?.ropes,
    },
  };
}

/** Configuration fields that decoders share: Llama's, which other families adopted. */
import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { Activation, LayerShape, ModelShape, RopeScaling, RopeShape } from '../../model/model_shape.ts';
import { ropeShape, scaledPositions } from './decoder_rope.ts';
import { rotaryParameters } from './decoder_rotary.ts';

const positive = z.int().positive();

/** No model has as many. */
const MAX_LAYERS = 4_096;

const decoderSchema = z.looseObject({
  hidden_size: positive,
  /** Absent where all layers are mixtures. */
  intermediate_size: positive.nullish(),
  num_hidden_layers: positive.max(MAX_LAYERS),
  num_attention_heads: positive,
  num_key_value_heads: positive.nullish(),
  head_dim: positive.nullish(),
  /** Absent where the family has another name for it. */
  rms_norm_eps: z.number().positive().nullish(),
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
    Pick<
      LayerShape,
      | ('hasQkvBias' | 'hasOutputBias' | 'hasMlpBias' | 'hasOutputGate' | 'hasSinks')
      | ('scoreScale' | 'scoreCap' | 'qkNorm' | 'norms' | 'latent')
    >
  >;
  readonly model?: Partial<
    Pick<
      ModelShape,
      | 'isTied'
      | 'epsilon'
      | 'hasNormOffset'
      | 'embeddingScale'
      | 'branchScale'
      | 'logitScale'
      | 'logitCap'
      | 'ropes'
      | 'layerInputs'
    >
  >;
  /** Activation used when the configuration names none; default `silu`, like Llama. */
  readonly activation?: string;
  /** Returns the width, experts and gate of layer i when the layer is a mixture of experts, undefined when it is dense. */
  readonly mixtureOf?: (layer: number) => Pick<LayerShape, 'inner' | 'experts' | 'clamp'> | undefined;
  /** Returns what differs in layer i from the configuration's common values. */
  readonly layerOf?: (
    layer: number,
  ) => Partial<
    Pick<
      LayerShape,
      'kvHeads' | 'headDim' | 'inner' | 'kv' | 'hasScalar' | 'delta' | 'convolution' | 'stateSpace' | 'parallelMixture'
    >
  >;
  /** Tokens that layer i sees; 0: all. */
  readonly windowOf?: (layer: number) => number;
  /** Values of a head, whatever the configuration says. */
  readonly headDim?: number;
  /** Values of a head that are rotated, where neither `partial_rotary_factor` nor the size of a head says it. */
  readonly rotaryDim?: number;
  /** Base of the rotary table when the configuration names none; default 10,000. */
  readonly theta?: number;
  /** The rotary table of layer i. */
  readonly ropeOf?: (layer: number) => string;
  /** Rotary parameters differ by kinds of layers: `model.ropes` has the tables of those with a window. */
  readonly hasRopesByLayers?: boolean;
  /** Rotary parameters may have `llama_4_scaling_beta`: q grows with the position. */
  readonly hasQueryScale?: boolean;
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
  const headDim = traits.headDim ?? raw.head_dim ?? raw.hidden_size / heads;
  if (!Number.isInteger(headDim) || headDim % 2 !== 0) refuse(config, `head_dim ${headDim}`);
  const rope = rotaryParameters(config, 'full_attention', { isByLayers: traits.hasRopesByLayers ?? false });
  const plain = ropeShape(config, rope, headDim, traits.theta ?? 10_000, traits.rotaryDim);
  const { scaling } = plain;
  const queryScale = queryScaleOf(config, rope.llama_4_scaling_beta, scaling, traits);
  const isWhole = traits.isLinearWhole && scaling?.kind === 'linear';
  const { windowOf = () => 0, ropeOf = () => 'plain', mixtureOf = () => undefined } = traits;
  const layer: Omit<LayerShape, 'window' | 'rope'> = {
    heads,
    kvHeads,
    headDim,
    inner: raw.intermediate_size ?? 0,
    experts: null,
    activation,
    scoreScale: 1 / Math.sqrt(headDim),
    scoreCap: 0,
    qkNorm: 'none',
    norms: 'before',
    hasQkvBias: raw.attention_bias ?? false,
    hasOutputBias: raw.attention_bias ?? false,
    hasMlpBias: raw.mlp_bias ?? false,
    ...traits.layer,
  };
  return {
    vocabSize: config.vocabSize,
    hidden: raw.hidden_size,
    maxPositions: isWhole ? config.maxPositions : scaledPositions(config.maxPositions, scaling),
    epsilon: raw.rms_norm_eps ?? traits.model?.epsilon ?? refuse(config, 'no rms_norm_eps'),
    isTied: raw.tie_word_embeddings ?? false,
    hasNormOffset: false,
    embeddingScale: 1,
    branchScale: 1,
    logitScale: 1,
    logitCap: 0,
    layers: Array.from({ length: raw.num_hidden_layers }, (_, i) => {
      const own = { ...layer, ...mixtureOf(i), ...traits.layerOf?.(i), window: windowOf(i), rope: ropeOf(i) };
      return own.inner > 0 ? own : refuse(config, 'no intermediate_size');
    }),
    ...traits.model,
    ropes: {
      plain: { ...plain, ...(queryScale ? { queryScale } : {}) },
      ...traits.model?.ropes,
    },
  };
}

/** Returns how q grows with the position; undefined when it does not. @throws ModelError for a model whose q cannot */
function queryScaleOf(
  config: ModelConfig,
  beta: number | undefined,
  scaling: RopeScaling | undefined,
  { hasQueryScale }: DecoderTraits,
): RopeShape['queryScale'] {
  if (beta === undefined) return undefined;
  if (!hasQueryScale || scaling?.kind !== 'yarn') return refuse(config, 'llama_4_scaling_beta');
  return { beta, originalPositions: scaling.originalPositions };
}

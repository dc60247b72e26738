import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { LayerShape, StateSpaceShape } from '../../model/model_shape.ts';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { multipliersOf } from './decoder_multipliers.ts';

const positive = z.int().positive();

/** A bound as JSON has it: infinity is a string, or an object that transformers writes. */
const bound = z.union([z.number(), z.literal('Infinity'), z.looseObject({ __float__: z.literal('Infinity') })]);

const schema = z.looseObject({
  num_hidden_layers: positive,
  hidden_size: positive,
  num_attention_heads: positive,
  head_dim: positive.nullish(),
  layer_types: z.array(z.string()).nullish(),
  position_embedding_type: z.string().nullish(),
  intermediate_size: positive.nullish(),
  shared_intermediate_size: positive.nullish(),
  num_local_experts: z.int().nonnegative().nullish(),
  num_experts_per_tok: z.int().nonnegative().nullish(),
  mamba_n_heads: positive.nullish(),
  mamba_n_groups: positive.nullish(),
  mamba_d_head: z.union([positive, z.literal('auto')]).nullish(),
  mamba_d_state: positive.nullish(),
  mamba_d_conv: positive.nullish(),
  mamba_expand: positive.nullish(),
  mamba_conv_bias: z.boolean().nullish(),
  mamba_proj_bias: z.boolean().nullish(),
  time_step_limit: z.tuple([z.number(), bound]).nullish(),
});

type Raw = z.infer<typeof schema>;

/** Values that transformers takes where the configuration has no such key. */
const DEFAULTS = { heads: 128, groups: 1, stateDim: 256, taps: 4, expand: 2, experts: 8, perToken: 2, shared: 1_024 };

/** Layer types of published configurations, then of those that transformers writes. */
const isRecurrent: Readonly<Record<string, boolean>> = {
  mamba: true,
  attention: false,
  linear_attention: true,
  full_attention: false,
};

const mixture = {
  module: 'block_sparse_moe',
  router: 'router.layer',
  gate: 'gate_proj',
  up: 'up_proj',
  down: 'down_proj',
  shared: 'shared_mlp',
};

const renamed = {
  'mlp.gate_up_proj': 'shared_mlp.input_linear',
  'mlp.down_proj': 'shared_mlp.output_linear',
  'block_sparse_moe.shared_mlp.gate_up_proj': 'shared_mlp.input_linear',
  'block_sparse_moe.shared_mlp.down_proj': 'shared_mlp.output_linear',
};

/** Returns for each layer whether it is recurrent. @throws ModelError for another type of layer, or a model without attention */
function recurrentLayers(config: ModelConfig, { num_hidden_layers: numLayers, layer_types: types }: Raw): boolean[] {
  if (types && types.length !== numLayers) refuse(config, `${types.length} layer_types for ${numLayers} layers`);
  const found = Array.from({ length: numLayers }, (_, layer) => {
    const type = types?.[layer] ?? 'mamba';
    return isRecurrent[type] ?? refuse(config, `a layer of type ${type}`);
  });
  return found.includes(false) ? found : refuse(config, 'no layer of type attention');
}

/** Returns the recurrence of all recurrent layers. @throws ModelError for heads or steps that do not fit together */
function stateSpaceOf(config: ModelConfig, raw: Raw): StateSpaceShape {
  const heads = raw.mamba_n_heads ?? DEFAULTS.heads;
  const groups = raw.mamba_n_groups ?? DEFAULTS.groups;
  const taps = raw.mamba_d_conv ?? DEFAULTS.taps;
  const inner = (raw.mamba_expand ?? DEFAULTS.expand) * raw.hidden_size;
  const { mamba_d_head: size, time_step_limit: limit } = raw;
  const headDim = typeof size === 'number' ? size : inner / heads;
  if (headDim * heads !== inner || !Number.isInteger(headDim))
    refuse(config, `${heads} heads of mamba_d_head ${headDim} for ${inner} values`);
  if (heads % groups !== 0) refuse(config, `${heads} mamba heads in ${groups} groups`);
  if (taps < 2 || taps > 4) refuse(config, `mamba_d_conv ${taps}`);
  return {
    heads,
    groups,
    headDim,
    stateDim: raw.mamba_d_state ?? DEFAULTS.stateDim,
    taps,
    hasConvolutionBias: raw.mamba_conv_bias ?? true,
    hasBias: raw.mamba_proj_bias ?? false,
    ...(limit ? stepsOf(config, limit) : {}),
  };
}

function stepsOf(
  config: ModelConfig,
  [least, stored]: NonNullable<Raw['time_step_limit']>,
): Pick<StateSpaceShape, 'steps'> {
  const most = typeof stored === 'number' ? stored : Infinity;
  if (least > most) refuse(config, `time_step_limit ${least} to ${most}`);
  if (least <= 0 && most === Infinity) return {};
  return { steps: { least, ...(most === Infinity ? {} : { most }) } };
}

/** Returns the MLP of every layer, which is the shared one alone where there are no experts. */
function mlpOf(config: ModelConfig, raw: Raw): Pick<LayerShape, 'inner' | 'experts'> {
  const count = raw.num_local_experts ?? DEFAULTS.experts;
  const shared = raw.shared_intermediate_size ?? DEFAULTS.shared;
  if (count === 0) return { inner: shared, experts: null };
  const perToken = raw.num_experts_per_tok ?? DEFAULTS.perToken;
  if (perToken < 1 || perToken > count) refuse(config, `${perToken} of ${count} experts for each token`);
  const experts = { count, perToken, isNormalised: true, shared: { inner: shared } };
  return { inner: raw.intermediate_size ?? refuse(config, 'no intermediate_size'), experts };
}

/** Returns the rotary table of every layer: none has one unless the configuration asks for it. */
function ropeOf(config: ModelConfig, { position_embedding_type: type }: Raw): 'plain' | 'none' {
  if (type === 'rope') return 'plain';
  return (type ?? 'nope') === 'nope' ? 'none' : refuse(config, `position_embedding_type ${type}`);
}

/**
 * IBM's Granite 4: state spaces of Mamba2, attention in some layers or in all, often without rotation, and an MLP, alone or with a
 * mixture of experts.
 */
export const graniteHybrid: Architecture = {
  modelTypes: ['granitemoehybrid'],
  shape: (config) => {
    const raw = config.read(schema);
    const recurrent = recurrentLayers(config, raw);
    const mlp = mlpOf(config, raw);
    const rope = ropeOf(config, raw);
    const stateSpace = recurrent.includes(true) ? stateSpaceOf(config, raw) : undefined;
    const { layer, model } = multipliersOf(config);
    const dim = raw.head_dim ?? raw.hidden_size / raw.num_attention_heads;
    return decoderShape(config, {
      layer,
      model: { ...model, ...(rope === 'none' ? { ropes: { none: { theta: 0, dim } } } : {}) },
      ropeOf: () => rope,
      mixtureOf: () => mlp,
      layerOf: (index) => (recurrent[index] && stateSpace ? { stateSpace } : {}),
    });
  },
  program: (shape, numPositions) => decoderProgram(shape, numPositions, { mixture, renamed, fused: 'mlp' }),
};

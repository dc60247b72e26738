/** Reads from configurations the mixtures of DeepSeek-V3 and of the families that took them over: sigmoid scores, groups, shared experts. */
import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { LayerShape } from '../../model/model_shape.ts';

const positive = z.int().positive();
const count = z.int().nonnegative();

const schema = z.looseObject({
  num_hidden_layers: positive,
  moe_intermediate_size: positive,
  n_routed_experts: positive,
  n_shared_experts: count.nullish(),
  num_experts_per_tok: positive,
  n_group: positive.nullish(),
  topk_group: positive.nullish(),
  norm_topk_prob: z.boolean().nullish(),
  routed_scaling_factor: z.number().positive().nullish(),
  first_k_dense_replace: count.nullish(),
  mlp_layer_types: z.array(z.string()).nullish(),
  moe_layer_freq: positive.nullish(),
  scoring_func: z.string().nullish(),
  topk_method: z.string().nullish(),
});

/** The only rule of choice that is computed: experts of the best groups, by scores with the correction. */
const TOPK_METHOD = 'noaux_tc';

/** Tensor names of these mixtures. */
export const groupedMixture = {
  module: 'mlp',
  router: 'gate',
  gate: 'gate_proj',
  up: 'up_proj',
  down: 'down_proj',
  bias: 'gate.e_score_correction_bias',
  shared: 'shared_experts',
};

/**
 * Returns for each layer the width and experts of its mixture, or undefined where the layer is dense: the first
 * `first_k_dense_replace`, or those that `mlp_layer_types` names. @throws ModelError for values that this version does not support.
 */
export function groupedMixtures(
  config: ModelConfig,
): (layer: number) => Pick<LayerShape, 'inner' | 'experts'> | undefined {
  const raw = config.read(schema);
  const { n_routed_experts: experts, num_experts_per_tok: perToken, moe_intermediate_size: inner } = raw;
  const { scoring_func: scoring = 'sigmoid', topk_method: method = TOPK_METHOD } = raw;
  if (scoring !== 'sigmoid') refuse(config, `scoring_func ${JSON.stringify(scoring)}`);
  if (method !== TOPK_METHOD) refuse(config, `topk_method ${JSON.stringify(method)}`);
  if ((raw.moe_layer_freq ?? 1) !== 1) refuse(config, `moe_layer_freq ${raw.moe_layer_freq}`);
  const groups = raw.n_group ?? 1;
  const groupsPerToken = raw.topk_group ?? groups;
  if (experts % groups !== 0) refuse(config, `${experts} n_routed_experts in ${groups} n_group`);
  if (groupsPerToken > groups) refuse(config, `topk_group ${groupsPerToken} of ${groups} n_group`);
  const open = (experts / groups) * groupsPerToken;
  if (perToken > open) refuse(config, `${perToken} of ${open} experts for each token`);
  const shared = (raw.n_shared_experts ?? 0) * inner;
  const mixture = {
    inner,
    experts: {
      count: experts,
      perToken,
      isNormalised: raw.norm_topk_prob ?? true,
      sigmoid: { hasBias: true, groups, groupsPerToken, scale: raw.routed_scaling_factor ?? 1 },
      ...(shared > 0 ? { shared: { inner: shared } } : {}),
    },
  };
  const isDense = denseLayers(config);
  return (layer) => (isDense(layer) ? undefined : mixture);
}

function denseLayers(config: ModelConfig): (layer: number) => boolean {
  const { num_hidden_layers: numLayers, mlp_layer_types: types, first_k_dense_replace: first } = config.read(schema);
  if (!types) {
    const numDense = first ?? refuse(config, 'neither first_k_dense_replace nor mlp_layer_types');
    return (layer) => layer < numDense;
  }
  if (types.length !== numLayers) refuse(config, `${types.length} mlp_layer_types for ${numLayers} layers`);
  for (const type of types)
    if (type !== 'dense' && type !== 'sparse') refuse(config, `an MLP of type ${type} in mlp_layer_types`);
  return (layer) => types[layer] === 'dense';
}

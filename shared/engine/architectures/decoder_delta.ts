/** Reads from configurations which layers of a decoder are gated delta nets, and their heads. */
import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { DeltaShape } from '../../model/model_shape.ts';

const positive = z.int().positive();

const schema = z.looseObject({
  num_hidden_layers: positive,
  layer_types: z.array(z.string()).nullish(),
  full_attention_interval: positive.nullish(),
  linear_conv_kernel_dim: positive,
  linear_num_key_heads: positive,
  linear_num_value_heads: positive,
  linear_key_head_dim: positive,
  linear_value_head_dim: positive,
  /** Written for GGUF files only: value heads are tiled; b and a are fused by key heads, q, k, v and z are not. */
  linear_tensors: z.enum(['tiled', 'fused_gates']).nullish(),
});

/** Every so many layers one has attention where a configuration says nothing else, as transformers has it. */
const DEFAULT_INTERVAL = 4;

const isLinear: Readonly<Record<string, boolean>> = { linear_attention: true, full_attention: false };

/**
 * Returns the recurrence of each layer, nothing for layers with attention: from `layer_types`, else by `full_attention_interval`.
 * `isFused`: the family's tensors are fused by key heads.
 * @throws ModelError for an unknown layer type, or heads that do not fit together.
 */
export function deltaLayers(config: ModelConfig, isFused = false): { readonly delta?: DeltaShape }[] {
  const raw = config.read(schema);
  const { num_hidden_layers: numLayers, layer_types: types } = raw;
  const { linear_num_key_heads: keyHeads, linear_num_value_heads: valueHeads, linear_conv_kernel_dim: taps } = raw;
  if (valueHeads % keyHeads !== 0) refuse(config, `${valueHeads} linear value heads over ${keyHeads} key heads`);
  if (taps < 2 || taps > 4) refuse(config, `linear_conv_kernel_dim ${taps}`);
  if (types && types.length !== numLayers) refuse(config, `${types.length} layer_types for ${numLayers} layers`);
  const interval = raw.full_attention_interval ?? DEFAULT_INTERVAL;
  const fused = raw.linear_tensors === 'fused_gates' ? 'gates' : 'all';
  const delta: DeltaShape = {
    keyHeads,
    valueHeads,
    keyDim: raw.linear_key_head_dim,
    valueDim: raw.linear_value_head_dim,
    taps,
    ...(isFused ? { fused } : {}),
    ...(raw.linear_tensors === 'tiled' ? { isTiled: true } : {}),
  };
  return Array.from({ length: numLayers }, (_, layer) => {
    const type = types?.[layer] ?? ((layer + 1) % interval === 0 ? 'full_attention' : 'linear_attention');
    return (isLinear[type] ?? refuse(config, `a layer of type ${type}`)) ? { delta } : {};
  });
}

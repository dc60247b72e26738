/**
 * Tensors of models with latent attention, of mixtures with shared experts and of Gemma 4 as llama.cpp's converter writes them into a GGUF
 * file (conversion/deepseek.py, glm.py, minimax.py and gemma.py).
 */

/** A tensor in f32; `dims` innermost first. */
interface Converted {
  readonly name: string;
  readonly values: Float32Array;
  readonly dims: readonly number[];
}

/** Names by ours after the layer. */
const latentNames: Readonly<Record<string, string>> = {
  'self_attn.q_a_proj.weight': 'attn_q_a.weight',
  'self_attn.q_a_layernorm.weight': 'attn_q_a_norm.weight',
  'self_attn.q_b_proj.weight': 'attn_q_b.weight',
  'self_attn.kv_a_proj_with_mqa.weight': 'attn_kv_a_mqa.weight',
  'self_attn.kv_a_layernorm.weight': 'attn_kv_a_norm.weight',
  'self_attn.kv_b_proj.weight': 'attn_kv_b.weight',
  'mlp.gate.e_score_correction_bias': 'exp_probs_b.bias',
  'block_sparse_moe.e_score_correction_bias': 'exp_probs_b.bias',
  'mlp.shared_experts.gate_proj.weight': 'ffn_gate_shexp.weight',
  'mlp.shared_experts.up_proj.weight': 'ffn_up_shexp.weight',
  'mlp.shared_experts.down_proj.weight': 'ffn_down_shexp.weight',
};

const gemma4Names: Readonly<Record<string, string>> = {
  layer_scalar: 'layer_output_scale.weight',
  'router.proj.weight': 'ffn_gate_inp.weight',
  'router.scale': 'ffn_gate_inp.scale',
  'router.per_expert_scale': 'ffn_down_exps.scale',
  'post_feedforward_layernorm_1.weight': 'post_ffw_norm_1.weight',
  'post_feedforward_layernorm_2.weight': 'post_ffw_norm_2.weight',
  'pre_feedforward_layernorm_2.weight': 'pre_ffw_norm_2.weight',
  'per_layer_input_gate.weight': 'inp_gate.weight',
  'per_layer_projection.weight': 'proj.weight',
  'post_per_layer_input_norm.weight': 'post_norm.weight',
};

const gemma4Ends: Readonly<Record<string, string>> = {
  'model.embed_tokens_per_layer.weight': 'per_layer_token_embd.weight',
  'model.per_layer_model_projection.weight': 'per_layer_model_proj.weight',
  'model.per_layer_projection_norm.weight': 'per_layer_proj_norm.weight',
};

const LAYER = /^model\.layers\.(\d+)\.(.*)$/;

/** Returns the tensors of the file for a tensor that only Gemma 4 has, undefined for the others. */
export function ofGemma4(tensor: string, values: Float32Array, shape: readonly number[]): Converted[] | undefined {
  const [, layer, path = ''] = LAYER.exec(tensor) ?? [];
  // The experts of a layer are written from their single matrices.
  if (/^experts\.(gate_up|down)_proj$/.test(path)) return [];
  const name = gemma4Ends[tensor] ?? (gemma4Names[path] && `blk.${layer}.${gemma4Names[path]}`);
  return name === undefined ? undefined : [{ name, values, dims: shape.toReversed() }];
}

/**
 * Returns the tensors of the file for one of latent attention, shared experts or scores' corrections, undefined for the others. `config`:
 * sizes of heads, by which keys and values are divided; undefined: they are not.
 */
export function ofLatent(
  tensor: string,
  values: Float32Array,
  shape: readonly number[],
  architecture: string,
  config: Readonly<Record<string, unknown>> | undefined,
): Converted[] | undefined {
  const [, layer, path = ''] = LAYER.exec(tensor) ?? [];
  // The file has no biases of these.
  if (architecture === 'deepseek2' && /_proj(_with_mqa)?\.bias$/.test(path)) return [];
  if (architecture === 'deepseek2' && path === 'self_attn.q_proj.weight')
    return [{ name: `blk.${layer}.attn_q.weight`, values, dims: shape.toReversed() }];
  if (path === 'self_attn.kv_b_proj.weight' && config) return absorbed(`blk.${layer}`, values, config);
  const name = latentNames[path];
  return name === undefined ? undefined : [{ name: `blk.${layer}.${name}`, values, dims: shape.toReversed() }];
}

/** Divides [heads][keys, then values][rank] into keys, transposed, and values. */
function absorbed(at: string, values: Float32Array, config: Readonly<Record<string, unknown>>): Converted[] {
  const of = (key: string): number => Number(config[key]);
  const [heads, rank] = [of('num_attention_heads'), of('kv_lora_rank')];
  const [keyDim, valueDim] = [of('qk_nope_head_dim'), of('v_head_dim')];
  const keys = new Float32Array(heads * rank * keyDim);
  const own = new Float32Array(heads * valueDim * rank);
  for (let head = 0; head < heads; head++) {
    const first = head * (keyDim + valueDim) * rank;
    for (let row = 0; row < keyDim; row++)
      for (let i = 0; i < rank; i++) keys[(head * rank + i) * keyDim + row] = values[first + row * rank + i]!;
    const start = first + keyDim * rank;
    own.set(values.subarray(start, start + valueDim * rank), head * valueDim * rank);
  }
  return [
    { name: `${at}.attn_k_b.weight`, values: keys, dims: [keyDim, rank, heads] },
    { name: `${at}.attn_v_b.weight`, values: own, dims: [rank, valueDim, heads] },
  ];
}

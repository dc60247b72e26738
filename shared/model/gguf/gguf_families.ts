/** Architectures of GGUF files: how their tensor names and model types correspond to Hugging Face's. */

/** Name of a tensor in a GGUF file, and how its rows differ from Hugging Face's. */
export interface TensorLocation {
  /** Without `.weight` or `.bias`. */
  readonly name: string;
  /** Index of the expert whose rows are meant, where a tensor holds all experts of a layer, one after the other. */
  readonly expert?: number;
  /** Where a file without a tensor `name` has the expert: among the gates (half 0) or the ups (half 1) of one tensor for both. */
  readonly fused?: { readonly name: string; readonly half: 0 | 1 };
  /** Whether the tensor has a matrix for each head, read as one matrix of all their rows. */
  readonly isStacked?: boolean;
  /** Set where the rows of each head are interleaved (0, half, 1, half + 1, ...): whether they are heads of q or of k. */
  readonly heads?: 'q' | 'k';
  /** Number that the file has added to every value, to be subtracted. */
  readonly offset?: number;
  /** Hugging Face's name of the tensor is that of the module, without `.weight`. */
  readonly isBare?: boolean;
  /** Whether `name` is the whole name, and the module's name that of a tensor, both without `.weight` or `.bias` after them. */
  readonly isWhole?: boolean;
  /** Whether the file has -e^x in place of each value x. */
  readonly isNegativeExponential?: boolean;
  /** Whether the file's vector is the only row of a matrix. */
  readonly isRow?: boolean;
}

/** Architecture of a GGUF file, and how its modules correspond to Hugging Face's. */
export interface GgufFamily {
  /** `general.architecture` */
  readonly name: string;
  readonly modelType: string;
  /** Whether rows of q and k are permuted for a rotation of neighbouring values. */
  readonly isInterleaved?: boolean;
  /** Norms are stored with the 1 that the model adds to them. */
  readonly hasWholeNorms?: boolean;
  /** Modules before and after the layers that not every family has: Hugging Face's name to the file's. */
  readonly ends?: Readonly<Record<string, string>>;
  /** Modules of a layer: Hugging Face's name to the file's. */
  readonly modules: Readonly<Record<string, string>>;
  /** Tensors of a layer whose names have no `.weight` or `.bias` in Hugging Face's models. */
  readonly vectors?: Readonly<Record<string, Omit<TensorLocation, 'isWhole'>>>;
  /** Modules of the experts: in Hugging Face's models one per expert under `path`, in the file one tensor for all experts. */
  readonly experts?: { readonly path: string; readonly modules: Readonly<Record<string, string>> };
}

const attention = {
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
};
const gated = { 'mlp.gate_proj': 'ffn_gate', 'mlp.up_proj': 'ffn_up', 'mlp.down_proj': 'ffn_down' };
const normsBefore = { input_layernorm: 'attn_norm', post_attention_layernorm: 'ffn_norm' };
const normsBoth = {
  input_layernorm: 'attn_norm',
  post_attention_layernorm: 'post_attention_norm',
  pre_feedforward_layernorm: 'ffn_norm',
  post_feedforward_layernorm: 'post_ffw_norm',
};
const qkNorms = { 'self_attn.q_norm': 'attn_q_norm', 'self_attn.k_norm': 'attn_k_norm' };
const plain = { ...attention, ...gated, ...normsBefore };

/** Gated delta nets, and norms and attention of the layers between them. */
const hybrid = {
  ...attention,
  ...qkNorms,
  input_layernorm: 'attn_norm',
  post_attention_layernorm: 'post_attention_norm',
  'linear_attn.in_proj_qkv': 'attn_qkv',
  'linear_attn.in_proj_z': 'attn_gate',
  'linear_attn.conv1d': 'ssm_conv1d',
  'linear_attn.norm': 'ssm_norm',
  'linear_attn.out_proj': 'ssm_out',
};
const hybridVectors = {
  'linear_attn.A_log': { name: 'ssm_a', isNegativeExponential: true },
  'linear_attn.dt_bias': { name: 'ssm_dt.bias' },
  'mlp.shared_expert_gate.weight': { name: 'ffn_gate_inp_shexp.weight', isRow: true },
};
const factors = { 'linear_attn.in_proj_b': 'ssm_beta', 'linear_attn.in_proj_a': 'ssm_alpha' };
const sharedMixture = {
  modules: {
    'mlp.gate': 'ffn_gate_inp',
    'mlp.shared_expert.gate_proj': 'ffn_gate_shexp',
    'mlp.shared_expert.up_proj': 'ffn_up_shexp',
    'mlp.shared_expert.down_proj': 'ffn_down_shexp',
  },
  experts: {
    path: 'mlp.experts',
    modules: { gate_proj: 'ffn_gate_exps', up_proj: 'ffn_up_exps', down_proj: 'ffn_down_exps' },
  },
};
const mixtralExperts = {
  path: 'block_sparse_moe.experts',
  modules: { w1: 'ffn_gate_exps', w3: 'ffn_up_exps', w2: 'ffn_down_exps' },
};

const mixtral: GgufFamily = {
  name: 'llama',
  modelType: 'mixtral',
  isInterleaved: true,
  modules: { ...attention, ...normsBefore, 'block_sparse_moe.gate': 'ffn_gate_inp' },
  experts: mixtralExperts,
};

/** DeepSeek-V3's mixtures, of which the first layers have none. */
const groupedMixture = {
  modules: {
    ...gated,
    'mlp.gate': 'ffn_gate_inp',
    'mlp.shared_experts.gate_proj': 'ffn_gate_shexp',
    'mlp.shared_experts.up_proj': 'ffn_up_shexp',
    'mlp.shared_experts.down_proj': 'ffn_down_shexp',
  },
  vectors: { 'mlp.gate.e_score_correction_bias': { name: 'exp_probs_b.bias' } },
  experts: sharedMixture.experts,
};

const latent = {
  'self_attn.q_proj': 'attn_q',
  'self_attn.q_a_proj': 'attn_q_a',
  'self_attn.q_a_layernorm': 'attn_q_a_norm',
  'self_attn.q_b_proj': 'attn_q_b',
  'self_attn.kv_a_proj_with_mqa': 'attn_kv_a_mqa',
  'self_attn.kv_a_layernorm': 'attn_kv_a_norm',
  'self_attn.kv_b_proj': 'attn_kv_b',
  'self_attn.k_b_proj': 'attn_k_b',
  'self_attn.v_b_proj': 'attn_v_b',
  'self_attn.o_proj': 'attn_output',
};

const gemma4: GgufFamily = {
  name: 'gemma4',
  modelType: 'gemma4_text',
  ends: {
    'model.embed_tokens_per_layer': 'per_layer_token_embd',
    'model.per_layer_model_projection': 'per_layer_model_proj',
    'model.per_layer_projection_norm': 'per_layer_proj_norm',
  },
  modules: {
    ...attention,
    ...gated,
    ...normsBoth,
    ...qkNorms,
    'router.proj': 'ffn_gate_inp',
    pre_feedforward_layernorm_2: 'pre_ffw_norm_2',
    post_feedforward_layernorm_1: 'post_ffw_norm_1',
    post_feedforward_layernorm_2: 'post_ffw_norm_2',
    per_layer_input_gate: 'inp_gate',
    per_layer_projection: 'proj',
    post_per_layer_input_norm: 'post_norm',
  },
  vectors: {
    layer_scalar: { name: 'layer_output_scale.weight' },
    'router.scale': { name: 'ffn_gate_inp.scale' },
    'router.per_expert_scale': { name: 'ffn_down_exps.scale' },
  },
  experts: { ...sharedMixture.experts, path: 'experts' },
};

const families: readonly GgufFamily[] = [
  { name: 'llama', modelType: 'llama', isInterleaved: true, modules: plain },
  { name: 'qwen2', modelType: 'qwen2', modules: plain },
  { name: 'qwen3', modelType: 'qwen3', modules: { ...plain, ...qkNorms } },
  {
    name: 'qwen3moe',
    modelType: 'qwen3_moe',
    modules: { ...attention, ...normsBefore, ...qkNorms, 'mlp.gate': 'ffn_gate_inp' },
    experts: sharedMixture.experts,
  },
  {
    name: 'qwen35',
    modelType: 'qwen3_5_text',
    hasWholeNorms: true,
    vectors: hybridVectors,
    modules: { ...hybrid, ...factors, ...gated },
  },
  {
    name: 'qwen35moe',
    modelType: 'qwen3_5_moe_text',
    hasWholeNorms: true,
    vectors: hybridVectors,
    ...sharedMixture,
    modules: { ...hybrid, ...factors, ...sharedMixture.modules },
  },
  {
    name: 'qwen3next',
    modelType: 'qwen3_next',
    hasWholeNorms: true,
    vectors: hybridVectors,
    ...sharedMixture,
    modules: { ...hybrid, 'linear_attn.in_proj_ba': 'ssm_ba', ...sharedMixture.modules },
  },
  {
    name: 'phi3',
    modelType: 'phi3',
    modules: {
      ...normsBefore,
      'self_attn.qkv_proj': 'attn_qkv',
      'self_attn.o_proj': 'attn_output',
      'mlp.gate_up_proj': 'ffn_up',
      'mlp.down_proj': 'ffn_down',
    },
  },
  { name: 'gemma2', modelType: 'gemma2', hasWholeNorms: true, modules: { ...attention, ...gated, ...normsBoth } },
  {
    name: 'gemma3',
    modelType: 'gemma3_text',
    hasWholeNorms: true,
    modules: { ...attention, ...gated, ...normsBoth, ...qkNorms },
  },
  {
    name: 'olmo2',
    modelType: 'olmo2',
    modules: {
      ...attention,
      ...gated,
      ...qkNorms,
      post_attention_layernorm: 'post_attention_norm',
      post_feedforward_layernorm: 'post_ffw_norm',
    },
  },
  {
    name: 'gpt-oss',
    modelType: 'gpt_oss',
    modules: {
      ...attention,
      'self_attn.sinks': 'attn_sinks',
      'mlp.router': 'ffn_gate_inp',
      input_layernorm: 'attn_norm',
      post_attention_layernorm: 'post_attention_norm',
    },
    experts: sharedMixture.experts,
  },
  { name: 'mistral3', modelType: 'ministral3', isInterleaved: true, modules: plain },
  {
    name: 'deepseek2',
    modelType: 'deepseek_v3',
    ...groupedMixture,
    modules: { ...latent, ...normsBefore, ...groupedMixture.modules },
  },
  {
    name: 'glm4moe',
    modelType: 'glm4_moe',
    ...groupedMixture,
    modules: {
      ...attention,
      ...qkNorms,
      ...groupedMixture.modules,
      input_layernorm: 'attn_norm',
      post_attention_layernorm: 'post_attention_norm',
    },
  },
  {
    name: 'minimax-m2',
    modelType: 'minimax_m2',
    modules: { ...attention, ...normsBefore, ...qkNorms, 'block_sparse_moe.gate': 'ffn_gate_inp' },
    vectors: { 'block_sparse_moe.e_score_correction_bias': { name: 'exp_probs_b.bias' } },
    experts: mixtralExperts,
  },
  gemma4,
  { name: 'granite', modelType: 'granite', isInterleaved: true, modules: plain },
  { name: 'smollm3', modelType: 'smollm3', isInterleaved: true, modules: plain },
];

/**
 * Returns the family of a file with this `general.architecture`; a llama with experts is a Mixtral. @throws Error for an unsupported
 * one.
 */
export function familyOf(architecture: unknown, numExperts: number): GgufFamily {
  if (architecture === mixtral.name && numExperts > 0) return mixtral;
  const found = families.find(({ name }) => name === architecture);
  if (found) return found;
  throw new Error(
    `general.architecture ${JSON.stringify(architecture)} is not supported; this version serves ${families.map(({ name }) => name).join(', ')}`,
  );
}

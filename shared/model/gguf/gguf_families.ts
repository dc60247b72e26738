/** Architectures of GGUF files: how their tensor names and model types correspond to Hugging Face's. */

/** Name of a tensor in a GGUF file, and how its rows differ from Hugging Face's. */
export interface TensorLocation {
  /** Without `.weight` or `.bias`. */
  readonly name: string;
  /** Index of the expert whose rows are meant, where a tensor holds all experts of a layer, one after the other. */
  readonly expert?: number;
  /** Set where the rows of each head are interleaved (0, half, 1, half + 1, ...): whether they are heads of q or of k. */
  readonly heads?: 'q' | 'k';
  /** Number that the file has added to every value, to be subtracted. */
  readonly offset?: number;
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
  /** Modules of a layer: Hugging Face's name to the file's. */
  readonly modules: Readonly<Record<string, string>>;
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

const mixtral: GgufFamily = {
  ...{ name: 'llama', modelType: 'mixtral', isInterleaved: true },
  modules: { ...attention, ...normsBefore, 'block_sparse_moe.gate': 'ffn_gate_inp' },
  experts: {
    path: 'block_sparse_moe.experts',
    modules: { w1: 'ffn_gate_exps', w3: 'ffn_up_exps', w2: 'ffn_down_exps' },
  },
};

const families: readonly GgufFamily[] = [
  { name: 'llama', modelType: 'llama', isInterleaved: true, modules: plain },
  { name: 'qwen2', modelType: 'qwen2', modules: plain },
  { name: 'qwen3', modelType: 'qwen3', modules: { ...plain, ...qkNorms } },
  {
    ...{ name: 'qwen3moe', modelType: 'qwen3_moe' },
    modules: { ...attention, ...normsBefore, ...qkNorms, 'mlp.gate': 'ffn_gate_inp' },
    experts: {
      path: 'mlp.experts',
      modules: { gate_proj: 'ffn_gate_exps', up_proj: 'ffn_up_exps', down_proj: 'ffn_down_exps' },
    },
  },
  {
    ...{ name: 'phi3', modelType: 'phi3' },
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
    ...{ name: 'gemma3', modelType: 'gemma3_text', hasWholeNorms: true },
    modules: { ...attention, ...gated, ...normsBoth, ...qkNorms },
  },
  {
    ...{ name: 'olmo2', modelType: 'olmo2' },
    modules: {
      ...{ ...attention, ...gated, ...qkNorms },
      post_attention_layernorm: 'post_attention_norm',
      post_feedforward_layernorm: 'post_ffw_norm',
    },
  },
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

/**
 * Returns the location in a file of this family for each module, by Hugging Face name without `.weight` or `.bias`. `numExperts` is
 * the number of experts in each layer.
 */
export function tensorLocations(
  { modules, experts, isInterleaved, hasWholeNorms }: GgufFamily,
  numLayers: number,
  numExperts: number,
): Map<string, TensorLocation> {
  const norm = hasWholeNorms ? { offset: 1 } : {};
  const locations = new Map<string, TensorLocation>([
    ['model.embed_tokens', { name: 'token_embd' }],
    ['model.norm', { name: 'output_norm', ...norm }],
    ['lm_head', { name: 'output' }],
  ]);
  for (let layer = 0; layer < numLayers; layer++) {
    const [to, from] = [`model.layers.${layer}`, `blk.${layer}`];
    for (const [module, name] of Object.entries(modules)) {
      const heads = name === 'attn_q' ? 'q' : name === 'attn_k' ? 'k' : undefined;
      locations.set(`${to}.${module}`, {
        name: `${from}.${name}`,
        ...(heads && isInterleaved ? { heads } : {}),
        ...(module.endsWith('norm') ? norm : {}),
      });
    }
    for (const [module, name] of Object.entries(experts?.modules ?? {}))
      for (let expert = 0; expert < numExperts; expert++)
        locations.set(`${to}.${experts?.path}.${expert}.${module}`, { name: `${from}.${name}`, expert });
  }
  return locations;
}

/**
 * A decoder's logits in f64, straight from its config.json and its tensors: nothing of the engine is in it. For families and scalings
 * that have no golden vectors; held against one that has them.
 */
import assert from 'node:assert/strict';

/** Fields as Hugging Face names them. */
export interface ForwardConfig {
  readonly model_type: string;
  readonly hidden_size: number;
  readonly num_hidden_layers: number;
  readonly num_attention_heads: number;
  readonly num_key_value_heads: number;
  readonly rms_norm_eps: number;
  readonly rope_theta: number;
  readonly vocab_size: number;
  readonly max_position_embeddings: number;
  readonly tie_word_embeddings: boolean;
  readonly rope_scaling?: { readonly type: string; readonly factor: number };
  readonly no_rope_layers?: readonly number[];
  readonly embedding_multiplier?: number;
  readonly residual_multiplier?: number;
  readonly attention_multiplier?: number;
  readonly logits_scaling?: number;
  /** Values of a head that are rotated; all when absent. */
  readonly rotary_dim?: number;
  /** Experts of minimax_m2. */
  readonly num_local_experts?: number;
  readonly num_experts_per_tok?: number;
}

type Tensors = ReadonlyMap<string, Float32Array>;
type Row = number[];

/** [tokens][vocab]. `servedLength`: the longest context that is served, which dynamic scaling goes by. */
export function forward(
  config: ForwardConfig,
  tensors: Tensors,
  tokens: readonly number[],
  servedLength: number,
): Row[] {
  const {
    hidden_size: hidden,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    rms_norm_eps: epsilon,
  } = config;
  const headDim = hidden / heads;
  const at = (name: string): Float32Array => tensors.get(name) ?? assert.fail(`no tensor ${name}`);
  const times = (x: Row, name: string): Row => product(x, at(`${name}.weight`));
  const isAfter = config.model_type === 'olmo2';
  const hasQkNorm = isAfter || config.model_type === 'minimax_m2';
  const norm = (x: Row, name: string): Row => normalised(x, at(`${name}.weight`), epsilon);
  const residual = config.residual_multiplier ?? 1;
  const theta = baseOf(config, headDim, servedLength);
  const embedding = at('model.embed_tokens.weight');
  let rows = tokens.map((token) =>
    Array.from(embedding.subarray(token * hidden, (token + 1) * hidden), (v) => v * (config.embedding_multiplier ?? 1)),
  );
  for (let i = 0; i < config.num_hidden_layers; i++) {
    const layer = `model.layers.${i}`;
    const own = `${layer}.self_attn`;
    const rotates = config.no_rope_layers?.[i] !== 0;
    const place = (x: Row, position: number): Row =>
      rotates ? rotated(x, headDim, position, theta, config.rotary_dim) : x;
    const inputs = rows.map((x) => (isAfter ? x : norm(x, `${layer}.input_layernorm`)));
    const q = inputs.map((x, position) => {
      const made = times(x, `${own}.q_proj`);
      return place(hasQkNorm ? norm(made, `${own}.q_norm`) : made, position);
    });
    const k = inputs.map((x, position) => {
      const made = times(x, `${own}.k_proj`);
      return place(hasQkNorm ? norm(made, `${own}.k_norm`) : made, position);
    });
    const v = inputs.map((x) => times(x, `${own}.v_proj`));
    const scale = config.model_type === 'granite' ? (config.attention_multiplier ?? 1) : 1 / Math.sqrt(headDim);
    rows = rows.map((x, row) => {
      const seen = attended(q[row]!, k.slice(0, row + 1), v, { heads, kvHeads, headDim, scale });
      const out = times(seen, `${own}.o_proj`);
      return plus(x, isAfter ? norm(out, `${layer}.post_attention_layernorm`) : out, residual);
    });
    rows = rows.map((x) => {
      const input = isAfter ? x : norm(x, `${layer}.post_attention_layernorm`);
      const out =
        config.model_type === 'minimax_m2'
          ? mixed(config, at, `${layer}.block_sparse_moe`, input)
          : mlp(
              at,
              input,
              ['gate_proj', 'up_proj', 'down_proj'].map((one) => `${layer}.mlp.${one}`),
            );
      return plus(x, isAfter ? norm(out, `${layer}.post_feedforward_layernorm`) : out, residual);
    });
  }
  const head = at(config.tie_word_embeddings ? 'model.embed_tokens.weight' : 'lm_head.weight');
  return rows.map((x) => product(norm(x, 'model.norm'), head).map((logit) => logit / (config.logits_scaling ?? 1)));
}

/** The MLP with the modules gate, up and down. */
function mlp(at: (name: string) => Float32Array, x: Row, [gate, up, down]: readonly string[]): Row {
  const ups = product(x, at(`${up}.weight`));
  const gated = product(x, at(`${gate}.weight`)).map((one, j) => (one / (1 + Math.exp(-one))) * ups[j]!);
  return product(gated, at(`${down}.weight`));
}

/** The mixture of minimax_m2: experts chosen by the sigmoid of their logits plus a correction, weighted by the sigmoid alone. */
function mixed(
  { num_local_experts: count = 0, num_experts_per_tok: perToken = 0 }: ForwardConfig,
  at: (name: string) => Float32Array,
  module: string,
  x: Row,
): Row {
  const scores = product(x, at(`${module}.gate.weight`)).map((logit) => 1 / (1 + Math.exp(-logit)));
  const correction = at(`${module}.e_score_correction_bias`);
  const experts = Array.from({ length: count }, (_, expert) => expert)
    .sort((a, b) => scores[b]! + correction[b]! - scores[a]! - correction[a]!)
    .slice(0, perToken);
  const sum = experts.reduce((total, expert) => total + scores[expert]!, 0);
  const zero = x.map(() => 0);
  return experts.reduce((total: Row, expert) => {
    const own = mlp(
      at,
      x,
      ['w1', 'w3', 'w2'].map((one) => `${module}.experts.${expert}.${one}`),
    );
    return plus(total, own, scores[expert]! / sum);
  }, zero);
}

/** transformers' dynamic NTK scaling, for the longest context that is served. */
function baseOf(config: ForwardConfig, dim: number, servedLength: number): number {
  const { rope_scaling: scaling, rope_theta: theta, max_position_embeddings: trained } = config;
  if (scaling?.type !== 'dynamic') return theta;
  const length = Math.max(servedLength, trained);
  return theta * ((scaling.factor * length) / trained - (scaling.factor - 1)) ** (dim / (dim - 2));
}

/** x · weightᵀ, weight [outputs][x.length]. */
function product(x: Row, weight: Float32Array): Row {
  const inner = x.length;
  return Array.from({ length: weight.length / inner }, (_, output) => {
    let sum = 0;
    for (let k = 0; k < inner; k++) sum += x[k]! * weight[output * inner + k]!;
    return sum;
  });
}

function normalised(x: Row, weight: Float32Array, epsilon: number): Row {
  const meanSquare = x.reduce((sum, value) => sum + value * value, 0) / x.length;
  return x.map((value, i) => (weight[i]! * value) / Math.sqrt(meanSquare + epsilon));
}

function rotated(x: Row, headDim: number, position: number, theta: number, rotary = headDim): Row {
  const half = rotary / 2;
  return x.map((value, at) => {
    const i = at % headDim;
    if (i >= rotary) return value;
    const angle = position / theta ** ((2 * (i % half)) / rotary);
    const other = i < half ? -x[at + half]! : x[at - half]!;
    return value * Math.cos(angle) + other * Math.sin(angle);
  });
}

function attended(
  q: Row,
  keys: readonly Row[],
  values: readonly Row[],
  { heads, kvHeads, headDim, scale }: Readonly<Record<'heads' | 'kvHeads' | 'headDim' | 'scale', number>>,
): Row {
  const out: Row = [];
  for (let head = 0; head < heads; head++) {
    const from = Math.floor((head * kvHeads) / heads) * headDim;
    const scores = keys.map((key) => {
      let dot = 0;
      for (let d = 0; d < headDim; d++) dot += q[head * headDim + d]! * key[from + d]!;
      return dot * scale;
    });
    const highest = Math.max(...scores);
    const weights = scores.map((score) => Math.exp(score - highest));
    const sum = weights.reduce((a, b) => a + b, 0);
    for (let d = 0; d < headDim; d++)
      out.push(weights.reduce((total, weight, token) => total + (weight / sum) * values[token]![from + d]!, 0));
  }
  return out;
}

function plus(x: Row, branch: Row, scale: number): Row {
  return x.map((value, i) => value + scale * branch[i]!);
}

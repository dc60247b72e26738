/**
 * Tensors of a hybrid as llama.cpp's converter writes them into a GGUF file (conversion/qwen.py): value heads in tiled order, norms with
 * their 1, -e^A_log in place of A_log.
 */

/** Names by the last words of ours before `.weight` or at the end. */
const hybridNames: Readonly<Record<string, string>> = {
  in_proj_qkv: 'attn_qkv',
  in_proj_z: 'attn_gate',
  in_proj_b: 'ssm_beta',
  in_proj_a: 'ssm_alpha',
  in_proj_ba: 'ssm_ba',
  conv1d: 'ssm_conv1d',
  out_proj: 'ssm_out',
  norm: 'ssm_norm',
  shared_expert_gate: 'ffn_gate_inp_shexp',
};

const otherNames: Readonly<Record<string, string>> = {
  input_layernorm: 'attn_norm',
  post_attention_layernorm: 'post_attention_norm',
  q_norm: 'attn_q_norm',
  k_norm: 'attn_k_norm',
  gate_proj: 'ffn_gate_shexp',
  up_proj: 'ffn_up_shexp',
  down_proj: 'ffn_down_shexp',
};

const hybrids = new Set(['qwen35', 'qwen35moe', 'qwen3next']);

/** A tensor in f32; `dims` innermost first. */
interface Converted {
  readonly name: string;
  readonly values: Float32Array;
  readonly dims: readonly number[];
}

/** Whether {@link ofHybrid} converts the tensor; the others are converted as those of any decoder. */
export function isOfHybrid(tensor: string, architecture: string): boolean {
  return hybrids.has(architecture) && /linear_attn|shared_expert|layernorm|[qk]_norm|model\.norm/.test(tensor);
}

/** Returns the tensors of the file that hold a tensor of the folder. */
export function ofHybrid(
  tensor: string,
  values: Float32Array,
  shape: readonly number[],
  architecture: string,
  config: Readonly<Record<string, unknown>>,
): Converted[] {
  const of = (key: string): number => Number(config[`linear_${key}`]);
  const [keyHeads, valueHeads, valueDim] = [of('num_key_heads'), of('num_value_heads'), of('value_head_dim')];
  const group = valueHeads / keyHeads;
  const [, inner = 1] = shape;
  const [, layer, module = ''] = /layers\.(\d+)\.(?:\w+\.)*?(\w+)(?:\.weight)?$/.exec(tensor) ?? [];
  const whole = (name: string, made: Float32Array, dims: readonly number[] = shape.toReversed()): Converted => ({
    name,
    values: made,
    dims,
  });
  if (tensor === 'model.norm.weight')
    return [
      whole(
        'output_norm.weight',
        values.map((value) => value + 1),
      ),
    ];
  const at = `blk.${layer}`;
  /** Units of `size` values, one or more a value head, from `first` on: grouped by key head in ours, tiled in the file. */
  const tiled = (from: Float32Array, first: number, size: number): Float32Array => {
    const out = from.slice();
    if (architecture === 'qwen3next') return out;
    for (let head = 0; head < valueHeads; head++) {
      const source = (head % keyHeads) * group + Math.floor(head / keyHeads);
      out.set(from.subarray(first + source * size, first + (source + 1) * size), first + head * size);
    }
    return out;
  };
  const qk = 2 * keyHeads * of('key_head_dim');
  switch (module) {
    case 'A_log':
      return [
        whole(
          `${at}.ssm_a`,
          tiled(values, 0, 1).map((value) => -Math.exp(value)),
        ),
      ];
    case 'dt_bias':
      return [whole(`${at}.ssm_dt.bias`, tiled(values, 0, 1))];
    case 'in_proj_qkv':
    case 'conv1d':
      return [whole(`${at}.${hybridNames[module]}.weight`, tiled(values, qk * inner, valueDim * inner))];
    case 'in_proj_z':
      return [whole(`${at}.attn_gate.weight`, tiled(values, 0, valueDim * inner))];
    case 'in_proj_b':
    case 'in_proj_a':
      return [whole(`${at}.${hybridNames[module]}.weight`, tiled(values, 0, inner))];
    case 'out_proj': {
      const out = values.slice();
      for (let row = 0; row * inner < values.length; row++)
        out.set(tiled(values.slice(row * inner, (row + 1) * inner), 0, valueDim), row * inner);
      return [whole(`${at}.ssm_out.weight`, out)];
    }
    case 'in_proj_qkvz': {
      const widths = [of('key_head_dim'), of('key_head_dim'), group * valueDim, group * valueDim];
      const perHead = widths.reduce((sum, width) => sum + width, 0);
      const rows = widths.map((width, part) => {
        const skipped = widths.slice(0, part).reduce((sum, one) => sum + one, 0);
        return Array.from({ length: keyHeads }, (_, head) => {
          const first = (head * perHead + skipped) * inner;
          return [...values.subarray(first, first + width * inner)];
        }).flat();
      });
      const put = (name: string, all: number[]): Converted =>
        whole(`${at}.${name}.weight`, Float32Array.from(all), [inner, all.length / inner]);
      return [put('attn_qkv', rows.slice(0, 3).flat()), put('attn_gate', rows[3]!)];
    }
    case 'shared_expert_gate':
      return [whole(`${at}.ffn_gate_inp_shexp.weight`, values, [inner])];
    case 'norm':
      return [whole(`${at}.ssm_norm.weight`, values)];
    case 'in_proj_ba':
      return [whole(`${at}.ssm_ba.weight`, values)];
    default: {
      const isShared = tensor.includes('shared_expert');
      return [whole(`${at}.${otherNames[module]}.weight`, isShared ? values : values.map((value) => value + 1))];
    }
  }
}

/** The gated delta nets of a model in a GGUF file of the kind `qwen35`, as llama.cpp names their tensors and keys. */
import type { DeltaShape } from '../../shared/model/model_shape.ts';
import type { Tensor } from './gguf_tensor.ts';

/**
 * Returns the tensors of one layer's delta net, whose value heads are as many as its key heads: of more, llama.cpp has another order.
 * @throws Error for another number of value heads.
 */
export function deltaTensors(to: string, from: string, hidden: number, delta: DeltaShape): Tensor[] {
  const { keyHeads, valueHeads, keyDim, valueDim, taps } = delta;
  if (keyHeads !== valueHeads)
    throw new Error('value heads of a GGUF file are tiled, which this benchmark does not write');
  const own = `${from}.linear_attn`;
  const values = valueHeads * valueDim;
  const channels = 2 * keyHeads * keyDim + values;
  const tensor = (name: string, source: string, outputs: number, inner: number, isFloat = false): Tensor => ({
    name: `${to}.${name}`,
    sources: [`${own}.${source}`],
    outputs,
    inner,
    heads: 0,
    isFloat,
  });
  return [
    tensor('attn_qkv.weight', 'in_proj_qkv.weight', channels, hidden),
    tensor('attn_gate.weight', 'in_proj_z.weight', values, hidden),
    tensor('ssm_beta.weight', 'in_proj_b.weight', valueHeads, hidden, true),
    tensor('ssm_alpha.weight', 'in_proj_a.weight', valueHeads, hidden, true),
    tensor('ssm_conv1d.weight', 'conv1d.weight', channels, taps, true),
    { ...tensor('ssm_a', 'A_log', valueHeads, 1, true), convert: (value) => -Math.exp(value) },
    tensor('ssm_dt.bias', 'dt_bias', valueHeads, 1, true),
    tensor('ssm_norm.weight', 'norm.weight', valueDim, 1, true),
    tensor('ssm_out.weight', 'out_proj.weight', hidden, values),
  ];
}

/** Returns the whole numbers that describe the delta nets, by their keys after the kind of the model. */
export function deltaMetadata({ keyHeads, valueHeads, keyDim, valueDim, taps }: DeltaShape): Record<string, number> {
  return {
    'ssm.conv_kernel': taps,
    'ssm.state_size': keyDim,
    'ssm.group_count': keyHeads,
    'ssm.time_step_rank': valueHeads,
    'ssm.inner_size': valueHeads * valueDim,
    full_attention_interval: 4,
  };
}

/** Returns how many of `pairs` rotated pairs turn with time, height and width, which are the same for text; and none of a fourth kind. */
export function deltaSections(pairs: number): readonly number[] {
  const third = Math.ceil(pairs / 3);
  return [third, third, pairs - 2 * third, 0];
}

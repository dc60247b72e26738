/** The attention of a model's first layer, as a device tries it before it is trusted (row_probe.ts): its heads, and products to them. */
import type { OperationOf, Program } from '../program.ts';
import { latentHeadsAtOnce, latentRows } from './attention_tiling.ts';

/** Operations from the buffer `normed` to the buffer `attended`, and what they need. */
export interface ProbedAttention extends Pick<Program, 'operations' | 'buffers' | 'weights'> {
  /** Values of a row of `normed`, and of `attended`. */
  readonly width: number;
  readonly attendedWidth: number;
  /** Values of a token in each plane of the layer. */
  readonly planes: readonly number[];
  /** Values that the rope table rotates; the table's name is `rope`. */
  readonly rotary: number;
}

/** Returns a matrix of random values; the tensors have equally many of its outputs. */
export function probedMatrix(outputs: number, inner: number, tensors: readonly string[]): Program['weights'][string] {
  return { outputs, inner, parts: tensors.map((tensor) => ({ tensor, outputs: outputs / tensors.length })) };
}

/** Returns the attention of the model's first layer; undefined when the model has none. */
export function probedAttention(model: Program): ProbedAttention | undefined {
  const { operations, rope } = model;
  const attention = operations.find((op) => op.kind === 'attention');
  const stored = operations.find((op) => op.kind === 'rope_store');
  if (attention && stored) return grouped(attention, rope[stored.rope]?.dim ?? attention.headDim);
  const latent = operations.find((op) => op.kind === 'latent_attention');
  const latentStore = operations.find((op) => op.kind === 'latent_store');
  return latent && latentStore ? absorbed(model, latent, latentStore) : undefined;
}

/** One KV head with its queries. */
function grouped(attention: OperationOf<'attention'>, rotary: number): ProbedAttention {
  const { headDim, scale, window, cap, sinks } = attention;
  const group = attention.heads / attention.kvHeads;
  const options = {
    ...(window === undefined ? {} : { window }),
    ...(cap === undefined ? {} : { cap }),
    ...(sinks === undefined ? {} : { sinks: 'sinks' }),
  };
  const heads = { heads: group, kvHeads: 1, headDim };
  const width = group * headDim;
  const qkvWidth = width + 2 * headDim;
  return {
    width,
    attendedWidth: width,
    planes: [headDim, headDim],
    rotary,
    operations: [
      { kind: 'linear', x: 'normed', weight: 'qkv', out: 'qkv', accumulate: false },
      { kind: 'rope_store', qkv: 'qkv', layer: 0, rope: 'rope', ...heads },
      { kind: 'attention', qkv: 'qkv', out: 'attended', layer: 0, scale, ...options, ...heads },
    ],
    buffers: { qkv: { rows: 'rows', width: qkvWidth } },
    weights: {
      qkv: probedMatrix(qkvWidth, width, ['qkv']),
      ...(sinks === undefined ? {} : { sinks: probedMatrix(group, 1, ['sinks']) }),
    },
  };
}

/** The heads of one workgroup of latent attention, with the products of single heads before and after. */
function absorbed(
  { operations, weights }: Program,
  { heads: all, rank, rotary, scale, out }: OperationOf<'latent_attention'>,
  { qHead, isInterleaved, epsilon }: OperationOf<'latent_store'>,
): ProbedAttention {
  const heads = latentHeadsAtOnce(all, latentRows(all));
  const valueUp = operations.find((op) => op.kind === 'head_linear' && op.x === out);
  const valueWeight = valueUp?.kind === 'head_linear' ? weights[valueUp.weight] : undefined;
  const valueDim = (valueWeight?.outputs ?? rank * all) / all;
  const [width, key, plain] = [heads * qHead, rank + rotary, qHead - rotary];
  const shape = { heads, rank, rotary };
  return {
    width,
    attendedWidth: heads * valueDim,
    planes: [key],
    rotary,
    operations: [
      { kind: 'linear', x: 'normed', weight: 'q', out: 'q', accumulate: false },
      { kind: 'linear', x: 'normed', weight: 'latent', out: 'latent', accumulate: false },
      { kind: 'head_linear', x: 'q', weight: 'key_up', out: 'query', heads, xHead: qHead, outHead: key },
      {
        kind: 'latent_store',
        latent: 'latent',
        q: 'q',
        out: 'query',
        layer: 0,
        weight: 'latent_norm',
        epsilon,
        rope: 'rope',
        qHead,
        isInterleaved,
        ...shape,
      },
      { kind: 'latent_attention', query: 'query', out: 'attended_latent', layer: 0, scale, ...shape },
      {
        kind: 'head_linear',
        x: 'attended_latent',
        weight: 'value_up',
        out: 'attended',
        heads,
        xHead: rank,
        outHead: valueDim,
      },
    ],
    buffers: {
      q: { rows: 'rows', width },
      latent: { rows: 'rows', width: key },
      query: { rows: 'rows', width: heads * key },
      attended_latent: { rows: 'rows', width: heads * rank },
    },
    weights: {
      q: probedMatrix(width, width, ['q']),
      latent: probedMatrix(key, width, ['latent']),
      latent_norm: probedMatrix(rank, 1, ['latent_norm']),
      key_up: { ...probedMatrix(heads * rank, plain, ['key_up']), expertOutputs: rank },
      value_up: { ...probedMatrix(heads * valueDim, rank, ['value_up']), expertOutputs: valueDim },
    },
  };
}

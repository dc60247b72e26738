import { DeviceError } from '../../device.ts';
import { kvTokenBytes } from '../../kv_layout.ts';
import { planesOf } from '../../kv_planes.ts';
import { kvLayerOf, type OperationOf } from '../../program.ts';
import type { DispatchPlan } from '../dispatch_plan.ts';
import { mergeSplits } from '../attention_merge.ts';
import type { KernelSpec } from '../kernel.ts';
import { SPLIT_TOKENS, tileTokens } from '../attention_tiling.ts';
import { Header } from '../step_state.ts';
import { operation } from './operation.ts';

/** Flash attention over block tables; one workgroup per work item and KV head, all query heads of that head in it. */
export const pagedAttentionKernel = {
  name: 'paged_attention',
  uses: ['capped'],
  params: {
    kv_heads: 'u32',
    qkv_stride: 'u32',
    out_stride: 'u32',
    items_at: 'u32',
    scale: 'f32',
    window: 'u32',
    cap: 'f32',
    block_words: 'u32',
    k_at: 'u32',
    k_words: 'u32',
    v_at: 'u32',
    v_words: 'u32',
  },
  buffers: {
    qkv: { access: 'read', dtype: 'vec4f' },
    kv: { access: 'read', dtype: 'KvVector' },
    step: { access: 'read', dtype: 'u32' },
    angles: { access: 'read', dtype: 'vec2f' },
    vector: { access: 'read', dtype: 'f32' },
    out: { access: 'read_write', dtype: 'vec4f' },
    parts: { access: 'read_write', dtype: 'vec4f' },
    part_stats: { access: 'read_write', dtype: 'vec2f' },
  },
  constants: {
    WORKGROUP_SIZE: 128,
    BLOCK_SIZE: 32,
    HEAD_DIM: 64,
    GROUP: 1,
    TILE_ROWS: 1,
    QUERY_BLOCK: 1,
    TOKENS: 32,
    SPLIT: 256,
    KV_F16: 1,
    HAS_WINDOW: 0,
    HAS_CAP: 0,
    HAS_SINKS: 0,
    SAME_STRIDE: 1,
    COMPUTED_KEYS: 0,
    ROTARY: 0,
    PAIR_DISTANCE: 0,
    UNROLLED: 1,
    VECTOR_WORDS: 4,
  },
  aliases: { KvVector: 'vec4u' },
} as const satisfies KernelSpec;

/** Head size above which a workgroup has twice the threads, so that a thread does not keep twice the outputs in registers. */
const WIDE_HEAD = 256;

/**
 * Returns the constants and buffers by which keys are computed from values, and the words of the halves that are rotated, which whole
 * vectors must fit. All are empty where keys are stored. @throws DeviceError for halves that are no whole vectors
 */
function computedKeys(
  plan: DispatchPlan,
  { keyNorm, keyRope, sinks }: OperationOf<'attention'>,
): {
  readonly words: readonly number[];
  readonly constants: Readonly<Record<string, number>>;
  readonly angles?: GPUBuffer;
  readonly norm?: GPUBuffer;
} {
  if (keyNorm === undefined || keyRope === undefined) return { words: [], constants: {} };
  if (sinks !== undefined)
    throw new DeviceError('the webgpu device has no attention with both computed keys and sinks');
  const { angles, dim, pairDistance, hasQueryFactors } = plan.rope(keyRope);
  const wordValues = plan.options.kv.dtype === 'f16' ? 2 : 1;
  const words = [dim / 2 / wordValues, pairDistance / wordValues];
  if (hasQueryFactors || words.some((one) => one % 2 !== 0))
    throw new DeviceError(`the webgpu device cannot compute keys whose halves of ${dim / 2} values are rotated`);
  const constants = { COMPUTED_KEYS: 1, ROTARY: dim, PAIR_DISTANCE: pairDistance };
  return { words, constants, angles, norm: plan.vector(keyNorm) };
}

/** Words of a block, of a token in each plane, and where each plane begins in a block; uniform fields of the kernel. */
type KvWords = Readonly<Record<'block_words' | 'k_at' | 'k_words' | 'v_at' | 'v_words', number>>;

function kvWords(plan: DispatchPlan, op: OperationOf<'attention'>): KvWords {
  const { kv } = plan.options;
  const layer = kvLayerOf(op);
  const { k, v } = planesOf(kv, { ...op, layer });
  return {
    block_words: kv.layers[layer]!.bytes / 4,
    k_at: k.offset / 4,
    k_words: k.tokenBytes / 4,
    v_at: v.offset / 4,
    v_words: v.tokenBytes / 4,
  };
}

/** Returns the constants that a layer's prefill and decode items share. */
function specialisation(
  plan: DispatchPlan,
  { heads, kvHeads, headDim, window = 0, cap = 0, sinks }: OperationOf<'attention'>,
  words: KvWords,
  keys: ReturnType<typeof computedKeys>,
): { readonly constants: Readonly<Record<string, number>>; readonly aliases: Readonly<Record<string, string>> } {
  const { blockSize, dtype } = plan.options.kv;
  const isF16 = dtype === 'f16';
  // Whether K and V can be read as vectors of four words: a head's size and all offsets and strides are multiples of four.
  const headWords = headDim / (isF16 ? 2 : 1);
  const areFours = [headWords, ...Object.values(words), ...keys.words].every((one) => one % 4 === 0);
  const vectorWords = areFours ? 4 : 2;
  const constants = {
    BLOCK_SIZE: blockSize,
    HEAD_DIM: headDim,
    GROUP: heads / kvHeads,
    TOKENS: tileTokens(headDim, dtype),
    SPLIT: SPLIT_TOKENS,
    KV_F16: isF16 ? 1 : 0,
    HAS_WINDOW: window > 0 ? 1 : 0,
    HAS_CAP: cap > 0 ? 1 : 0,
    HAS_SINKS: sinks === undefined ? 0 : 1,
    SAME_STRIDE: words.k_words === words.v_words && words.v_at >= words.k_at ? 1 : 0,
    UNROLLED: plan.resources.capabilities.isSoftware ? 0 : 1,
    VECTOR_WORDS: vectorWords,
    ...keys.constants,
    ...(headDim > WIDE_HEAD ? { WORKGROUP_SIZE: 2 * pagedAttentionKernel.constants.WORKGROUP_SIZE } : {}),
  };
  return { constants, aliases: { KvVector: `vec${vectorWords}u` } };
}

/** Adds the dispatches of `attention`: prefill items, decode items, then the merge of split rows. */
export const attention = operation('attention', (plan, op) => {
  const { heads, kvHeads, headDim, scale, window = 0, cap = 0 } = op;
  const { step, parts, partStats, none } = plan.resources;
  const { kv } = plan.options;
  const layer = kvLayerOf(op);
  const words = kvWords(plan, op);
  const [qkv, out] = [plan.buffer(op.qkv), plan.buffer(op.out)];
  const group = heads / kvHeads;
  const keys = computedKeys(plan, op);
  const sinks = plan.optionalVector(op.sinks);
  const { constants, aliases } = specialisation(plan, op, words, keys);
  const tokenBytes = kvTokenBytes(kv, layer);
  const add = (
    label: string,
    rows: number,
    itemsAt: number,
    count: 'decodeItems' | 'prefillItems',
    pairs: 'decodePairs' | 'prefillPairs',
  ): void => {
    plan.push({
      label,
      spec: pagedAttentionKernel,
      specialisation: {
        constants: { ...constants, TILE_ROWS: rows, QUERY_BLOCK: rows * group >= 16 ? 4 : 1 },
        aliases,
      },
      params: {
        kv_heads: kvHeads,
        qkv_stride: qkv.stride,
        out_stride: out.stride,
        items_at: itemsAt,
        scale,
        window,
        cap,
        ...words,
      },
      bindings: {
        qkv: qkv.buffer,
        kv: plan.kv(layer),
        step,
        out: out.buffer,
        parts,
        part_stats: partStats,
        angles: keys.angles ?? none,
        vector: keys.norm ?? sinks,
      },
      grid: (counts) => [counts[count], kvHeads, 1],
      // An item's rows share what they read.
      work: (_counts, attended) => ({
        bytes: (attended[pairs] / rows) * tokenBytes,
        flops: 4 * attended[pairs] * heads * headDim,
      }),
    });
  };
  add('attention (prefill)', plan.tiling.tileRows, Header.prefillItemsAt, 'prefillItems', 'prefillPairs');
  add('attention (decode)', 1, Header.decodeItemsAt, 'decodeItems', 'decodePairs');
  mergeSplits(plan, { heads, width: headDim, out: op.out, sinks: op.sinks });
});

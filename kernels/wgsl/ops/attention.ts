import { kvTokenBytes } from '../../kv_layout.ts';
import { planesOf } from '../../kv_planes.ts';
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
    ...{ block_words: 'u32', k_at: 'u32', k_words: 'u32', v_at: 'u32', v_words: 'u32' },
  },
  buffers: {
    qkv: { access: 'read', dtype: 'vec4f' },
    kv: { access: 'read', dtype: 'KvVector' },
    step: { access: 'read', dtype: 'u32' },
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
    SAME_STRIDE: 1,
    UNROLLED: 1,
    VECTOR_WORDS: 4,
  },
  aliases: { KvVector: 'vec4u' },
} as const satisfies KernelSpec;

/** Merges the partials of a row's splits in order; one workgroup per head and row. */
export const attentionMergeKernel = {
  name: 'attention_merge',
  params: { heads: 'u32', out_stride: 'u32' },
  buffers: {
    parts: { access: 'read', dtype: 'vec4f' },
    part_stats: { access: 'read', dtype: 'vec2f' },
    step: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'vec4f' },
  },
  constants: { WORKGROUP_SIZE: 64, HEAD_DIM: 64 },
} as const satisfies KernelSpec;

/** Adds the dispatches of `attention`: prefill items, decode items, then the merge of split rows. */
export const attention = operation('attention', (plan, op) => {
  const { heads, kvHeads, headDim, scale, window = 0, cap = 0 } = op;
  const { step, parts, partStats, capabilities } = plan.resources;
  const { kv } = plan.options;
  const { k, v } = planesOf(kv, op);
  const words = { block: kv.layers[op.layer]!.bytes / 4, k: k.tokenBytes / 4, v: v.tokenBytes / 4 };
  const [qkv, out] = [plan.buffer(op.qkv), plan.buffer(op.out)];
  const group = heads / kvHeads;
  // Whether K and V can be read as vectors of four words: a head's size and all offsets and strides are multiples of four.
  const headWords = headDim / (kv.dtype === 'f16' ? 2 : 1);
  const areFours = [headWords, words.block, words.k, words.v, k.offset / 4, v.offset / 4].every((one) => one % 4 === 0);
  const vectorWords = areFours ? 4 : 2;
  const aliases = { KvVector: `vec${vectorWords}u` };
  const constants = {
    BLOCK_SIZE: kv.blockSize,
    HEAD_DIM: headDim,
    GROUP: group,
    TOKENS: tileTokens(headDim, kv.dtype),
    SPLIT: SPLIT_TOKENS,
    KV_F16: kv.dtype === 'f16' ? 1 : 0,
    HAS_WINDOW: window > 0 ? 1 : 0,
    HAS_CAP: cap > 0 ? 1 : 0,
    SAME_STRIDE: words.k === words.v && v.offset >= k.offset ? 1 : 0,
    UNROLLED: capabilities.isSoftware ? 0 : 1,
    VECTOR_WORDS: vectorWords,
  };
  const tokenBytes = kvTokenBytes(kv, op.layer);
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
        ...{ block_words: words.block, k_at: k.offset / 4, k_words: words.k, v_at: v.offset / 4, v_words: words.v },
      },
      bindings: { qkv: qkv.buffer, kv: plan.kv(op.layer), step, out: out.buffer, parts, part_stats: partStats },
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
  plan.push({
    spec: attentionMergeKernel,
    specialisation: { constants: { HEAD_DIM: headDim } },
    params: { heads, out_stride: out.stride },
    bindings: { parts, part_stats: partStats, step, out: out.buffer },
    grid: ({ merges }) => [heads, merges, 1],
    work: () => ({ bytes: 0, flops: 0 }),
  });
});

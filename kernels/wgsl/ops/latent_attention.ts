import { latentPlane } from '../../kv_planes.ts';
import { mergeSplits } from '../attention_merge.ts';
import { latentHeadsAtOnce, latentTokens, SPLIT_TOKENS } from '../attention_tiling.ts';
import type { KernelSpec } from '../kernel.ts';
import { Header } from '../step_state.ts';
import { operation } from './operation.ts';

/** Latent attention over block tables; one workgroup per work item and range of heads. */
export const latentAttentionKernel = {
  name: 'latent_attention',
  params: {
    heads: 'u32',
    query_stride: 'u32',
    out_stride: 'u32',
    items_at: 'u32',
    scale: 'f32',
    block_words: 'u32',
    plane_at: 'u32',
    token_words: 'u32',
  },
  buffers: {
    query: { access: 'read', dtype: 'vec4f' },
    kv: { access: 'read', dtype: 'KvVector' },
    step: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'vec4f' },
    parts: { access: 'read_write', dtype: 'vec4f' },
    part_stats: { access: 'read_write', dtype: 'vec2f' },
  },
  constants: {
    WORKGROUP_SIZE: 256,
    BLOCK_SIZE: 32,
    RANK: 512,
    ROTARY: 64,
    HEADS_AT_ONCE: 16,
    TILE_ROWS: 1,
    TOKENS: 16,
    SPLIT: 128,
    KV_F16: 1,
    UNROLLED: 1,
    VECTOR_WORDS: 4,
  },
  aliases: { KvVector: 'vec4u' },
} as const satisfies KernelSpec;

/** Adds the dispatches of `latent_attention`: prefill items, decode items, then the merge of split rows. */
export const latentAttention = operation('latent_attention', (plan, op) => {
  const { heads, rank, rotary, scale } = op;
  const { step, parts, partStats, capabilities } = plan.resources;
  const { kv } = plan.options;
  const plane = latentPlane(kv, op);
  const words = { block: kv.layers[op.layer]!.bytes / 4, plane: plane.offset / 4, token: plane.tokenBytes / 4 };
  const keyWords = (rank + rotary) / (kv.dtype === 'f16' ? 2 : 1);
  const areFours = [keyWords, ...Object.values(words)].every((one) => one % 4 === 0);
  const vectorWords = areFours ? 4 : 2;
  const [query, out] = [plan.buffer(op.query), plan.buffer(op.out)];
  const { tileRows } = plan.tiling;
  const headsAtOnce = latentHeadsAtOnce(heads, tileRows);
  const constants = {
    BLOCK_SIZE: kv.blockSize,
    RANK: rank,
    ROTARY: rotary,
    HEADS_AT_ONCE: headsAtOnce,
    SPLIT: SPLIT_TOKENS,
    TOKENS: latentTokens(rank + rotary, kv.dtype),
    KV_F16: kv.dtype === 'f16' ? 1 : 0,
    UNROLLED: capabilities.isSoftware ? 0 : 1,
    VECTOR_WORDS: vectorWords,
  };
  const add = (
    label: string,
    rows: number,
    itemsAt: number,
    count: 'decodeItems' | 'prefillItems',
    pairs: 'decodePairs' | 'prefillPairs',
  ): void => {
    plan.push({
      label,
      spec: latentAttentionKernel,
      specialisation: {
        constants: { ...constants, TILE_ROWS: rows },
        aliases: { KvVector: `vec${vectorWords}u` },
      },
      params: {
        heads,
        query_stride: query.stride,
        out_stride: out.stride,
        items_at: itemsAt,
        scale,
        block_words: words.block,
        plane_at: words.plane,
        token_words: words.token,
      },
      bindings: { query: query.buffer, kv: plan.kv(op.layer), step, out: out.buffer, parts, part_stats: partStats },
      grid: (counts) => [counts[count], Math.ceil(heads / headsAtOnce), 1],
      work: (_counts, attended) => ({
        bytes: (attended[pairs] / rows) * plane.tokenBytes,
        flops: 2 * attended[pairs] * heads * (2 * rank + rotary),
      }),
    });
  };
  add('latent attention (prefill)', tileRows, Header.prefillItemsAt, 'prefillItems', 'prefillPairs');
  add('latent attention (decode)', 1, Header.decodeItemsAt, 'decodeItems', 'decodePairs');
  mergeSplits(plan, { heads, width: rank, out: op.out });
});

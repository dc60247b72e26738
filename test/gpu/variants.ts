/** Every kernel as hardware gets it, specialised: products in all formats and sets, and what else a step of common models has. */
import { rowsPerItem, tileTokens, SPLIT_TOKENS } from '../../kernels/wgsl/attention_tiling.ts';
import { gatherBlocks } from '../../kernels/wgsl/gather_blocks.ts';
import { specialise, type KernelSpec, type Specialisation } from '../../kernels/wgsl/kernel.ts';
import { formatConstant, linearVariants, type Capabilities } from '../../kernels/wgsl/kernel_set.ts';
import { attentionMergeKernel } from '../../kernels/wgsl/attention_merge.ts';
import { pagedAttentionKernel } from '../../kernels/wgsl/ops/attention.ts';
import { candidatesKernel, candidatesMergeKernel } from '../../kernels/wgsl/ops/candidates.ts';
import { sampleChooseKernel, sampleTilesKernel } from '../../kernels/wgsl/ops/sample.ts';
import { causalConvKernel, causalConvRowsKernel } from '../../kernels/wgsl/ops/causal_conv.ts';
import { deltaRuleKernel } from '../../kernels/wgsl/state_rule.ts';
import { deltaInputsKernel } from '../../kernels/wgsl/ops/delta_rule.ts';
import { spaceStepsKernel } from '../../kernels/wgsl/ops/state_space.ts';
import { gatedNormKernel } from '../../kernels/wgsl/ops/gated_norm.ts';
import { sigmoidMulKernel } from '../../kernels/wgsl/ops/sigmoid_mul.ts';
import { embedKernel } from '../../kernels/wgsl/ops/embed.ts';
import { gatherSamplesKernel } from '../../kernels/wgsl/ops/gather_samples.ts';
import { combineKernel, numberExpertSlotsKernel, routeKernel } from '../../kernels/wgsl/ops/mixture.ts';
import { headLinearKernel } from '../../kernels/wgsl/ops/head_linear.ts';
import { latentAttentionKernel } from '../../kernels/wgsl/ops/latent_attention.ts';
import { latentStoreKernel } from '../../kernels/wgsl/ops/latent_store.ts';
import { rmsNormKernel } from '../../kernels/wgsl/ops/rms_norm.ts';
import { ropeStoreKernel } from '../../kernels/wgsl/ops/rope_store.ts';
import type { WeightFormat } from '../../kernels/weights/weight_format.ts';

export interface Variant {
  readonly name: string;
  readonly code: string;
  /** Weights that one turn of the loop over weights multiplies, for products of few rows. */
  readonly weightsPerTurn?: number;
}

const FORMATS: readonly WeightFormat[] = ['f16', 'int8', 'int4', 'uint4', 'mxfp4', 'iq4'];
const plain: Omit<Capabilities, 'set'> = {
  hasSubgroups: true,
  hasF16: true,
  isSoftware: false,
  matrix: undefined,
  workgroupBytes: 49_152,
};
const matrix = { componentType: 'f16', resultComponentType: 'f32', M: 16, N: 16, K: 16 };
/** Outputs of a large product, and those of which a thread has fewer. */
const OUTPUTS = [14_336, 4_096, 1_024];

/** `subgroupSize`: of the card, for its matrices; `isSizeAsked` where it has several. */
export function allVariants(subgroupSize: number, isSizeAsked: boolean): Variant[] {
  const variants = new Map<string, Variant>();
  const put = (name: string, spec: KernelSpec, specialisation: Specialisation = {}, weightsPerTurn?: number): void => {
    const code = specialise(spec, specialisation);
    variants.set(name, { name, code, ...(weightsPerTurn === undefined ? {} : { weightsPerTurn }) });
  };
  for (const set of ['deterministic', 'fast'] as const) {
    for (const format of FORMATS) {
      for (const outputs of OUTPUTS) {
        const { byColumns, normed, many } = linearVariants(
          { ...plain, set },
          { format, gate: undefined, outputs },
          true,
        );
        for (const [columns, { spec, specialisation }] of byColumns) {
          const rows = specialisation.constants?.['ROWS'] ?? 1;
          // A turn is a group of 32, or a chunk of 16 bytes.
          const ofChunk = { f32: 4, f16: 8, int8: 16, int4: 32, uint4: 32, mxfp4: 32, iq4: 32 };
          const inputs = set === 'deterministic' ? 32 : ofChunk[format];
          put(`${spec.name} ${format} ${outputs} c${columns}`, spec, specialisation, rows * inputs);
        }
        if (normed) put(`${normed.spec.name} ${format} ${outputs} normed`, normed.spec, normed.specialisation);
        for (const { spec, specialisation } of many) put(`${spec.name} ${set} ${format}`, spec, specialisation);
      }
      const gated = linearVariants({ ...plain, set }, { format, gate: 'silu_mul', outputs: 28_672 }, false)
        .byColumns[0]!;
      put(`${gated[1].spec.name} ${format} gated`, gated[1].spec, gated[1].specialisation);
      const experts = { format, gate: 'silu_mul', outputs: 1_536, hasExperts: true, isPermuted: true } as const;
      for (const [columns, { spec, specialisation }] of linearVariants({ ...plain, set }, experts, false).byColumns)
        put(`${spec.name} ${format} experts c${columns}`, spec, specialisation);
    }
  }
  const withMatrices: Capabilities = { ...plain, set: 'fast', matrix: { ...matrix, subgroupSize, isSizeAsked } };
  for (const format of FORMATS) {
    for (const hasExperts of [false, true]) {
      const use = { format, gate: undefined, outputs: 14_336, hasExperts };
      for (const { spec, specialisation, tile } of linearVariants(withMatrices, use, false).many)
        put(`${spec.name} ${format} ${tile[1]} rows${hasExperts ? ' experts' : ''}`, spec, specialisation);
    }
  }
  for (const format of FORMATS) {
    const use = { format, gate: undefined, outputs: 14_336 };
    for (const { spec, specialisation } of linearVariants({ ...withMatrices, set: 'matrices' }, use, false).many)
      put(`${spec.name} ${format} in sections`, spec, specialisation);
  }
  for (const [model, heads, kvHeads, headDim, window, cap, hasSinks] of [
    ['llama 8B', 32, 8, 128, 0, 0, 0],
    ['llama 1B', 32, 8, 64, 0, 0, 0],
    ['qwen3 30B', 32, 4, 128, 0, 0, 0],
    ['gemma2 9B', 16, 8, 256, 4_096, 50, 0],
    ['gpt-oss 20B', 64, 8, 64, 128, 0, 1],
    ['gemma4 31B', 32, 4, 512, 0, 0, 0],
  ] as const) {
    const group = heads / kvHeads;
    for (const rows of [1, rowsPerItem(headDim, group)]) {
      const constants = {
        BLOCK_SIZE: 32,
        HEAD_DIM: headDim,
        GROUP: group,
        TOKENS: tileTokens(headDim, 'f16'),
        SPLIT: SPLIT_TOKENS,

        KV_F16: 1,
        HAS_WINDOW: window > 0 ? 1 : 0,
        HAS_CAP: cap > 0 ? 1 : 0,
        HAS_SINKS: hasSinks,
        UNROLLED: 1,
        VECTOR_WORDS: 4,
        TILE_ROWS: rows,
        QUERY_BLOCK: rows * group >= 16 ? 4 : 1,
        ...(headDim > 256 ? { WORKGROUP_SIZE: 256, COMPUTED_KEYS: 1, ROTARY: 128, PAIR_DISTANCE: 256 } : {}),
      };
      put(`attention ${rows === 1 ? 'decode' : 'prefill'} ${model}`, pagedAttentionKernel, { constants });
    }
  }
  put('attention_merge', attentionMergeKernel, { constants: { HEAD_DIM: 128 } });
  const rope = { BLOCK_SIZE: 32, HEAD_DIM: 128, ROTARY: 128, PAIR_DISTANCE: 64, KV_F16: 1 };
  put('attention_merge with sinks', attentionMergeKernel, { constants: { HEAD_DIM: 64, HAS_SINKS: 1 } });
  put('rope_store', ropeStoreKernel, { constants: rope });
  put('rope_store with norm', ropeStoreKernel, { constants: { ...rope, HEAD_NORM: 1, WORKGROUP_SIZE: 32 } });
  put('rope_store with query factors', ropeStoreKernel, { constants: { ...rope, QUERY_FACTORS: 1 } });
  const apart = { BLOCK_SIZE: 32, HEAD_DIM: 512, ROTARY: 128, PAIR_DISTANCE: 256, KV_F16: 1 };
  put('rope_store gemma4 31B', ropeStoreKernel, { constants: apart });
  put('latent_store', latentStoreKernel, { constants: { RANK: 512, ROTARY: 64 } });
  put('latent_attention', latentAttentionKernel, { constants: { RANK: 512, ROTARY: 64, HEADS_AT_ONCE: 16 } });
  put('latent_attention of 20 heads', latentAttentionKernel, { constants: { HEADS_AT_ONCE: 10 } });
  for (const format of FORMATS)
    for (const tile of [
      { ROWS: 1, EACH: 1 },
      { ROWS: 8, EACH: 4 },
    ])
      put(`head_linear ${format} ${tile.ROWS} rows`, headLinearKernel, {
        constants: { ...tile, FORMAT: formatConstant(format) },
      });
  put('rms_norm', rmsNormKernel);
  put('causal_conv', causalConvKernel);
  put('causal_conv windows', causalConvKernel, { constants: { HAS_OUTPUTS: 0 } });
  put('causal_conv_rows', causalConvRowsKernel);
  put('delta_inputs', deltaInputsKernel);
  put('delta_rule', deltaRuleKernel);
  put('space_steps', spaceStepsKernel);
  put('state_space', deltaRuleKernel, { constants: { IS_DELTA: 0 } });
  put('gated_norm', gatedNormKernel, { constants: { WORKGROUP_SIZE: 32 } });
  put('sigmoid_mul', sigmoidMulKernel);
  put('sample_tiles', sampleTilesKernel);
  put('sample_choose', sampleChooseKernel);
  put('candidates', candidatesKernel);
  put('candidates_merge', candidatesMergeKernel);
  put('embed int4', embedKernel, { constants: { FORMAT: formatConstant('int4') } });
  put('gather_samples', gatherSamplesKernel);
  const mixture = { constants: { EXPERTS: 128, PER_TOKEN: 8 } };
  put('route', routeKernel, mixture);
  const grouped = { SIGMOID: 1, HAS_BIAS: 1, GROUPS: 8, GROUPS_PER_TOKEN: 4 };
  put('route by groups', routeKernel, { constants: { EXPERTS: 256, PER_TOKEN: 8, ...grouped } });
  put('number_expert_slots', numberExpertSlotsKernel, mixture);
  put('combine', combineKernel);
  put('gather_blocks', gatherBlocks, { constants: { SCATTER: 0 } });
  return [...variants.values()];
}

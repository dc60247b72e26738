/**
 * The conformance suite finds wrong kernels: each of these has one line changed, and some case fails. Products on subgroup matrices,
 * attention, and sampling, under Mesa 26 as matrices.test.ts. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { createWebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import { attentionConformance } from './conformance/attention.ts';
import { samplerConformance } from './conformance/sample.ts';
import { linearConformance } from './conformance/linear.ts';
import type { Conformance } from './conformance/suite.ts';
import { sampleOf } from '../support/long.ts';
import { testAdapter, useVectorWidth } from './software_gpu.ts';

useVectorWidth(256, { compiles: 'fast' });

type Mutant = readonly [kernel: string, right: string, wrong: string];

const matrices: readonly Mutant[] = [
  ['matmul_subgroup_matrix', 'row_at + i * M) * LINE_QUADS + k / 4', 'row_at + i * M) * LINE_QUADS + k'],
  ['matmul_subgroup_matrix', '* LINE_QUADS + k / 4;\n            let b', '* LINE_QUADS;\n            let b'],
  ['matmul_subgroup_matrix', 'col_major>(&w_tile', 'row_major>(&w_tile'],
  ['matmul_subgroup_matrix', 'let row_at = subgroup / BY_OUTPUTS', 'let row_at = subgroup % BY_OUTPUTS'],
  ['matmul_subgroup_matrix', 'zero_next[i]) * scale_next[i]', 'zero_next[i])'],
  ['matmul_subgroup_matrix', 'sums[(at + 1) %', 'sums[at %'],
  ['matmul_subgroup_matrix', 'group <= groups', 'group < groups'],
  ['matmul_subgroup_matrix', 'let first = workgroup.x * OUTPUTS_TILE', 'let first = workgroup.x * 64u'],
  ['matmul_subgroup_matrix', 'let row = first_row + slab * SLAB', 'let row = first_row + slab * M'],
  ['matmul_subgroup_matrix', 'x[x_at[i] + group * 8]', 'x[x_at[i]]'],
  ['matmul_subgroup_matrix', 'rows_of(workgroup.y, ROWS_TILE)', 'rows_of(workgroup.y, 64u)'],
];

const attention: readonly Mutant[] = [
  ['paged_attention', 'token <= position &&', 'token < position &&'],
  ['paged_attention', 'token + params.window > position', 'token + params.window >= position'],
  ['paged_attention', 'values[i] *= rescale[query_of(thread, i)]', 'values[i] *= 1.0'],
  ['paged_attention', '+ (params.v_at - params.k_at) / VECTOR_WORDS;', ';'],
  ['paged_attention', 'min(first + thread, num_tokens - 1)', 'min(first, num_tokens - 1)'],
  ['paged_attention', 'fma(sums[q], rescale[q], sum)', 'sums[q] + sum'],
  ['paged_attention', 'all_rescale[q] = exp(all_highest[q] - now)', 'all_rescale[q] = 1.0'],
  ['paged_attention', 'capped(scaled, params.cap)', 'scaled'],
  ['attention_merge', 'start + i < count)', 'start + i <= count)'],
  ['attention_merge', 'sum = fma(sum, rescale,', 'sum = fma(sum, 1.0,'],
  ['attention_merge', '(first + min(start + i, count - 1))', '(first + i)'],
];

const sampling: readonly Mutant[] = [
  ['sample_tiles', 'fixed_logit > best_fixed_logit || order > best_order', 'fixed_logit > best_fixed_logit'],
  [
    'sample_tiles',
    'let id = first + i * WORKGROUP_SIZE;\n    if (id >= params.vocab) {\n      continue;\n    }\n    let weight',
    'let id = first;\n    let weight',
  ],
  ['sample_tiles', 'weight > from_weight', 'weight >= from_weight'],
  ['sample_tiles', '>> above == 0', '>> shift == 0'],
  ['sample_tiles', 'select(1u, 0u, top_k >= count)', '0u'],
  ['sample_tiles', 'wide_add(wide_mul(kept.x, top_p), vec2u(0xffffffffu, 0)).y', 'wide_mul(kept.x, top_p).y'],
  ['sample_tiles', 'select(0u, 1u, before + sum.x < before)', '0u'],
  [
    'sample_tiles',
    'head.ties = wide_ceil_div(head.rest, head.from_weight)',
    'head.ties = head.rest.x / head.from_weight',
  ],
  ['sample_tiles', '(bits & 0x7fffffffu) > 0x7f800000u', '(bits & 0x7fffffffu) > 0x7fffffffu'],
  ['sample_choose', 'ties_left -= its_ties', 'ties_left -= 0u'],
  ['sample_choose', 'wide_less(rest, vec2u(weights[i], 0))', 'wide_less(rest, vec2u(weights[i] + 1, 0))'],
  ['sample_choose', 'weight_at(&one, first + i, highest)', 'weight_at(&one, first, highest)'],
  ['sample_choose', 'pages[(*one).counts - 1 + token] += 1', 'pages[(*one).counts + token] += 1'],
];

/** The first case that fails, by name. */
async function firstFailure(
  [kernel, right, wrong]: Mutant,
  suite: (device: Conformance) => void,
): Promise<string | undefined> {
  let numChanged = 0;
  const device = await createWebgpuDevice({
    adapter: testAdapter,
    memoryBytes: 0,
    kernelSet: 'fast',
    rewriteWgsl: (name, code) => {
      if (name !== kernel || !code.includes(right)) return code;
      numChanged++;
      return code.replace(right, wrong);
    },
  });
  const cases: (readonly [string, () => Promise<void>])[] = [];
  suite({
    name: 'wrong',
    tolerance: 1e-5,
    linearTolerance: 2e-3,
    formats: ['f16', 'int4'],
    open: () => Promise.resolve(device),
    cases: {
      describe: (_name, body) => {
        body();
      },
      test: (name, run) => cases.push([name, run]),
    },
  });
  try {
    // A device that notices by itself takes none.
    if (device.notes.length > 0) return device.notes.join();
    for (const [name, run] of cases) {
      try {
        await run();
      } catch {
        return name;
      }
    }
    return undefined;
  } finally {
    assert(numChanged > 0, `${kernel} has no line ${right}`);
    device.destroy();
  }
}

/** All in the long run; else every twelfth of each list. */
function sampledOf(mutants: readonly Mutant[]): readonly Mutant[] {
  return sampleOf(mutants, 12);
}

for (const [name, mutants, suite] of [
  ['matrices', matrices, linearConformance],
  ['attention', attention, attentionConformance],
  ['sampling', sampling, samplerConformance],
] as const) {
  describe(name, () => {
    test.each(
      sampledOf(mutants).map((mutant) => [mutant[0], mutant[1].trim().split('\n')[0]!, mutant[2], mutant] as const),
    )('%s: %s as %s is found', async (_kernel, _right, _wrong, mutant) => {
      assert(await firstFailure(mutant, suite), 'a case fails');
    });
  });
}

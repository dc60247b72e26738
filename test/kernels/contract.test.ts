/**
 * Every `.wgsl` file says what its `.ts` twin says: the same entry point, bindings, uniform fields and constants, in the same
 * order; and every struct of a wasm kernel what its class says. Dawn cannot see two read-only buffers swapped, or two uniform
 * fields in the wrong order; those would only be wrong numbers. And every kernel compiles for adapters that this machine does not have: Dawn's null adapter has every feature.
 * Budget: 10 s.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'vitest';
import { fillRandom } from '../../kernels/wgsl/fill_random.ts';
import { gatherBlocks } from '../../kernels/wgsl/gather_blocks.ts';
import { wordsStruct } from '../../kernels/wgsl/words_struct.ts';
import { specialise, wgslUrl, type KernelSpec, type Specialisation } from '../../kernels/wgsl/kernel.ts';
import { linearVariants, type Capabilities } from '../../kernels/wgsl/kernel_set.ts';
import { matmul, matmulSubgroupMatrix, matvec, matvecOrdered } from '../../kernels/wgsl/linear_kernels.ts';
import { attentionMergeKernel } from '../../kernels/wgsl/attention_merge.ts';
import { pagedAttentionKernel } from '../../kernels/wgsl/ops/attention.ts';
import { candidatesKernel, candidatesMergeKernel } from '../../kernels/wgsl/ops/candidates.ts';
import { causalConvKernel, causalConvRowsKernel } from '../../kernels/wgsl/ops/causal_conv.ts';
import { deltaRuleKernel } from '../../kernels/wgsl/state_rule.ts';
import { deltaInputsKernel } from '../../kernels/wgsl/ops/delta_rule.ts';
import { spaceStepsKernel } from '../../kernels/wgsl/ops/state_space.ts';
import { embedKernel } from '../../kernels/wgsl/ops/embed.ts';
import { gatedNormKernel } from '../../kernels/wgsl/ops/gated_norm.ts';
import { sigmoidMulKernel } from '../../kernels/wgsl/ops/sigmoid_mul.ts';
import { gatedMulKernel } from '../../kernels/wgsl/ops/gated.ts';
import { sampleChooseKernel, sampleTilesKernel } from '../../kernels/wgsl/ops/sample.ts';
import { gatherSamplesKernel } from '../../kernels/wgsl/ops/gather_samples.ts';
import { headLinearKernel } from '../../kernels/wgsl/ops/head_linear.ts';
import { latentAttentionKernel } from '../../kernels/wgsl/ops/latent_attention.ts';
import { latentStoreKernel } from '../../kernels/wgsl/ops/latent_store.ts';
import { qkNormKernel } from '../../kernels/wgsl/ops/qk_norm.ts';
import { combineKernel, numberExpertSlotsKernel, permuteKernel, routeKernel } from '../../kernels/wgsl/ops/mixture.ts';
import { rmsNormKernel } from '../../kernels/wgsl/ops/rms_norm.ts';
import { ropeStoreKernel } from '../../kernels/wgsl/ops/rope_store.ts';
import { softCapKernel } from '../../kernels/wgsl/ops/soft_cap.ts';
import { peakFma, peakRead } from '../../kernels/wgsl/peaks.ts';
import { openNullAdapter } from '../../kernels/wgsl/adapters.ts';
import { attentionTile } from '../../kernels/wasm/attention_spans.ts';
import { samplerSlot } from '../../kernels/wasm/ops/sample.ts';
import { stateSegment } from '../../kernels/wasm/state_segments.ts';
import { wasmOperations } from '../../kernels/wasm/operations.ts';
import { allVariants } from '../gpu/variants.ts';
import { sampleOf } from '../support/long.ts';
import { weightFormats } from '../../kernels/weights/weight_format.ts';

const kernels: KernelSpec[] = [
  ...[attentionMergeKernel, candidatesKernel, candidatesMergeKernel, embedKernel, fillRandom, gatherBlocks],
  ...[
    sampleChooseKernel,
    sampleTilesKernel,
    gatherSamplesKernel,
    gatedMulKernel,
    matmul,
    matmulSubgroupMatrix,
    matvec,
    matvecOrdered,
  ],
  ...[
    pagedAttentionKernel,
    peakFma,
    peakRead,
    qkNormKernel,
    combineKernel,
    numberExpertSlotsKernel,
    permuteKernel,
    routeKernel,
    rmsNormKernel,
    ropeStoreKernel,
    softCapKernel,
    headLinearKernel,
    latentAttentionKernel,
    latentStoreKernel,
    ...[causalConvKernel, causalConvRowsKernel, deltaInputsKernel, deltaRuleKernel, gatedNormKernel, sigmoidMulKernel],
    spaceStepsKernel,
  ],
];

/** Reads the declarations our convention puts on lines of their own. */
function declarations(wgsl: string): unknown {
  const matches = (pattern: RegExp): string[][] => [...wgsl.matchAll(pattern)].map((m) => m.slice(1));
  const struct = /^struct Params \{\n([^}]*)\}/m.exec(wgsl)?.[1] ?? '';
  return {
    entryPoint: matches(/^@compute [^\n]*\nfn (\w+)/gm).flat(),
    params: [...struct.matchAll(/^ {2}(\w+): (\w+),$/gm)].map((m) => m.slice(1)),
    buffers: matches(/^@group\(0\) @binding\((\d+)\) var<storage, (\w+)> (\w+): array<(\w+)(?:<u32>)?>;$/gm),
    constants: Object.fromEntries(matches(/^const (\w+): u32 = (\d+);$/gm)) as unknown,
    aliases: matches(/^alias (\w+) = (\w+);$/gm),
  };
}

test('every wgsl file has a declaration, or is appended to one', () => {
  const files = readdirSync(new URL('.', wgslUrl('matvec')));
  const wgsl = files.filter((f) => f.endsWith('.wgsl')).map((f) => f.slice(0, -'.wgsl'.length));
  const declared = new Set(kernels.flatMap(({ name, uses = [] }) => [name, ...uses]));
  assert.deepEqual(wgsl.sort(), [...declared].sort());
});

for (const kernel of kernels) {
  test(`${kernel.name}: wgsl and declaration agree`, () => {
    assert.deepEqual(declarations(specialise(kernel, {})), {
      entryPoint: [kernel.name],
      params: Object.entries(kernel.params),
      buffers: Object.entries(kernel.buffers).map(([name, b], i) => [String(i + 1), b.access, name, b.dtype]),
      constants: Object.fromEntries(Object.entries(kernel.constants).map(([name, value]) => [name, String(value)])),
      aliases: Object.entries(kernel.aliases ?? {}),
    });
  });
}

test('wgsl: a struct of words has the fields of its table, each from its place', () => {
  const text = wordsStruct('TwoWords', { numRows: 'u32', shift: 'i32' }, { row: 'u32' });
  assert.match(text, /^const TWO_WORDS_WORDS = 2u;$/m);
  assert.match(text, /struct TwoWords \{\n {2}num_rows: u32,\n {2}shift: i32,\n {2}row: u32,\n\}/);
  assert.match(
    text,
    /one.num_rows = step\[at \+ 0\];\n {2}one.shift = bitcast<i32>\(step\[at \+ 1\]\);\n {2}return one;/,
  );
  // No shader has a number of words of its own for what the table gives.
  const shaders = new URL('.', wgslUrl('matvec'));
  for (const file of readdirSync(shaders).filter((name) => name.startsWith('sampl')))
    assert.doesNotMatch(readFileSync(new URL(file, shaders), 'utf8'), /\d+ \* sample;/);
});

test('wasm: every struct that kernels read has the fields of its class, in order', () => {
  const folder = new URL('../../kernels/wasm/as/', import.meta.url);
  const sources = readdirSync(folder).map((name) => readFileSync(new URL(name, folder), 'utf8'));
  const classes = new Map<string, string[][]>();
  for (const [, name = '', body = ''] of sources.join('\n').matchAll(/@unmanaged\nexport class (\w+) \{\n([^}]*)\}/g))
    classes.set(
      name,
      [...body.matchAll(/^ {2}(\w+): (usize|u32|i32|f32);$/gm)].map(([, field = '', type = '']) => [
        field,
        type === 'usize' ? 'u32' : type,
      ]),
    );
  const structs = new Map(
    [attentionTile, samplerSlot, stateSegment, ...Object.values(wasmOperations).map(({ params }) => params)].map(
      ({ name, fields }) => [name, Object.entries(fields)],
    ),
  );
  assert.deepEqual(new Map([...structs].sort()), new Map([...classes].sort()));
});

test('every kernel compiles, products in every format, set and matrix configuration that an adapter may have', async () => {
  const { adapter } = await openNullAdapter();
  const requiredFeatures = [
    'shader-f16',
    'subgroups',
    'subgroup-size-control',
    'chromium-experimental-subgroup-matrix',
  ] as GPUFeatureName[];
  const device = await adapter.requestDevice({ requiredFeatures });
  const f16 = {
    componentType: 'f16',
    resultComponentType: 'f32',
    M: 16,
    N: 16,
    K: 16,
    subgroupSize: 32,
    isSizeAsked: false,
  };
  const capabilities: Capabilities[] = [
    {
      set: 'deterministic',
      hasSubgroups: true,
      hasF16: true,
      isSoftware: false,
      workgroupBytes: 32_768,
      matrix: undefined,
    },
    { set: 'fast', hasSubgroups: true, hasF16: true, isSoftware: false, workgroupBytes: 32_768, matrix: undefined },
    { set: 'fast', hasSubgroups: false, hasF16: false, isSoftware: true, workgroupBytes: 32_768, matrix: undefined },
    { set: 'fast', hasSubgroups: true, hasF16: true, isSoftware: false, workgroupBytes: 32_768, matrix: f16 },
    // AMD's.
    {
      set: 'fast',
      hasSubgroups: true,
      hasF16: true,
      isSoftware: false,
      workgroupBytes: 32_768,
      matrix: { ...f16, isSizeAsked: true },
    },
    // With room for two buffers.
    { set: 'fast', hasSubgroups: true, hasF16: true, isSoftware: false, workgroupBytes: 49_152, matrix: f16 },
    {
      set: 'fast',
      hasSubgroups: true,
      hasF16: true,
      isSoftware: false,
      workgroupBytes: 32_768,
      matrix: { ...f16, N: 8, K: 8 },
    },
    {
      set: 'fast',
      hasSubgroups: true,
      hasF16: true,
      isSoftware: false,
      workgroupBytes: 32_768,
      matrix: { ...f16, M: 8, subgroupSize: 16 },
    },
    // Apple's.
    {
      set: 'fast',
      hasSubgroups: true,
      hasF16: true,
      isSoftware: false,
      workgroupBytes: 32_768,
      matrix: { ...f16, componentType: 'f32', M: 8, N: 8, K: 8 },
    },
    {
      set: 'fast',
      hasSubgroups: true,
      hasF16: true,
      isSoftware: false,
      workgroupBytes: 32_768,
      matrix: { ...f16, componentType: 'f32', N: 8 },
    },
  ];
  const sources = new Map<string, string>();
  const products = weightFormats.flatMap((format) =>
    (
      [
        [undefined, false],
        [undefined, true],
        ['silu_mul', false],
        ['gelu_mul', false],
        ['clamped_swiglu', true],
      ] as const
    ).flatMap(([gate, hasExperts]) => [64, 2_048, 4_096].map((outputs) => ({ format, gate, outputs, hasExperts }))),
  );
  for (const [i, one] of capabilities.entries()) {
    for (const product of sampleOf(products, 8, i)) {
      const { byColumns, normed, many } = linearVariants(one, product, true);
      for (const variant of [...byColumns.map(([, v]) => v), normed, ...many]) {
        assert(variant);
        const { spec, specialisation } = variant;
        if (spec === matmulSubgroupMatrix) assert(matrixTileBytes(specialisation) <= one.workgroupBytes);
        sources.set(`${spec.name} ${JSON.stringify(specialisation)}`, specialise(spec, specialisation));
      }
    }
  }
  // And every other kernel, as hardware gets it.
  for (const { name, code } of allVariants(32, true)) sources.set(name, code);
  for (const [label, code] of sources) {
    const { messages } = await device.createShaderModule({ label, code }).getCompilationInfo();
    assert.deepEqual(
      messages.map(({ lineNum, message }) => `${label} line ${lineNum}: ${message}`),
      [],
    );
  }
  device.destroy();
});

/** Workgroup memory of matmul_subgroup_matrix: lines of x and of weights, each of 32 values and a gap, and a slab of sums. */
function matrixTileBytes({ constants = {}, aliases = {} }: Specialisation): number {
  const { ROWS_TILE, OUTPUTS_TILE, BUFFERS } = { ...matmulSubgroupMatrix.constants, ...constants };
  const lineBytes = 40 * (aliases['Element'] === 'f16' ? 2 : 4);
  return (ROWS_TILE + OUTPUTS_TILE) * BUFFERS * lineBytes + 16 * OUTPUTS_TILE * 4;
}

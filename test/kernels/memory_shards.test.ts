/** A program in several memories: what it computes has the bits of one memory (E2), whatever the rows, the chunks and the threads. Budget: 20 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { fromSlot } from '../../kernels/device.ts';
import type { WeightFormat } from '../../kernels/weights/weight_format.ts';
import { allocateAll, MemoryPlan } from '../../kernels/wasm/memory_plan.ts';
import type { WasmBounds } from '../../kernels/wasm/wasm_device.ts';
import { shardsOf } from '../../kernels/wasm/memory_shards.ts';
import type { ProfiledExecutable } from '../../kernels/wasm/wasm_executable.ts';
import { programOf, shapeOf } from '../../shared/engine/architectures/registry.ts';
import { loadModel } from '../../shared/engine/load_model.ts';
import { SequenceSampling } from '../../shared/engine/sampler.ts';
import { samplingOf } from '../support/request.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { goldenFolder } from '../support/golden.ts';
import { halfOf, sampleOf } from '../support/long.ts';
import { loadDefaults } from '../support/reference_loop.ts';
import { assertSameBits, bitsOf } from './bits.ts';

const NUM_SHARDS = 3;

const golden = [
  ...(['llama-odd', 'llama-tied', 'gemma2', 'gemma3', 'gemma4', 'qwen3-moe', 'mixtral', 'phi3'] as const),
  'deepseek_v3',
] as const;

test.each(golden)('%s is cut where the residual stream is all that goes on', async (name) => {
  const folder = await openModel(goldenFolder(name));
  const program = programOf(folder.config, shapeOf(folder), 256);
  const { operations } = program;
  const { shards, runs } = shardsOf(program, ({ program: section }) => section.operations.length <= 13);
  assert(shards.length >= NUM_SHARDS, `${shards.length} memory shards`);
  let [nextOp, nextLayer] = [0, 0];
  for (const { shard, ops, at, carried } of runs) {
    assert.equal(ops.first, nextOp, 'nothing is left out, and nothing done twice');
    nextOp = ops.end;
    const [own, { firstLayer }] = [shards[shard]!.program.operations, shards[shard]!.layers];
    operations.slice(ops.first, ops.end).forEach((op, i) => {
      const same = 'layer' in op ? { ...op, layer: op.layer - firstLayer } : op;
      assert.deepEqual(own[at + i], same);
    });
    if (ops.first > 0) expect(carried.map(({ buffer }) => buffer)).toEqual(['x']);
    else expect(carried).toEqual([]);
  }
  assert.equal(nextOp, operations.length);
  for (const { layers, program: section } of shards) {
    assert.equal(section.kv.length, layers.numLayers);
    // An attention and what follows it may lie in two memory shards; the KV of its layer lies in one.
    if (layers.numLayers > 0) assert.equal(layers.firstLayer, nextLayer);
    nextLayer += layers.numLayers;
  }
  assert.equal(nextLayer, program.kv.length);
  const first = Object.keys(shards[0]!.program.weights);
  const held = shards.flatMap((shard) => Object.keys(shard.program.weights));
  assert(first.includes('embed') && first.includes('model.norm.weight'), 'both ends are in the first');
  assert.equal(held.length, Object.keys(program.weights).length, 'every weight lies in one');
});

test('layers that read the KV of another lie where it lies, and the inputs of layers go to every memory', async () => {
  const folder = await openModel(goldenFolder('gemma4-e'));
  const program = programOf(folder.config, shapeOf(folder), 256);
  const { shards, runs } = shardsOf(program, ({ program: section }) => section.operations.length <= 13);
  // Layers 3 and 4 read layer 1, and 5 reads 2.
  const index = shards.findIndex(({ layers }) => layers.firstLayer === 1);
  const shard = shards[index];
  assert.deepEqual(shard?.layers, { firstLayer: 1, numLayers: 5 });
  const carried = runs.flatMap((run) => (run.shard === index ? run.carried.map(({ buffer }) => buffer) : []));
  assert.deepEqual(carried, ['x', 'layer_inputs']);
  const { operations, weights } = shard.program;
  const sources = operations.flatMap((op) => (op.kind === 'attention' ? [[op.layer, op.kvLayer]] : []));
  const own = [
    [0, undefined],
    [1, undefined],
  ];
  assert.deepEqual(sources, [...own, [2, 0], [3, 0], [4, 1]]);
  assert(!('model.embed_tokens_per_layer.weight' in weights), 'the table lies with the embedding');
});

/** Memories so small that there are a few. */
async function boundsFor(
  modelPath: string,
  weightFormat: WeightFormat | 'auto',
  numThreads = 1,
  bounds: WasmBounds = {},
): Promise<WasmBounds> {
  for (let bytes = 64 << 20; bytes > 1 << 20; bytes = Math.floor(bytes * 0.8)) {
    const wasmBounds = { ...bounds, maxMemoryBytes: bytes };
    const options = { ...loadDefaults, modelPath, weightFormat, numThreads, numBlocks: 128, wasmBounds };
    const loaded = await loadModel(options).catch(() => undefined);
    assert(loaded, 'it fits into memory shards before it fits into none');
    await loaded.executable.close();
    if ((loaded.executable as ProfiledExecutable).numShards >= NUM_SHARDS) return wasmBounds;
  }
  return assert.fail('it is always whole');
}

test.each(
  halfOf([
    ['llama-odd', 'int8', 'f16'],
    ['llama-tied', 'f32', 'f32'],
    ['gemma2', 'int8', 'f16'],
    ['qwen3-moe', 'f16', 'f16'],
    ['deepseek_v3', 'int8', 'f16'],
  ] as const),
)(
  'E2: %s with %s weights and %s KV has the same bits in one memory and in several',
  async (model, weightFormat, kvDtype) => {
    const modelPath = goldenFolder(model);
    const cuts = [
      { chunk: 150, numOthers: 0 },
      { chunk: 37, numOthers: 5 },
      { chunk: 1, numOthers: 3, otherTokens: 1 },
      { chunk: 49, numOthers: 3, isInRanges: true },
    ];
    const texts = await bitsOf({ modelPath, kvDtype, weightFormat, numThreads: 2 }, cuts);
    const wasmBounds = await boundsFor(modelPath, weightFormat);
    for (const numThreads of [1, 2, 3])
      texts.push(...(await bitsOf({ modelPath, kvDtype, weightFormat, numThreads, wasmBounds }, cuts)));
    assertSameBits(texts);
  },
);

test('tokens that are sampled, and given again by their slot, are those of one memory', async () => {
  const modelPath = goldenFolder('llama-odd');
  const sampled: number[][] = [];
  for (const isNarrow of [false, true]) {
    const options = { ...loadDefaults, modelPath, weightFormat: 'int8' as const, numBlocks: 128 };
    const wasmBounds = isNarrow ? await boundsFor(modelPath, 'int8') : {};
    const { executable } = await loadModel({ ...options, wasmBounds });
    const sampling = new SequenceSampling(samplingOf({ temperature: 1, seed: 5 }));
    const tokens: number[] = [];
    let [start, next] = [0, Array.from({ length: 40 }, (_, i) => (i * 7) % 250)];
    for (let step = 0; step < 20; step++) {
      const end = start + next.length;
      const sample = { ...sampling.at(end), slot: 3 };
      const samples = [{ row: next.length - 1, numCandidates: 0, askedTokens: [], isFullRowWanted: false, sample }];
      const [result] = await executable.run([{ tokens: next, start, blockTable: [7, 1], samples }]);
      tokens.push(result!.token);
      [start, next] = [end, [fromSlot(3)]];
    }
    sampled.push(tokens);
    await executable.close();
  }
  assert(new Set(sampled[0]).size > 5, 'they differ');
  assert.deepEqual(sampled[1], sampled[0]);
});

test.each(
  sampleOf(
    [
      ['llama-odd', 'int8'],
      ['llama-odd', 'int4'],
      ['llama-odd', 'uint4'],
      ['gguf-q4_0', 'auto'],
      ['gguf-q4_k_m', 'auto'],
      ['llama-awq', 'auto'],
      ['gguf-q8_0', 'auto'],
      ['llama-bf16', 'f16'],
      ['llama-f16-same-as-gguf', 'f32'],
      ['mixtral', 'int8'],
      ['deepseek_v3', 'int8'],
    ] as const,
    3,
    1,
  ),
)('%s as %s has the same bits whoever packed it, and into however many memories', async (model, weightFormat) => {
  const modelPath = goldenFolder(model);
  const cuts = [{ chunk: 150, numOthers: 0 }];
  const texts = await bitsOf({ modelPath, weightFormat, numThreads: 4 }, cuts);
  const shared = { minSharedBytes: 0 };
  for (const numThreads of [1, 2, 4])
    texts.push(...(await bitsOf({ modelPath, weightFormat, numThreads, wasmBounds: shared }, cuts)));
  const wasmBounds = await boundsFor(modelPath, weightFormat, 3, shared);
  texts.push(...(await bitsOf({ modelPath, weightFormat, numThreads: 3, wasmBounds }, cuts)));
  assertSameBits(texts);
});

test('memory shards that are more than the machine has are refused with the sizes before anything is allocated', () => {
  const plans = [new MemoryPlan(), new MemoryPlan()];
  for (const plan of plans) plan.reserve('weights', 3 * 2 ** 30);
  expect(() => allocateAll(plans, 2 ** 32)).toThrow(
    /this engine may have 4096.0 MiB of memory: 6144.0 MiB needed \(weights 6144.0 MiB\): use a smaller --weights format/,
  );
});

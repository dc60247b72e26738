/** Recurrent states on the wasm device, and that models with them have the same bits however their work is cut. Budget: 35 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import type { ProfiledExecutable } from '../../kernels/wasm/wasm_executable.ts';
import { assertSameBits, bitsOf } from '../kernels/bits.ts';
import { goldenFolder, hasRanges } from '../support/golden.ts';
import { halfOf } from '../support/long.ts';
import { loadReference } from '../support/reference_loop.ts';
import { stateSuite } from './state_suite.ts';

stateSuite([
  'qwen3_5-simple',
  'qwen3_5',
  'qwen3_5-moe',
  'qwen3_next',
  'lfm2',
  'granitemoehybrid',
  'granitemoehybrid-dense',
]);

test('what a multimodal checkpoint has besides the text is named once', async () => {
  const published = await loadReference(goldenFolder('qwen3_5-published'), 'f32', 64);
  assert.match(published.description, /; left out: vision \(1 tensor\), multi-token prediction \(2 tensors\)$/);
  await published.executable.close();
  const plain = await loadReference(goldenFolder('qwen3_5'), 'f32', 64);
  assert(!plain.description.includes('left out'));
  await plain.executable.close();
});

describe('in several memories', () => {
  const wasmBounds = { maxMemoryBytes: 3 << 20 };
  const bounded = { wasmBounds, numBlocks: 40, maxNumSeqs: 4, maxModelLen: 512 };
  test('qwen3_5 is divided', async () => {
    const { executable } = await loadReference(goldenFolder('qwen3_5'), 'f32', 256, {
      weightFormat: 'f32',
      ...bounded,
    });
    assert((executable as ProfiledExecutable).numShards > 2);
    await executable.close();
  });
  stateSuite(['qwen3_5', 'lfm2', 'granitemoehybrid'], bounded);
});

test.each(
  halfOf([
    ['qwen3_5', 'f32', 'f32'],
    ['qwen3_5', 'int8', 'f16'],
    ['qwen3_next', 'int4', 'f16'],
    ['lfm2', 'int8', 'f16'],
    ['granitemoehybrid', 'f32', 'f32'],
    ['granitemoehybrid-dense', 'int8', 'f16'],
  ] as const),
)(
  'E2: %s with %s weights and %s KV has the same bits in chunks of 150, 37, 1, with others, in sections, on 1 to 3 threads',
  async (model, weightFormat, kvDtype) => {
    const cuts = [
      { chunk: 150, numOthers: 0 },
      { chunk: 37, numOthers: 0 },
      { chunk: 1, numOthers: 0 },
      { chunk: 1, numOthers: 7, otherTokens: 1 },
      { chunk: 64, numOthers: 5 },
      { chunk: 64, numOthers: 0, isInRanges: true },
      { chunk: 49, numOthers: 3, isInRanges: true },
    ];
    const possible = hasRanges(model) ? cuts : cuts.filter(({ isInRanges }) => !isInRanges);
    const texts: string[] = [];
    for (const numThreads of [1, 2, 3])
      texts.push(...(await bitsOf({ modelPath: goldenFolder(model), kvDtype, weightFormat, numThreads }, possible)));
    assertSameBits(texts);
  },
);

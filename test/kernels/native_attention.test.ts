/**
 * Native attention of every instruction set that the machine has: random shapes have the bits of the WebAssembly kernels, and nothing is written
 * beyond the scratch that is reserved for a thread. Not covered: spans over more than one thread, which kernels/wasm_attention has. Budget: 10 s.
 */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { TILE_ROWS } from '../../kernels/wasm/attention_spans.ts';
import { compileKernels } from '../../kernels/wasm/compiled_kernels.ts';
import { instantiate } from '../../kernels/wasm/kernel_exports.ts';
import { attentionScratchBytes } from '../../kernels/wasm/ops/attention.ts';
import { kernelsOf } from '../../kernels/wasm/products.ts';
import { TrialAttention, type AttentionShape } from '../../kernels/wasm/trial_attention.ts';
import { Random } from '../../shared/base/random.ts';
import { sized } from '../support/long.ts';
import { setsHere } from '../support/native_sets.ts';

const { module } = compileKernels(true);

function shapeOf(random: Random): AttentionShape {
  const headDim = 4 + 4 * random.below(48);
  return {
    rows: random.below(3) === 0 ? 1 : 1 + random.below(TILE_ROWS),
    position: random.below(600),
    kvHeads: 1 + random.below(3),
    group: 1 + random.below(9),
    headDim,
    blockSize: random.pick([4, 16, 32, 48, 128, 256]),
    isF16: random.below(2) === 0 ? 0 : 1,
    window: random.below(3) === 0 ? 1 + random.below(200) : 0,
    cap: random.below(4) === 0 ? 20 : 0,
    hasSinks: random.below(4) === 0,
    computesKeys: headDim >= 40 && random.below(4) === 0,
  };
}

test.each(setsHere)('native:%s attends random shapes with the bits of WebAssembly, within its scratch', (set) => {
  const random = new Random(54);
  for (let i = 0; i < sized(600, 120); i++) {
    const shape = shapeOf(random);
    const trial = new TrialAttention([shape]);
    const native = kernelsOf({ native: set }, module, trial.memory);
    const why = trial.difference(instantiate(module, trial.memory), native, () => random.u32());
    assert.equal(why, undefined, `${why}: ${JSON.stringify(shape)}`);
  }
});

test('the trial refuses attention that writes beyond its scratch, although its outputs are right', () => {
  const [rows, kvHeads, group, headDim, blockSize] = [5, 2, 3, 36, 256];
  const more = { position: 0, isF16: 1, window: 0, cap: 0, hasSinks: false, computesKeys: false } as const;
  const trial = new TrialAttention([{ rows, kvHeads, group, headDim, blockSize, ...more }]);
  const right = instantiate(module, trial.memory);
  const end = attentionScratchBytes({ heads: kvHeads * group, kvHeads, headDim }, blockSize);
  const wrong: typeof right = {
    ...right,
    attention_tile: (params, tile, start, to, scratch) => {
      right.attention_tile(params, tile, start, to, scratch);
      new Uint8Array(trial.memory.buffer)[scratch + end + 200] = 0;
    },
  };
  const random = new Random(1);
  expect(trial.difference(right, right, () => random.u32())).toBeUndefined();
  expect(trial.difference(right, wrong, () => random.u32())).toBe(
    'its attention of 5 rows of 3 heads of 36 writes beyond its scratch',
  );
});

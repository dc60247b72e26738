/**
 * Models of many shapes against the reference implementation, configured as its versions 4 and 5 write it; their weights are a formula
 * (test/golden/seeds/make_reference.py). Budget: 15 s.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { safetensors } from '../support/checkpoint_folder.ts';
import { maxAbs } from '../support/golden.ts';
import { projectPath } from '../support/project.ts';
import { loadReference } from '../support/reference_loop.ts';

interface SeededModel {
  readonly config: { readonly vocab_size: number };
  /** Norms of the family are about 0. */
  readonly addsOne: boolean;
  readonly tensors: Readonly<Record<string, readonly number[]>>;
  readonly cases: readonly { readonly length: number; readonly logits: string }[];
}

const { models } = JSON.parse(readFileSync(projectPath('test/golden/seeds/reference.json'), 'utf8')) as {
  models: Record<string, SeededModel>;
};

/** Error allowed, relative to the largest logit; golden vectors allow 1e-3. */
const BOUND = 2e-5;

/** In [-1, 1): PCG's output permutation of numbers from a hash of the name on. */
function noise(name: string, count: number): Float64Array {
  const seed = Buffer.from(name).reduce((hash, byte) => Math.imul(hash ^ byte, 16_777_619), 2_166_136_261);
  return Float64Array.from({ length: count }, (_, i) => {
    const state = (Math.imul(i + seed, 747_796_405) + 2_891_336_453) >>> 0;
    const word = Math.imul(((state >>> ((state >>> 28) + 4)) ^ state) >>> 0, 277_803_737) >>> 0;
    return (((word >>> 22) ^ word) >>> 0) / 2 ** 31 - 1;
  });
}

function weightsOf(name: string, shape: readonly number[], addsOne: boolean): Float32Array<ArrayBuffer> {
  const values = noise(
    name,
    shape.reduce((product, size) => product * size, 1),
  );
  const scaled = (by: number, plus = 0): Float32Array<ArrayBuffer> =>
    Float32Array.from(values, (value) => value * by + plus);
  if (name.includes('norm')) return scaled(0.2, addsOne ? 0 : 1);
  if (shape.length === 1) return scaled(0.2);
  return name.includes('embed') ? scaled(0.8) : scaled(2.2 / Math.sqrt(shape.at(-1) ?? 1));
}

test.each(Object.entries(models))('%s has the logits of the reference', async (name, model) => {
  const folder = mkdtempSync(join(tmpdir(), 'seeds-'));
  try {
    const tensors = Object.entries(model.tensors).map(([tensor, shape]) => {
      const values = weightsOf(`${name} ${tensor}`, shape, model.addsOne);
      return [tensor, { shape, data: new Uint8Array(values.buffer) }] as const;
    });
    writeFileSync(join(folder, 'config.json'), JSON.stringify(model.config));
    writeFileSync(join(folder, 'model.safetensors'), safetensors(new Map(tensors)));
    const { executable, device } = await loadReference(folder, 'f32', 512, { weightFormat: 'f32' });
    for (const { length, logits } of model.cases) {
      const bytes = Uint8Array.from(Buffer.from(logits, 'base64'));
      const want = new Float32Array(bytes.buffer);
      const vocab = model.config.vocab_size;
      const tokens = [...noise(`${name} prompt ${length}`, length)].map((value) =>
        Math.floor(((value + 1) / 2) * vocab),
      );
      const blockTable = Array.from({ length: Math.ceil(length / 32) }, (_, i) => i);
      const samples = [{ row: length - 1, numCandidates: 1, askedTokens: [], isFullRowWanted: true }];
      const [result] = await executable.run([{ tokens, start: 0, blockTable, samples }]);
      assert(result?.fullRow);
      const error = maxAbs(result.fullRow.map((value, i) => value - (want[i] ?? NaN))) / maxAbs(want);
      expect(error, `${length} tokens`).toBeLessThan(BOUND);
    }
    await executable.close();
    device.destroy();
  } finally {
    rmSync(folder, { recursive: true });
  }
});

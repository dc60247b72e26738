/** Embeddings on a device: those of the reference implementation, and the same bits whatever the batch, the chunk or the hits (E2). */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'vitest';
import { loadModel, type LoadedModel } from '../../shared/engine/load_model.ts';
import type { LoadModelOptions } from '../../shared/engine/load_options.ts';
import { Pooling } from '../../shared/protocol/messages.ts';
import { Harness } from '../support/engine_harness.ts';
import { goldenFolder } from '../support/golden.ts';
import { projectPath } from '../support/project.ts';
import { loadDefaults } from '../support/reference_loop.ts';

const BOUND = 1e-3;
const golden = JSON.parse(readFileSync(projectPath('test/golden/embeddings/golden.json'), 'utf8')) as {
  readonly cases: readonly { readonly prompt: number[]; readonly last: number[]; readonly mean: number[] }[];
};

const poolings = [
  ['last', Pooling.LAST],
  ['mean', Pooling.MEAN],
] as const;

export function embeddingSuite(more: Partial<LoadModelOptions> = {}): void {
  const load = (chunkTokens: number): Promise<LoadedModel> =>
    loadModel({
      ...loadDefaults,
      modelPath: goldenFolder('llama-untied'),
      kvDtype: 'f32',
      weightFormat: 'f32',
      chunkTokens,
      ...more,
    });
  describe.each(poolings)('embeddings, pooling %s', (name, pooling) => {
    test('they are those of the reference, alone, in a batch of chunks, and after hits bit for bit', async () => {
      const whole = await load(128);
      const small = await load(48);
      const alone = new Harness(whole, 80, 128);
      const batch = new Harness(small, 80, 48);
      const found: (Float32Array | undefined)[] = [];
      for (const { prompt, ...want } of golden.cases) {
        const id = alone.submit(prompt, 0, { kind: 'embed', pooling });
        await alone.run();
        const values = alone.embeddings.get(id);
        assert(values, `${prompt.length} tokens have no embedding`);
        found.push(values);
        const highest = Math.max(...want[name].map(Math.abs));
        const error = Math.max(...want[name].map((value, i) => Math.abs(value - (values[i] ?? NaN)))) / highest;
        assert(error <= BOUND, `${prompt.length} tokens: max |Δ| / max |value| is ${error}`);
        assert(Math.abs(values.reduce((sum, value) => sum + value * value, 0) - 1) < 1e-5, 'its length is 1');
      }
      for (const round of ['in a batch', 'after hits']) {
        const ids = golden.cases.map(({ prompt }) => batch.submit(prompt, 0, { kind: 'embed', pooling }));
        await batch.run();
        ids.forEach((id, i) => {
          const numTokens = golden.cases[i]!.prompt.length;
          assert.deepEqual(batch.embeddings.get(id), found[i], `${numTokens} tokens ${round}`);
          const hits = pooling === Pooling.LAST && round === 'after hits' ? 32 * Math.floor((numTokens - 1) / 32) : 0;
          if (round === 'after hits') assert.equal(batch.reports.get(id)?.cachedTokens, hits);
        });
      }
      for (const { executable, device } of [whole, small]) {
        await executable.close();
        device.destroy();
      }
    });
  });
}

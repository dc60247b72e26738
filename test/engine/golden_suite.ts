/** A device against the reference implementation, in f32. Bounds are those of the golden vectors. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { MAX_FULL_ROWS, type Executable } from '../../kernels/device.ts';
import type { LoadModelOptions } from '../../shared/engine/load_options.ts';
import {
  comparableSteps,
  goldenCases,
  goldenFolder,
  goldenModels,
  type GoldenCase,
  logitsAt,
  maxAbs,
} from '../support/golden.ts';
import { isSoftware } from '../kernels/software_gpu.ts';
import { generate, greedy, loadReference } from '../support/reference_loop.ts';
import { keptState } from '../support/states.ts';

const BOUND = 1e-3;

/** Relative errors of logits, by position. Those beyond the bound fail at once, unless a share of them is allowed. */
class Errors {
  readonly #bound: number;
  readonly #share: number;
  readonly #beyond: string[] = [];
  #num = 0;

  constructor(bound: number, share: number) {
    this.#bound = bound;
    this.#share = share;
  }

  add(where: string, error: number): void {
    this.#num++;
    if (error <= this.#bound) return;
    const text = `${where}: max |Δ logit| / max |logit| is ${error}`;
    if (this.#share === 0 || Number.isNaN(error)) assert.fail(text);
    this.#beyond.push(text);
  }

  end(): void {
    assert(this.#beyond.length <= this.#share * this.#num, `of ${this.#num} positions: ${this.#beyond.join('; ')}`);
  }
}

/**
 * Compares the models with their golden vectors: logits within `bound` of the largest, and greedy ids. `shareBeyond`: this share of the
 * positions may be beyond the bound, and ids are not compared. It is for mixtures on devices that round inputs, where experts whose
 * scores nearly tie are exchanged. `casesOf`: which prompts of a model are compared.
 */
export function goldenSuite(
  more: Partial<LoadModelOptions> = {},
  models: readonly string[] = goldenModels,
  bound = BOUND,
  shareBeyond = 0,
  casesOf: (name: string) => readonly GoldenCase[] = goldenCases,
): void {
  describe.each(models)('%s', (name) => {
    test('logits and greedy ids are those of the reference', async () => {
      const { executable, folder, device } = await loadReference(goldenFolder(name), 'f32', 2_048, {
        weightFormat: 'f32',
        ...more,
      });
      const errors = new Errors(bound, shareBeyond);
      for (const golden of casesOf(name)) {
        const blockTable = Array.from({ length: Math.ceil(golden.prompt.length / 32) }, (_, i) => i);
        const want = logitsAt(name, golden, golden.prompt.length - 1, folder.config.vocabSize);
        const highest = maxAbs(want);
        const row = golden.prompt.length - 1;
        const samples = [{ row, numCandidates: 1, askedTokens: [], isFullRowWanted: true }];
        const [result] = await executable.run([
          { tokens: golden.prompt, start: 0, blockTable, samples, ...keptState(executable, 0, golden.prompt.length) },
        ]);
        assert(result?.fullRow);
        const error = maxAbs(result.fullRow.map((value, i) => value - (want[i] ?? 0))) / highest;
        errors.add(`${golden.prompt.length} tokens`, error);

        if (golden.positions === 'all') {
          const isSlow = device.kind === 'webgpu' && isSoftware;
          await manyRows(executable, name, golden, folder.config.vocabSize, errors, isSlow);
        }

        if (shareBeyond > 0) continue;
        const numSteps = comparableSteps(golden, 2 * bound * highest);
        const output = await generate(executable, golden.prompt, greedy, numSteps);
        assert.deepEqual(
          output.map(({ token }) => token),
          golden.greedy.slice(0, numSteps),
        );
      }
      errors.end();
      await executable.close();
      device.destroy();
    });
  });
}

/** Every position is sampled once, as many in a step as it gives whole rows; on a slow device every seventh, by itself. */
async function manyRows(
  executable: Executable,
  name: string,
  golden: GoldenCase,
  vocabSize: number,
  errors: Errors,
  isSlow: boolean,
): Promise<void> {
  // A software GPU compiles a product for every number of rows, in seconds each.
  const [rowsAtOnce, stride] = isSlow ? [1, 7] : [MAX_FULL_ROWS, MAX_FULL_ROWS];
  assert.equal(golden.rows, golden.prompt.length);
  const blockTable = Array.from({ length: Math.ceil(golden.prompt.length / 32) }, (_, i) => i);
  for (let start = 0; start < golden.prompt.length; start += stride) {
    // A recurrent state needs every row, whether or not it is sampled.
    const numRows = executable.numStateSlots > 0 ? stride : rowsAtOnce;
    const tokens = golden.prompt.slice(start, start + numRows);
    const sampled = tokens.slice(0, rowsAtOnce);
    const samples = sampled.map((_, row) => ({ row, numCandidates: 1, askedTokens: [], isFullRowWanted: true }));
    const state = keptState(executable, start, tokens.length);
    const results = await executable.run([{ tokens, start, blockTable, samples, ...state }]);
    results.forEach(({ fullRow }, row) => {
      const want = logitsAt(name, golden, start + row, vocabSize);
      const error = maxAbs(want.map((logit, i) => (fullRow?.[i] ?? NaN) - logit)) / maxAbs(want);
      errors.add(`position ${start + row} of ${golden.prompt.length}`, error);
    });
  }
}

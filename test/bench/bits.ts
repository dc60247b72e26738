/**
 * `node dist/test/bench/bits.js [--device NAME] [--models LIST]`: a digest of what each golden model computes, a line for every weight format
 * and KV type: logits of the last row, candidates, KV of every full block. Two builds that compute the same print the same lines, so that a
 * change which must not touch the numbers (E2) is checked by `diff`. PENSTOCK_PRODUCTS names the products of the wasm device.
 */
import { createHash } from 'node:crypto';
import { parseArgs } from 'node:util';
import { weightFormats } from '../../kernels/weights/weight_format.ts';
import { Random } from '../../shared/base/random.ts';
import { loadModel } from '../../shared/engine/load_model.ts';
import { goldenFolder, goldenFormats, goldenModels } from '../support/golden.ts';
import { loadDefaults } from '../support/reference_loop.ts';
import { keptState } from '../support/states.ts';

const NUM_TOKENS = 150;
const CHUNK = 64;
/** Blocks that the prompt's table is scattered over. */
const NUM_BLOCKS = 100;

type Options = Parameters<typeof loadModel>[0];

async function digestOf(options: Pick<Options, 'modelPath' | 'weightFormat' | 'kvDtype' | 'device'>): Promise<string> {
  const { executable, folder, device } = await loadModel({ ...loadDefaults, numBlocks: NUM_BLOCKS, ...options });
  const random = new Random(3);
  const tokens = Array.from({ length: NUM_TOKENS }, () => random.below(folder.config.vocabSize));
  const blockTable = Array.from(
    { length: Math.ceil(NUM_TOKENS / loadDefaults.blockSize) },
    (_, i) => (i * 27 + 9) % 100,
  );
  const digest = createHash('sha256');
  for (let start = 0; start < NUM_TOKENS; start += CHUNK) {
    const part = tokens.slice(start, start + CHUNK);
    const samples = [{ row: part.length - 1, numCandidates: 8, askedTokens: [1, 2], isFullRowWanted: true }];
    const state = keptState(executable, start, part.length);
    const [result] = await executable.run([{ tokens: part, start, blockTable, samples, ...state }]);
    if (!result?.fullRow) throw new Error('the step returned no row');
    digest.update(result.fullRow).update(result.candidateIds).update(result.candidateLogits);
    digest.update(Float32Array.of(result.logSumExp, ...result.askedLogits));
  }
  const full = blockTable.slice(0, Math.floor(NUM_TOKENS / loadDefaults.blockSize));
  const payloads = full.map(() => new Uint8Array(executable.blockBytes));
  await executable.exportBlocks(full, payloads);
  for (const payload of payloads) digest.update(payload);
  await executable.close();
  device.destroy();
  return digest.digest('hex').slice(0, 32);
}

const { values } = parseArgs({
  options: { device: { type: 'string', default: 'wasm' }, models: { type: 'string' } },
});
const models = values.models?.split(',') ?? goldenModels;
for (const kvDtype of ['f16', 'f32'] as const) {
  for (const model of models) {
    for (const weightFormat of weightFormats) {
      const digest = await digestOf({ modelPath: goldenFolder(model), weightFormat, kvDtype, device: values.device });
      console.log(`${model} ${weightFormat} ${kvDtype} ${digest}`);
    }
  }
  for (const model of values.models === undefined ? goldenFormats : []) {
    const digest = await digestOf({
      modelPath: goldenFolder(model),
      weightFormat: 'auto',
      kvDtype,
      device: values.device,
    });
    console.log(`${model} auto ${kvDtype} ${digest}`);
  }
}

/** E2: what a device computes for a sequence has the same bits however the work is cut. */
import type { LoadModelOptions } from '../../shared/engine/load_model.ts';
import { loadModel } from '../../shared/engine/load_model.ts';
import { Random } from '../../shared/base/random.ts';
import { loadDefaults } from '../support/reference_loop.ts';

/** Rows a step takes, and how many other sequences are in every step beside, of three tokens unless told otherwise. */
export interface Cut {
  readonly chunk: number;
  readonly numOthers: number;
  readonly otherTokens?: number;
}

const NUM_TOKENS = 150;

/** Per cut, the logits of the last token and the KV of every full block, as text, for one prompt and one load of the model. */
export async function bitsOf(
  options: Partial<LoadModelOptions> & { modelPath: string },
  cuts: readonly Cut[],
): Promise<string[]> {
  const { executable, folder, device } = await loadModel({ ...loadDefaults, numBlocks: 128, ...options });
  const random = new Random(3);
  const tokens = Array.from({ length: NUM_TOKENS }, () => random.below(folder.config.vocabSize));
  const blockSize = options.blockSize ?? loadDefaults.blockSize;
  const table = Array.from({ length: Math.ceil(NUM_TOKENS / blockSize) }, (_, i) => (i * 27 + 9) % 100);
  const texts: string[] = [];
  for (const { chunk, numOthers, otherTokens = 3 } of cuts) {
    let last: Float32Array | undefined;
    for (let start = 0; start < tokens.length; start += chunk) {
      const others = Array.from({ length: numOthers }, (_, i) => ({
        tokens: Array.from({ length: otherTokens }, (__, t) => i + 1 + t),
        start: 0,
        blockTable: [100 + i],
      }));
      const part = tokens.slice(start, start + chunk);
      const samples = [{ row: part.length - 1, numCandidates: 4, askedTokens: [], isFullRowWanted: true }];
      const [result] = await executable.run([...others, { tokens: part, start, blockTable: table, samples }]);
      last = result?.fullRow;
    }
    const full = table.slice(0, Math.floor(NUM_TOKENS / blockSize));
    const payloads = full.map(() => new Uint8Array(executable.blockBytes));
    await executable.exportBlocks(full, payloads);
    texts.push(
      [Buffer.from(last?.buffer as ArrayBuffer), ...payloads.map((bytes) => Buffer.from(bytes))]
        .map((bytes) => bytes.toString('hex'))
        .join('\n'),
    );
    // Nothing of this cut may help the next.
    await executable.importBlocks(
      full,
      full.map(() => new Uint8Array(executable.blockBytes)),
    );
  }
  await executable.close();
  device.destroy();
  return texts;
}

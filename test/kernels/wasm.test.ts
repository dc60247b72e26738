/** The wasm device conforms, and keeps its bits (E2) whatever the rows, the chunks and the threads. Budget: 20 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { createWasmDevice } from '../../kernels/wasm/wasm_device.ts';
import { Random } from '../../shared/base/random.ts';
import { loadModel } from '../../shared/engine/load_model.ts';
import { goldenFolder } from '../support/golden.ts';
import { conformance } from './conformance.ts';

conformance({ name: 'wasm', open: () => Promise.resolve(createWasmDevice(2)), tolerance: 2e-6 });

/** Logits of the last token and the KV of every full block, for a prompt cut into chunks of these sizes. */
async function bits(chunk: number, numThreads: number, kvDtype: 'f16' | 'f32', numOthers: number): Promise<string> {
  const { executable, folder } = await loadModel({
    ...{ modelPath: goldenFolder('llama-odd'), device: 'wasm', kvDtype, blockSize: 32, numBlocks: 64, numThreads },
    ...{ chunkTokens: 512, maxNumSeqs: 8, maxModelLen: 0 },
  });
  const random = new Random(3);
  const tokens = Array.from({ length: 150 }, () => random.below(folder.config.vocabSize));
  const table = [9, 3, 17, 4, 30];
  let last: Float32Array | undefined;
  for (let start = 0; start < tokens.length; start += chunk) {
    const part = tokens.slice(start, start + chunk);
    const others = Array.from({ length: numOthers }, (_, i) => ({
      tokens: [i + 1, i + 2, i + 3],
      start: 0,
      blockTable: [40 + i],
    }));
    const sample = { numCandidates: 4, askedTokens: [], isFullRowWanted: true };
    const [result] = await executable.run([...others, { tokens: part, start, blockTable: table, sample }]);
    last = result?.fullRow;
  }
  const digest: string[] = [Buffer.from(last?.buffer as ArrayBuffer).toString('hex')];
  for (const block of table.slice(0, 4)) {
    const payload = new Uint8Array(executable.blockBytes);
    await executable.exportBlock(block, payload);
    digest.push(Buffer.from(payload).toString('hex'));
  }
  await executable.close();
  return digest.join('\n');
}

test.each(['f16', 'f32'] as const)(
  'E2: %s KV and logits have the same bits in chunks of 150, 37, 1, beside others, on 1 to 3 threads',
  async (kvDtype) => {
    const want = await bits(150, 1, kvDtype, 0);
    for (const [chunk, threads, others] of [
      [37, 1, 0],
      [1, 1, 0],
      [150, 2, 3],
      [64, 3, 5],
      [5, 2, 1],
    ] as const) {
      assert.equal(
        await bits(chunk, threads, kvDtype, others),
        want,
        `chunks of ${chunk}, ${threads} threads, ${others} other sequences`,
      );
    }
  },
);

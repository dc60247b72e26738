/** The wasm device conforms, and keeps its bits (E2) whatever the rows, the chunks and the threads. Budget: 20 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { createWasmDevice, type WasmDevice } from '../../kernels/wasm/wasm_device.ts';
import { goldenFolder } from '../support/golden.ts';
import { bitsOf } from './bits.ts';
import { conformance } from './conformance.ts';

for (const [name, hasRelaxed] of [
  ['wasm', true],
  ['wasm without relaxed SIMD', false],
] as const) {
  const open = (): Promise<WasmDevice> => Promise.resolve(createWasmDevice(2, hasRelaxed));
  conformance({ name, open, tolerance: 2e-6, quantisesActivations: true });
}

test.each(['f16', 'f32'] as const)(
  'E2: %s KV and logits have the same bits in chunks of 150, 37, 1, beside others, on 1 to 3 threads',
  async (kvDtype) => {
    const modelPath = goldenFolder('llama-odd');
    const cuts = [
      { chunk: 150, numOthers: 0 },
      { chunk: 37, numOthers: 0 },
      { chunk: 1, numOthers: 0 },
      { chunk: 64, numOthers: 5 },
      { chunk: 5, numOthers: 1 },
    ];
    const texts: string[] = [];
    for (const numThreads of [1, 2, 3]) texts.push(...(await bitsOf({ modelPath, kvDtype, numThreads }, cuts)));
    assert.equal(texts.length, 15);
    assert.equal(new Set(texts).size, 1, 'one text');
  },
);

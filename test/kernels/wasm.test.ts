/** The wasm device conforms, and keeps its bits (E2) whatever the rows, the chunks and the threads. Budget: 40 s. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { createWasmDevice, type WasmDevice } from '../../kernels/wasm/wasm_device.ts';
import { weightFormats } from '../../kernels/weight_format.ts';
import { Random } from '../../shared/base/random.ts';
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

test.each([
  ['int8', 'f16'],
  ['int8', 'f32'],
  ['f32', 'f32'],
  ['f16', 'f16'],
  ['int4', 'f16'],
] as const)(
  'E2: with %s weights, %s KV and logits have the same bits in chunks of 150, 37, 1, beside others, on 1 to 4 threads',
  async (weightFormat, kvDtype) => {
    const modelPath = goldenFolder('llama-odd');
    const cuts = [
      { chunk: 150, numOthers: 0 },
      { chunk: 37, numOthers: 0 },
      { chunk: 1, numOthers: 0 },
      { chunk: 1, numOthers: 7, otherTokens: 1 },
      { chunk: 64, numOthers: 5 },
      { chunk: 5, numOthers: 1 },
    ];
    const texts: string[] = [];
    for (const numThreads of [1, 2, 4]) {
      texts.push(...(await bitsOf({ modelPath, kvDtype, weightFormat, numThreads }, cuts)));
    }
    assert.equal(texts.length, 3 * cuts.length);
    assert.equal(new Set(texts).size, 1, 'one text');
  },
);

describe.each([true, false])('E2, relaxed SIMD %s', (hasRelaxed) => {
  test.each(weightFormats)("a product's row has the same bits whatever rows are beside it, in %s", async (format) => {
    const [rows, inner, outputs] = [31, 1_300, 72];
    const random = new Random(11);
    const noise = (length: number): Float32Array => Float32Array.from({ length }, () => random.u32() / 2 ** 31 - 1);
    const [x, weight] = [noise(rows * inner), noise(outputs * inner)];
    const device = createWasmDevice(2, hasRelaxed);
    const executable = await device.load(
      {
        operations: [{ kind: 'linear', x: 'x', weight: 'w', out: 'out', accumulate: false }],
        buffers: { x: { rows: 'rows', width: inner }, out: { rows: 'rows', width: outputs } },
        weights: { w: { outputs, inner, parts: [{ tensor: 'w', outputs }] } },
      },
      {
        async *slices() {
          yield await Promise.resolve({ rowStart: 0, values: weight });
        },
      },
      {
        ...{ maxRows: rows, maxSamples: 1, maxBlocksPerSequence: 1, weightFormat: format, kvDtype: 'f16' },
        ...{ blockSize: 32, numBlocks: { min: 1, max: 1 } },
      },
    );
    const productOf = async (first: number, count: number): Promise<string> => {
      await executable.write('x', x.subarray(first * inner, (first + count) * inner));
      await executable.run([{ tokens: new Array<number>(count).fill(0), start: 0, blockTable: [0] }]);
      return Buffer.from((await executable.read('out', count)).buffer).toString('hex');
    };
    const whole = await productOf(0, rows);
    for (const size of [1, 2, 3, 5, 8, 13]) {
      let parts = '';
      for (let row = 0; row < rows; row += size) parts += await productOf(row, Math.min(size, rows - row));
      assert.equal(parts, whole, `${size} rows at a time`);
    }
    await executable.close();
  });
});

test('relaxed and plain SIMD are different numerics classes exactly where the CPU fuses multiply-add', () => {
  const [relaxed, plain] = [createWasmDevice(1), createWasmDevice(1, false)];
  assert.equal(plain.numericsClass, 'wasm/simd128/mul-add');
  const isFused = relaxed.description.includes('fused');
  assert.equal(relaxed.numericsClass, isFused ? 'wasm/simd128/fused' : 'wasm/simd128/mul-add');
});

test('a model beyond the address space is refused with the sizes before anything is allocated', async () => {
  const [inner, outputs] = [65_536, 65_536];
  const load = createWasmDevice(1).load(
    {
      operations: [{ kind: 'linear', x: 'x', weight: 'w', out: 'out', accumulate: false }],
      buffers: { x: { rows: 'rows', width: inner }, out: { rows: 'rows', width: outputs } },
      weights: { w: { outputs, inner, parts: [{ tensor: 'w', outputs }] } },
    },
    { slices: () => assert.fail('nothing is read') },
    {
      ...{ maxRows: 1, maxSamples: 1, maxBlocksPerSequence: 1, weightFormat: 'int8', kvDtype: 'f16' },
      ...{ blockSize: 32, numBlocks: { min: 1, max: 1 } },
    },
  );
  await expect(load).rejects.toThrow(
    /addresses at most 4096.0 MiB, 43\d\d.\d MiB needed \(weights 4352.0 MiB.*use a smaller --weights format \(int4/,
  );
});

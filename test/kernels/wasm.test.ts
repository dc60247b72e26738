/** The wasm device conforms, and keeps its bits (E2) whatever the rows, the chunks and the threads. Budget: 40 s. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { compileKernels } from '../../kernels/wasm/compiled_kernels.ts';
import * as constants from '../../kernels/wasm/kernel_constants.ts';
import { createWasmDevice, type WasmDevice } from '../../kernels/wasm/wasm_device.ts';
import { floatRows } from '../../kernels/weights/stored_rows.ts';
import { roundRows, weightFormats, type WeightFormat } from '../../kernels/weights/weight_format.ts';
import type { Executable, Segment } from '../../kernels/device.ts';
import { Random } from '../../shared/base/random.ts';
import { goldenFolder } from '../support/golden.ts';
import { assertSameBits, bitsOf } from './bits.ts';
import { conformance } from './conformance.ts';
import { isLong, sampleOf } from '../support/long.ts';
import { productsOfRun } from '../support/products.ts';
import { noKv } from '../../kernels/kv_layout.ts';

/** A device with the products of this run; a runtime without relaxed SIMD has only one kind. */
const openWasm = (numThreads: number, hasRelaxed: boolean): WasmDevice =>
  createWasmDevice(numThreads, hasRelaxed, 1, {}, { wanted: hasRelaxed ? productsOfRun : 'auto' });

/** Whether relaxed SIMD is there. Without it no run but the first has other products. */
const runtimes = productsOfRun === 'auto' ? [true, false] : [true];

for (const hasRelaxed of runtimes) {
  const name = hasRelaxed ? 'wasm' : 'wasm without relaxed SIMD';
  const open = (): Promise<WasmDevice> => Promise.resolve(openWasm(2, hasRelaxed));
  // Samples differ in one instruction.
  const sampling = hasRelaxed ? {} : { sampling: [{ vocab: 1_500, cases: 2_000 }] };
  // In steps that have no common factor, so that between them they have more.
  const oneIn = isLong ? 1 : hasRelaxed ? 2 : 3;
  conformance({ name, open, tolerance: 2e-6, quantisesActivations: true, oneIn, ...sampling });
}

test.each([true, false])('the kernels have the numbers that their callers count on, relaxed %s', (mayRelax) => {
  const memory = new WebAssembly.Memory({ initial: 1, maximum: 1, shared: true });
  const { exports } = new WebAssembly.Instance(compileKernels(mayRelax).module, { env: { memory } });
  const built = Object.keys(constants).map((name) => [name, (exports[name] as { value: number }).value]);
  assert.deepEqual(Object.fromEntries(built), { ...constants });
});

test.each(
  sampleOf(
    [
      ['llama-odd', 'int8', 'f16'],
      ['llama-odd', 'int8', 'f32'],
      ['llama-odd', 'f32', 'f32'],
      ['llama-odd', 'f16', 'f16'],
      ['llama-odd', 'int4', 'f16'],
      ['llama-odd', 'uint4', 'f16'],
      ['gemma2', 'int8', 'f16'],
      ['gemma4', 'int8', 'f16'],
      ['gemma4', 'f32', 'f32'],
      ['gemma4-e', 'int8', 'f16'],
      ['gemma4-moe', 'int8', 'f16'],
      ['qwen3-moe', 'int8', 'f16'],
      ['qwen3-moe', 'f16', 'f32'],
      ['mixtral', 'int4', 'f16'],
      ['deepseek_v3', 'int8', 'f16'],
      ['deepseek_v3', 'f16', 'f32'],
      ['glm4_moe', 'uint4', 'f16'],
      ['gpt_oss', 'mxfp4', 'f16'],
      ['llama-odd', 'iq4', 'f16'],
      ['gpt_oss', 'int8', 'f32'],
    ] as const,
    4,
  ),
)(
  'E2: %s with %s weights, %s KV and logits have the same bits in chunks of 150, 37, 1, with others, on 1 to 4 threads',
  async (model, weightFormat, kvDtype) => {
    const cuts = [
      { chunk: 150, numOthers: 0 },
      { chunk: 37, numOthers: 0 },
      { chunk: 1, numOthers: 0 },
      { chunk: 1, numOthers: 7, otherTokens: 1 },
      { chunk: 64, numOthers: 5 },
      { chunk: 5, numOthers: 1 },
      { chunk: 64, numOthers: 0, isInRanges: true },
      { chunk: 49, numOthers: 3, isInRanges: true },
    ];
    const texts: string[] = [];
    for (const numThreads of [1, 2, 3, 4]) {
      texts.push(...(await bitsOf({ modelPath: goldenFolder(model), kvDtype, weightFormat, numThreads }, cuts)));
    }
    assertSameBits(texts);
  },
);

const rowsOf = (count: number): Segment[] => [
  { tokens: new Array<number>(count).fill(0), start: 0, blockTable: Array.from({ length: 4 }, (_, i) => i) },
];

async function loadProduct(
  device: WasmDevice,
  weightFormat: WeightFormat,
  weight: Float32Array,
  outputs: number,
  inner: number,
  maxRows = 1,
): Promise<Executable> {
  return device.load(
    {
      operations: [{ kind: 'linear', x: 'x', weight: 'w', out: 'out', accumulate: false }],
      buffers: { x: { rows: 'rows', width: inner }, out: { rows: 'rows', width: outputs } },
      weights: { w: { outputs, inner, parts: [{ tensor: 'w', outputs }] } },
      kv: [],
      rope: {},
    },
    {
      async *slices() {
        yield await Promise.resolve(floatRows(weight));
      },
    },
    { maxRows, maxSamples: 1, maxBlocksPerSequence: 4, weightFormat, kv: noKv, numBlocks: { min: 4, max: 4 } },
  );
}

test.each(weightFormats)('the largest integers of %s, over whole groups, are multiplied exactly', async (format) => {
  const [inner, outputs] = [128, 24];
  // Scale 1/8: the quantised values of int4 are -8 and 7, those of int8 are -127 and 111.
  const weight = Float32Array.from({ length: inner * outputs }, (_, i) =>
    Math.floor(i / inner) % 3 === i % 2 ? 0.875 : -1,
  );
  for (const hasRelaxed of [true, false]) {
    const executable = await loadProduct(openWasm(2, hasRelaxed), format, weight.slice(), outputs, inner, 5);
    const x = Float32Array.from({ length: 5 * inner }, (_, i) => (i < inner || i % 3 === 0 ? 1 : -1));
    const kept = weight.slice();
    roundRows(format, kept, inner);
    for (const count of [1, 5]) {
      await executable.write('x', x.subarray(0, count * inner));
      await executable.run(rowsOf(count));
      const out = await executable.read('out', count);
      out.forEach((value, i) => {
        let sum = 0;
        for (let k = 0; k < inner; k++)
          sum += x[Math.floor(i / outputs) * inner + k]! * kept[(i % outputs) * inner + k]!;
        assert(Math.abs(value - sum) <= 1e-4, `[${i}] ${value} is not ${sum}`);
      });
    }
    await executable.close();
  }
});

test.each([
  ['blocks of 4', { blockSize: 4 }],
  ['blocks of 48', { blockSize: 48 }],
  ['blocks of 256', { blockSize: 256 }],
  // KV beyond 2 GiB, of which only what is used becomes memory: what lies after it has offsets that are negative as i32.
  ['blocks up to 3 GiB', { numBlocks: 393_216 }],
])('E2: with %s, KV and logits have the same bits in chunks of 150 and 1, on 1 and 2 threads', async (_, more) => {
  const modelPath = goldenFolder('llama-odd');
  const cuts = [
    { chunk: 150, numOthers: 0 },
    { chunk: 1, numOthers: 0 },
  ];
  const texts: string[] = [];
  for (const numThreads of [1, 2]) texts.push(...(await bitsOf({ modelPath, ...more, numThreads }, cuts)));
  assertSameBits(texts);
});

describe.each(runtimes)('E2, relaxed SIMD %s', (hasRelaxed) => {
  test.each(weightFormats)("a product's row has the same bits whatever rows are next to it, in %s", async (format) => {
    const [rows, inner, outputs] = [127, 1_300, 72];
    const random = new Random(11);
    const noise = (length: number): Float32Array => Float32Array.from({ length }, () => random.u32() / 2 ** 31 - 1);
    const [x, weight] = [noise(rows * inner), noise(outputs * inner)];
    const executable = await loadProduct(openWasm(2, hasRelaxed), format, weight, outputs, inner, rows);
    const productOf = async (first: number, count: number): Promise<string> => {
      await executable.write('x', x.subarray(first * inner, (first + count) * inner));
      await executable.run(rowsOf(count));
      return Buffer.from((await executable.read('out', count)).buffer).toString('hex');
    };
    const whole = await productOf(0, rows);
    for (const size of [1, 2, 3, 5, 8, 13, 50]) {
      let parts = '';
      for (let row = 0; row < rows; row += size) parts += await productOf(row, Math.min(size, rows - row));
      assert.equal(parts, whole, `${size} rows at a time`);
    }
    await executable.close();
  });
});

test('relaxed and plain SIMD are different numerics classes exactly where the CPU fuses multiply-add', async () => {
  // (1 + 2^-12)² - (1 + 2^-11) is 2^-24, which is lost when the product is rounded by itself.
  const [a, c] = [1 + 2 ** -12, -(1 + 2 ** -11)];
  for (const hasRelaxed of [true, false]) {
    const device = openWasm(1, hasRelaxed);
    const executable = await loadProduct(device, 'f32', Float32Array.of(c, a), 1, 2);
    await executable.write('x', Float32Array.of(1, a));
    await executable.run(rowsOf(1));
    const [sum] = await executable.read('out', 1);
    assert.equal(device.numericsClass, `wasm/simd128-2/${sum === 2 ** -24 ? 'fused' : 'mul-add'}`);
    if (!hasRelaxed) assert.equal(sum, 0);
    await executable.close();
  }
});

test('a model beyond the address space is refused with the sizes before anything is allocated', async () => {
  const [inner, outputs] = [65_536, 65_536];
  const load = createWasmDevice(1).load(
    {
      operations: [{ kind: 'linear', x: 'x', weight: 'w', out: 'out', accumulate: false }],
      buffers: { x: { rows: 'rows', width: inner }, out: { rows: 'rows', width: outputs } },
      weights: { w: { outputs, inner, parts: [{ tensor: 'w', outputs }] } },
      kv: [],
      rope: {},
    },
    { slices: () => assert.fail('nothing is read') },
    {
      maxRows: 1,
      maxSamples: 1,
      maxBlocksPerSequence: 1,
      weightFormat: 'int8',
      kv: noKv,
      numBlocks: { min: 1, max: 1 },
    },
  );
  await expect(load).rejects.toThrow(
    /has at most 4096.0 MiB, and a part of this model that cannot be split is larger: 43\d\d.\d MiB needed \(weights 4352.0 MiB.*use a smaller --weights format \(int4/,
  );
});

/** E2 of attention by itself on wasm: windows, groups, head sizes, chunks of every way through the kernels. Budget: 30 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import type { KvDtype } from '../../kernels/program.ts';
import { createWasmDevice } from '../../kernels/wasm/wasm_device.ts';
import { keysAndValues } from './conformance/suite.ts';
import { Random } from '../../shared/base/random.ts';
import { kvLayoutFor } from '../support/kv.ts';

interface Shape {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly blockSize: number;
}

const NUM_ROWS = 170;
/** Position whose V is infinite when KV is f32: rows that do not see the position must not be affected. */
const SPOILT = 97;

const random = new Random(5);
const noise = (count: number): Float32Array => Float32Array.from({ length: count }, () => random.u32() / 2 ** 30 - 2);

/** KV of every block of one layer, [block][K or V][token][kvHead][headDim]. */
function blocksOf({ kvHeads, headDim, blockSize }: Shape, kvDtype: KvDtype): Uint8Array[] {
  return Array.from({ length: Math.ceil(NUM_ROWS / blockSize) }, (_, block) => {
    const values = noise(2 * blockSize * kvHeads * headDim);
    if (kvDtype === 'f16')
      return new Uint8Array(Uint16Array.from(values, (v) => (v < 0 ? 0xb000 : 0x3000) + ((v * v * 400) | 0)).buffer);
    const offset = SPOILT - block * blockSize;
    if (offset >= 0 && offset < blockSize) values[(blockSize + offset) * kvHeads * headDim] = Infinity;
    return new Uint8Array(values.buffer);
  });
}

/** The output of every row, in chunks of `chunk`, as text per row. */
async function rowsIn(
  { heads, kvHeads, headDim, blockSize }: Shape,
  kvDtype: KvDtype,
  window: number,
  numThreads: number,
  chunk: number,
  blocks: readonly Uint8Array[],
  qkv: Float32Array,
): Promise<string[]> {
  const width = (heads + 2 * kvHeads) * headDim;
  const device = createWasmDevice(numThreads);
  const executable = await device.load(
    {
      operations: [
        {
          kind: 'attention',
          qkv: 'qkv',
          out: 'out',
          layer: 0,
          scale: 0.4,
          heads,
          kvHeads,
          headDim,
          ...(window ? { window } : {}),
        },
      ],
      buffers: { qkv: { rows: 'rows', width }, out: { rows: 'rows', width: heads * headDim } },
      weights: {},
      kv: keysAndValues(1, kvHeads, headDim),
      rope: {},
    },
    { slices: () => assert.fail('there are no weights') },
    {
      maxRows: NUM_ROWS,
      maxSamples: 1,
      maxBlocksPerSequence: blocks.length,
      weightFormat: 'f32',
      kv: kvLayoutFor(keysAndValues(1, kvHeads, headDim), kvDtype, blockSize),
      numBlocks: { min: blocks.length, max: blocks.length },
    },
  );
  const blockTable = blocks.map((_, i) => (i * 5 + 2) % blocks.length);
  assert.equal(new Set(blockTable).size, blocks.length, 'a permutation');
  await executable.importBlocks(blockTable, blocks);
  const texts: string[] = [];
  for (let start = 0; start < NUM_ROWS; start += chunk) {
    const count = Math.min(chunk, NUM_ROWS - start);
    await executable.write('qkv', qkv.subarray(start * width, (start + count) * width));
    await executable.run([{ tokens: new Array<number>(count).fill(0), start, blockTable }]);
    const out = await executable.read('out', count);
    for (let row = 0; row < count; row++) {
      const values = out.slice(row * heads * headDim, (row + 1) * heads * headDim);
      const seesSpoilt = start + row >= SPOILT && (window === 0 || start + row < SPOILT + window);
      // The first value of every head that reads KV head 0.
      for (let head = 0; kvDtype === 'f32' && seesSpoilt && head < heads / kvHeads; head++) {
        assert(!Number.isFinite(values[head * headDim]), `row ${start + row} sees what is infinite`);
        values[head * headDim] = 0;
      }
      assert(values.every(Number.isFinite), `row ${start + row} is finite`);
      texts.push(Buffer.from(values.buffer).toString('hex'));
    }
  }
  await executable.close();
  device.destroy();
  return texts;
}

const shapes: readonly Shape[] = [
  { heads: 3, kvHeads: 3, headDim: 12, blockSize: 16 },
  { heads: 6, kvHeads: 2, headDim: 20, blockSize: 32 },
  { heads: 9, kvHeads: 1, headDim: 8, blockSize: 8 },
  { heads: 8, kvHeads: 2, headDim: 64, blockSize: 32 },
];

for (const shape of shapes) {
  for (const kvDtype of ['f16', 'f32'] as const) {
    test.each([0, 1, 33, 100])(
      `E2: ${shape.heads}/${shape.kvHeads} heads of ${shape.headDim}, blocks of ${shape.blockSize}, ${kvDtype}, window %i: the same bits in any chunks, on 1, 2 and 4 threads`,
      async (window) => {
        const blocks = blocksOf(shape, kvDtype);
        const qkv = noise(NUM_ROWS * (shape.heads + 2 * shape.kvHeads) * shape.headDim);
        const expected = await rowsIn(shape, kvDtype, window, 1, 1, blocks, qkv);
        assert(new Set(expected).size > 50);
        for (const [numThreads, chunk] of [
          [1, NUM_ROWS],
          [1, 40],
          [1, 3],
          [2, 16],
          [2, 1],
          [4, 2],
          [4, 61],
        ] as const) {
          assert.deepEqual(
            await rowsIn(shape, kvDtype, window, numThreads, chunk, blocks, qkv),
            expected,
            `${numThreads} threads, chunks of ${chunk}`,
          );
        }
      },
    );
  }
}

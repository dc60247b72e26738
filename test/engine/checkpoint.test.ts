/** Files of weights: shards by index, and what is truncated, oversized, lying or hostile. Budget: 20 s. */
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { Checkpoint } from '../../shared/model/checkpoint.ts';
import { ModelError } from '../../shared/model/model_folder.ts';
import { safetensors, withHeader } from '../support/checkpoint_folder.ts';
import { goldenFolder } from '../support/golden.ts';

const folders: string[] = [];
afterEach(() => {
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true });
});

function folderWith(files: Readonly<Record<string, string | Buffer>>): string {
  const folder = mkdtempSync(join(tmpdir(), 'weights-'));
  folders.push(folder);
  for (const [name, content] of Object.entries(files)) writeFileSync(join(folder, name), content);
  return folder;
}

const values = (count: number, first: number): Uint8Array =>
  new Uint8Array(Float32Array.from({ length: count }, (_, i) => first + i).buffer);
const [a, b] = [
  { shape: [3, 2], data: values(6, 0) },
  { shape: [4], data: values(4, 100) },
];
const index = (map: Readonly<Record<string, string>>): string => JSON.stringify({ metadata: {}, weight_map: map });

async function read(checkpoint: Checkpoint, tensor: string, outputs: number, firstRow = 0): Promise<number[]> {
  const all: number[] = [];
  for await (const { data } of checkpoint.slices({ tensor, outputs, firstRow }))
    all.push(...new Float32Array(Uint8Array.from(data).buffer));
  return all;
}

test('a model has one fingerprint, in one file or in shards; rows are found in either', async () => {
  const prints: string[] = [];
  for (const folder of [
    folderWith({
      'model.safetensors': safetensors(
        new Map([
          ['a', a],
          ['b', b],
        ]),
      ),
    }),
    folderWith({
      'one.safetensors': safetensors(new Map([['a', a]])),
      'two.safetensors': safetensors(new Map([['b', b]])),
      'model.safetensors.index.json': index({ a: 'one.safetensors', b: 'two.safetensors' }),
    }),
  ]) {
    const checkpoint = await Checkpoint.open(folder);
    expect(await read(checkpoint, 'a', 3)).toEqual([0, 1, 2, 3, 4, 5]);
    expect(await read(checkpoint, 'a', 1, 2)).toEqual([4, 5]);
    expect(await read(checkpoint, 'b', 4)).toEqual([100, 101, 102, 103]);
    prints.push(checkpoint.fingerprint('seed'));
    await checkpoint.close();
  }
  expect(prints[0]).toBe(prints[1]);
});

const whole = safetensors(new Map([['a', a]]));
const tensor = (start: number, end: number, shape = [(end - start) / 4], dtype = 'F32'): object => ({
  dtype,
  shape,
  data_offsets: [start, end],
});
const lying = (header: object | string, bytes = 64): Record<string, Buffer> => ({
  'model.safetensors': withHeader(typeof header === 'string' ? header : JSON.stringify(header), [Buffer.alloc(bytes)]),
});
const sized = (length: bigint): Buffer => {
  const size = Buffer.alloc(16);
  size.writeBigUInt64LE(length);
  return size;
};
const sharded = (map: unknown): Record<string, Buffer | string> => ({
  'one.safetensors': whole,
  'model.safetensors.index.json': JSON.stringify({ weight_map: map }),
});

test.each<[string, Record<string, string | Buffer>, RegExp]>([
  ['nothing', { 'config.json': '{}' }, /model\.safetensors is missing, and so is model\.safetensors\.index\.json/],
  ['four bytes', { 'model.safetensors': Buffer.alloc(4) }, /is truncated \(4 bytes\)/],
  ['a header beyond the file', { 'model.safetensors': sized(9_999n) }, /its header ends at 10007, the file at 16/],
  ['a header beyond everything', { 'model.safetensors': sized(2n ** 64n - 1n) }, /is not a safetensors file/],
  ['data cut off', { 'model.safetensors': whole.subarray(0, whole.length - 1) }, /tensor a ends at \d+, the file at/],
  ['a header that is no JSON', lying('{"a": '), /is not a safetensors file/],
  ['a header that is a list', lying('[]'), /is not a safetensors file/],
  ['overlapping tensors', lying({ a: tensor(0, 32), b: tensor(28, 60) }), /tensors a and b overlap/],
  ['a tensor in another', lying({ a: tensor(0, 64), b: tensor(4, 8) }), /tensors a and b overlap/],
  ['a tensor that ends first', lying({ a: tensor(32, 0, [0]) }), /ends before it begins/],
  ['another size than its shape', lying({ a: tensor(0, 32, [9]) }), /spans 32 bytes, its shape needs 36/],
  ['a shape beyond numbers', lying({ a: tensor(0, 32, [2 ** 40, 2 ** 40]) }), /its shape needs/],
  ['a negative shape', lying({ a: tensor(0, 32, [-8]) }), /is not a safetensors file/],
  [
    'a million tensors',
    lying(`{${Array.from({ length: 1e6 }, (_, i) => `"${i}":{}`).join()}}`),
    /names 1000000 tensors/,
  ],
  ['an index that is none', sharded(7), /is no index of safetensors files/],
  ['an empty index', sharded({}), /names no file/],
  ['an index out of its folder', sharded({ a: '../one.safetensors' }), /names "\.\.\/one\.safetensors", which is no/],
  ['an absolute path', sharded({ a: '/etc/passwd' }), /names "\/etc\/passwd", which is no/],
  ['an index of itself', sharded({ a: 'model.safetensors.index.json' }), /which is no safetensors file of this folder/],
  ['a shard that is not there', sharded({ a: 'two.safetensors' }), /two\.safetensors is missing, which/],
])('%s is refused', async (_name, files, pattern) => {
  const error = await Checkpoint.open(folderWith(files)).then(
    () => assert.fail('it opened'),
    (reason: unknown) => reason,
  );
  assert(error instanceof ModelError, String(error));
  assert.match(error.message, pattern);
});

test('the text part of a model that sees too is found under its names', async () => {
  for (const prefix of ['language_model.model.', 'model.language_model.']) {
    const tensors = new Map([
      [`${prefix}norm.weight`, b],
      ['vision_tower.norm.weight', a],
    ]);
    const checkpoint = await Checkpoint.open(folderWith({ 'model.safetensors': safetensors(tensors) }));
    expect(await read(checkpoint, 'model.norm.weight', 4)).toEqual([100, 101, 102, 103]);
    await checkpoint.close();
  }
});

test('a tensor that the index puts elsewhere is not there', async () => {
  const checkpoint = await Checkpoint.open(folderWith(sharded({ c: 'one.safetensors' })));
  expect([...checkpoint.shapes.keys()]).toEqual([]);
  await checkpoint.close();
});

test('5,000 mutated headers and indexes: each opens, or says in words why not', async () => {
  const random = new Random(17);
  const folder = folderWith({});
  cpSync(goldenFolder('qwen2'), folder, { recursive: true });
  const names = ['model-00001-of-00002.safetensors', 'model.safetensors.index.json'] as const;
  const originals = names.map((name) => readFileSync(join(folder, name)));
  const headerEnd = 8 + Number(originals[0]!.readBigUInt64LE());
  const numOf = { opened: 0, refused: 0 };
  for (let turn = 0; turn < 5_000; turn++) {
    const which = turn % 5 === 0 ? 1 : 0;
    const original = originals[which]!;
    const bytes = Buffer.from(original);
    const end = which === 0 ? headerEnd : bytes.length;
    for (let i = 0; i <= random.below(4); i++) bytes[random.below(end)] = random.below(256);
    writeFileSync(join(folder, names[which]), random.below(50) === 0 ? bytes.subarray(0, random.below(end)) : bytes);
    try {
      await (await Checkpoint.open(folder)).close();
      numOf.opened++;
    } catch (error) {
      assert(error instanceof ModelError, String(error));
      numOf.refused++;
    }
    writeFileSync(join(folder, names[which]), original);
  }
  assert(numOf.opened > 100 && numOf.refused > 1_000, JSON.stringify(numOf));
});

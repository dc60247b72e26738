/** Files of weights: shards by index, and what is truncated, oversized, lying or hostile. Budget: 20 s. */
import assert from 'node:assert/strict';
import {
  cpSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { Checkpoint } from '../../shared/model/checkpoint.ts';
import { halfBits, halfValue } from '../../shared/model/half_value.ts';
import { ModelError, readModelFolder } from '../../shared/model/model_folder.ts';
import { safetensors, withHeader } from '../support/checkpoint_folder.ts';
import { goldenFolder } from '../support/golden.ts';
import { sized } from '../support/long.ts';

const folders: string[] = [];
afterEach(() => {
  const own = folders.splice(0);
  const open = openFiles().filter((path) => own.some((folder) => path.startsWith(folder)));
  for (const folder of own) rmSync(folder, { recursive: true });
  assert.deepEqual(open, [], 'files are closed, also after a refusal: Node 26 ends a process for one that is not');
});

/** Returns the paths of all files that this process has open, where Linux lists them. */
function openFiles(): string[] {
  const folder = '/proc/self/fd';
  return (existsSync(folder) ? readdirSync(folder) : []).flatMap((name) => {
    try {
      return [readlinkSync(join(folder, name))];
    } catch {
      // The descriptor of the listing itself is closed by now.
      return [];
    }
  });
}

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
const sizedHeader = (length: bigint): Buffer => {
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
  [
    'a header beyond the file',
    { 'model.safetensors': sizedHeader(9_999n) },
    /its header ends at 10007, the file at 16/,
  ],
  ['a header beyond everything', { 'model.safetensors': sizedHeader(2n ** 64n - 1n) }, /is not a safetensors file/],
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
  for (let turn = 0; turn < sized(5_000, 1_000); turn++) {
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
  assert(numOf.opened > sized(100, 20) && numOf.refused > sized(1_000, 200), JSON.stringify(numOf));
});

test('a file whose metadata have names of their own is read: they are texts, and describe no tensor', async () => {
  const metadata = { shape: '[1, 2]', dtype: 'text', data_offsets: 'none', format: 'pt' };
  const header = { __metadata__: metadata, a: tensor(0, 24, [3, 2]) };
  const folder = folderWith({ 'model.safetensors': withHeader(JSON.stringify(header), [Buffer.from(a.data)]) });
  const checkpoint = await Checkpoint.open(folder);
  expect(await read(checkpoint, 'a', 3)).toEqual([0, 1, 2, 3, 4, 5]);
  await checkpoint.close();
});

/** The golden GPTQ model with its scales in another type, and the same values. `value`: what each becomes. */
function withScales(dtype: 'F16' | 'BF16' | 'F32', value: (scale: number) => number): string {
  const source = goldenFolder('llama-gptq');
  const file = readFileSync(join(source, 'model.safetensors'));
  const start = 8 + Number(file.readBigUInt64LE());
  const header = JSON.parse(file.toString('utf8', 8, start)) as Record<
    string,
    { dtype: string; data_offsets: [number, number] }
  >;
  const parts: Buffer[] = [];
  let end = 0;
  for (const [name, info] of Object.entries(header).filter(([one]) => one !== '__metadata__')) {
    const bytes = file.subarray(start + info.data_offsets[0], start + info.data_offsets[1]);
    const section = name.endsWith('.scales') ? converted(bytes, dtype, value) : bytes;
    if (name.endsWith('.scales')) info.dtype = dtype;
    info.data_offsets = [end, (end += section.length)];
    parts.push(section);
  }
  return folderWith({
    'model.safetensors': withHeader(JSON.stringify(header), parts),
    'config.json': readFileSync(join(source, 'config.json')),
  });
}

function converted(halves: Buffer, dtype: 'F16' | 'BF16' | 'F32', value: (scale: number) => number): Buffer {
  const values = Float32Array.from({ length: halves.length / 2 }, (_, i) =>
    value(halfValue(halves.readUInt16LE(2 * i))),
  );
  if (dtype === 'F32') return Buffer.from(values.buffer);
  const bits = new Uint32Array(values.buffer);
  const words = dtype === 'BF16' ? Uint16Array.from(bits, (one) => one >>> 16) : Uint16Array.from(values, halfBits);
  return Buffer.from(words.buffer);
}

/** Nearest below of those that bf16 has. */
function asBf16(value: number): number {
  const bits = new Uint32Array(Float32Array.of(value).buffer);
  bits[0] = (bits[0] ?? 0) & 0xffff0000;
  return new Float32Array(bits.buffer)[0] ?? 0;
}

test('scales of GPTQ in bf16 and f32 are those of f16, and one that no f16 holds is refused', async () => {
  const gate = 'model.layers.0.mlp.gate_proj.weight';
  const rowsIn = async (folder: string): Promise<string[]> => {
    const { config } = readModelFolder(folder);
    const checkpoint = await Checkpoint.open(folder, config.quantization);
    const [outputs = 0] = checkpoint.shapes.get(gate) ?? [];
    const rows: string[] = [];
    try {
      for await (const { data, format, ...more } of checkpoint.slices({ tensor: gate, outputs, firstRow: 0 }))
        rows.push(`${format} ${Buffer.from(data).toString('hex')} ${JSON.stringify(more)}`);
    } finally {
      await checkpoint.close();
    }
    assert(rows.length > 0);
    return rows;
  };
  const want = await rowsIn(withScales('F16', asBf16));
  assert.deepEqual(await rowsIn(withScales('BF16', asBf16)), want);
  assert.deepEqual(await rowsIn(withScales('F32', asBf16)), want);
  await assert.rejects(
    rowsIn(withScales('F32', () => 70_000)),
    (error: unknown) => error instanceof ModelError && /scales has 70000, which no f16 holds/.test(error.message),
  );
});

test('f16 is rounded to the nearest, of two to the even one, and beyond its range it is infinite', () => {
  for (let half = 0; half < 0x10000; half++) {
    const value = halfValue(half);
    if (Number.isNaN(value)) continue;
    assert.equal(halfBits(value), half);
    if ((half & 0x7fff) >= 0x7bff) continue;
    const next = halfValue(half + 1);
    const middle = (value + next) / 2;
    assert.equal(halfBits(middle), half % 2 === 0 ? half : half + 1, `between ${value} and ${next}`);
    assert.equal(halfBits(value + (next - value) * 0.4), half);
    assert.equal(halfBits(value + (next - value) * 0.6), half + 1);
  }
  assert.deepEqual([halfBits(65_519), halfBits(65_520), halfBits(-1e9)], [0x7bff, 0x7c00, 0xfc00]);
});

test.each([
  [{ temperature: 2.5 }, /temperature/],
  [{ temperature: -1 }, /temperature/],
  [{ top_p: 0 }, /top_p/],
  [{ top_p: 1.5 }, /top_p/],
  [{ top_k: -2 }, /top_k/],
  [{ min_p: 2 }, /min_p/],
  [{ repetition_penalty: 0 }, /repetition_penalty/],
])('generation_config.json with %j is refused by name', (values, pattern) => {
  const folder = folderWith({
    'config.json': readFileSync(join(goldenFolder('llama-tied'), 'config.json')),
    'generation_config.json': JSON.stringify(values),
  });
  assert.throws(
    () => readModelFolder(folder),
    (error: unknown) =>
      error instanceof ModelError && /generation_config\.json/.test(error.message) && pattern.test(error.message),
  );
});

test('an answer ends at the end tokens of both configurations', () => {
  const config = JSON.parse(readFileSync(join(goldenFolder('llama-tied'), 'config.json'), 'utf8')) as object;
  const endsOf = (eos: unknown, generation: unknown): readonly number[] =>
    readModelFolder(
      folderWith({
        'config.json': JSON.stringify({ ...config, eos_token_id: eos }),
        'generation_config.json': JSON.stringify({ eos_token_id: generation }),
      }),
    ).eosTokenIds;
  assert.deepEqual(endsOf(0, [2, 5]), [2, 5, 0]);
  assert.deepEqual(endsOf([5, 0], 5), [5, 0]);
  assert.deepEqual(endsOf(3, null), [3]);
  assert.deepEqual(endsOf(null, 4), [4]);
});

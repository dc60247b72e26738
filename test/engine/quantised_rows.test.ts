/** Quantised matrices: which stay integers, and what they decode to. Budget: 5 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { RowDecoder } from '../../kernels/weights/stored_rows.ts';
import { Random } from '../../shared/base/random.ts';
import { Checkpoint } from '../../shared/model/checkpoint.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import {
  awqMatrix,
  fp8Matrix,
  gptqMatrix,
  plainGroups,
  zeroHalves,
  type QuantisedMatrix,
} from '../../shared/model/quantised_rows.ts';
import type { ModelRows } from '../../shared/model/weights.ts';
import { halfValue } from '../support/half.ts';
import { goldenFolder } from '../support/golden.ts';

const random = new Random(23);
const words = (length: number): Uint32Array => Uint32Array.from({ length }, () => random.u32());
/** f16 of 2^-6 to 2^-3. */
const halves = (length: number): Uint16Array => Uint16Array.from({ length }, () => 0x2400 + random.below(0x0c00));
const nibble = (word: number, i: number): number => (word >>> (4 * i)) & 15;

function decoded(matrix: QuantisedMatrix, first: number, count: number, inner: number): number[] {
  return [...new RowDecoder().floats({ rowStart: 0, ...matrix.rows(first, count) }, inner)];
}

test.each([
  ['symmetric, groups of 32', 32, 0x77777777, 'int4'],
  ['symmetric, groups of 64', 64, 0x77777777, 'int4'],
  ['symmetric, groups of 128', 128, 0x77777777, 'int4'],
  ['symmetric, groups of 16', 16, 0x77777777, 'f32'],
  ['zero points', 32, undefined, 'uint4'],
  ['zero points, groups of 64', 64, undefined, 'uint4'],
  ['zero points, groups of 16', 16, undefined, 'f32'],
] as const)('gptq, %s', (_name, groupSize, zeros, format) => {
  const [outputs, inner] = [24, 256];
  const groups = inner / groupSize;
  const tensors = {
    qweight: words((inner / 8) * outputs),
    qzeros: zeros === undefined ? words((groups * outputs) / 8) : new Uint32Array((groups * outputs) / 8).fill(zeros),
    scales: halves(groups * outputs),
    groupOf: undefined,
  };
  const matrix = gptqMatrix(tensors, outputs, inner, 1);
  const whole = matrix.rows(8, 16);
  const held = { int4: ['gptq', false], uint4: ['gptq', true], f32: ['f32', false] }[format];
  expect([whole.format, whole.zeros !== undefined]).toEqual(held);
  const expected: number[] = [];
  for (let output = 0; output < outputs; output++) {
    for (let input = 0; input < inner; input++) {
      const group = Math.floor(input / groupSize);
      const q = nibble(tensors.qweight[(input >> 3) * outputs + output]!, input & 7);
      const zero = (nibble(tensors.qzeros[group * (outputs / 8) + (output >> 3)]!, output & 7) + 1) & 15;
      expected.push(halfValue(tensors.scales[group * outputs + output]!) * (q - zero) + 0);
    }
  }
  const values = expected.map(Math.fround).map((value) => value + 0);
  expect(decoded(matrix, 0, outputs, inner)).toEqual(values);
  expect(decoded(matrix, 16, 8, inner)).toEqual(values.slice(16 * inner));
  expect(decoded(matrix, 5, 7, inner)).toEqual(values.slice(5 * inner, 12 * inner));
});

test('gptq in act order takes each input’s group, and refuses one that is not there', () => {
  const [outputs, inner] = [8, 64];
  const groupOf = Uint32Array.from({ length: inner }, (_, input) => (input * 7) % 2);
  const tensors = { qweight: words((inner / 8) * outputs), qzeros: words(2), scales: halves(2 * outputs), groupOf };
  const row = decoded(gptqMatrix(tensors, outputs, inner, 1), 3, 1, inner);
  const zero = (group: number): number => (nibble(tensors.qzeros[group]!, 3) + 1) & 15;
  row.forEach((value, input) => {
    const group = groupOf[input]!;
    const q = nibble(tensors.qweight[(input >> 3) * outputs + 3]!, input & 7);
    assert.equal(value, Math.fround(halfValue(tensors.scales[group * outputs + 3]!) * (q - zero(group))) + 0);
  });
  assert.throws(
    () => gptqMatrix({ ...tensors, groupOf: new Uint32Array(inner).fill(2) }, outputs, inner, 1),
    /beyond its 2/,
  );
});

test('awq: outputs lie in the order 0 2 4 6 1 3 5 7', () => {
  const [outputs, inner] = [16, 64];
  const tensors = { qweight: words((inner * outputs) / 8), qzeros: words(4), scales: halves(2 * outputs) };
  const order = [0, 2, 4, 6, 1, 3, 5, 7];
  const at = (all: Uint32Array, row: number, output: number): number =>
    nibble(all[row * 2 + (output >> 3)]!, order.indexOf(output & 7));
  const matrix = awqMatrix(tensors, outputs, inner);
  const whole = decoded(matrix, 0, outputs, inner).map((value) => value + 0);
  for (let output = 0; output < outputs; output++) {
    const expected = Array.from({ length: inner }, (_, input) => {
      const group = input >> 5;
      const scale = halfValue(tensors.scales[group * outputs + output]!);
      return Math.fround(scale * (at(tensors.qweight, input, output) - at(tensors.qzeros, group, output))) + 0;
    });
    expect(whole.slice(output * inner, (output + 1) * inner)).toEqual(expected);
    expect(decoded(matrix, output, 1, inner).map((value) => value + 0)).toEqual(expected);
  }
});

test('rows from the middle of eight on are those of the whole matrix, one after the other', () => {
  const [outputs, inner] = [40, 64];
  const common = { qzeros: words((2 * outputs) / 8), scales: halves(2 * outputs) };
  const awq = awqMatrix({ ...common, qweight: words((inner * outputs) / 8) }, outputs, inner);
  const gptq = gptqMatrix(
    { ...common, qweight: words((inner / 8) * outputs), groupOf: Uint32Array.from({ length: inner }, (_, i) => i & 1) },
    ...([outputs, inner, 1] as const),
  );
  for (const matrix of [awq, gptq]) {
    const whole = decoded(matrix, 0, outputs, inner);
    for (const [first, count] of [
      [0, 8],
      [3, 2],
      [5, 7],
      [6, 20],
      [31, 9],
      [39, 1],
    ] as const)
      expect(decoded(matrix, first, count, inner)).toEqual(whole.slice(first * inner, (first + count) * inner));
  }
});

test('fp8: e4m3 by scales of outputs, or of tiles at the edge', () => {
  const bytes = Uint8Array.from([0x00, 0x01, 0x08, 0x38, 0x7e, 0xfe, 0xb8, 0x80]);
  const values = [0, 2 ** -9, 2 ** -6, 1, 448, -448, -1, 0];
  const perOutput = decoded(fp8Matrix(bytes, Float32Array.of(2, 4), 2, 4, [1, 4]), 0, 2, 4);
  expect(perOutput.map((value) => value + 0)).toEqual(values.map((value, i) => value * (i < 4 ? 2 : 4)));
  const tiled = decoded(fp8Matrix(bytes, Float32Array.of(2, 4), 2, 4, [128, 3]), 1, 1, 4);
  expect(tiled.map((value) => value + 0)).toEqual([896, -896, -2, 0]);
  assert.throws(() => fp8Matrix(bytes, Float32Array.of(2), 2, 4, [1, 4]), /1 scales of \[2, 4\], which needs 2/);
});

test.each([
  ['llama-gptq', true],
  ['llama-gptq-actorder', false],
  ['llama-awq', true],
  ['llama-fp8-block', false],
])('%s has input ranges: %s, of the same integers and the same fingerprint', async (name, isThere) => {
  const { path, config } = readModelFolder(goldenFolder(name));
  const tensor = 'model.layers.0.mlp.down_proj.weight';
  const byRows = await Checkpoint.open(path, config.quantization);
  const [outputs = 0] = byRows.shapes.get(tensor) ?? [];
  const section = { tensor, firstRow: 8, outputs: outputs - 8 };
  const rows: ModelRows[] = [];
  for await (const some of byRows.slices(section)) rows.push({ ...some, data: Uint8Array.from(some.data) });
  const byInputRanges = await Checkpoint.open(path, config.quantization);
  const matrix = await byInputRanges.matrix(section);
  assert.equal(matrix !== undefined, isThere);
  const [first] = rows;
  if (matrix && first) {
    expect(matrix).toMatchObject({ first: 8, width: outputs, format: first.format });
    const words: Uint8Array[] = [];
    for await (const { data } of matrix.inputRanges()) words.push(Uint8Array.from(data));
    // A word has eight inputs of a row, or eight rows of an input.
    const perRow = first.format === 'gptq' ? outputs : outputs / 8;
    const skipped = first.format === 'gptq' ? 8 : 1;
    const all = new Uint32Array(Uint8Array.from(Buffer.concat(words)).buffer);
    expect(new Uint32Array(first.data.slice().buffer)).toEqual(all.filter((_, at) => at % perRow >= skipped));
    const after = (halves: Uint16Array): Uint16Array => halves.filter((_, at) => at % outputs >= 8);
    expect(new Uint16Array(first.scales!.slice().buffer)).toEqual(after(matrix.scales));
    assert.equal(first.zeros === undefined, matrix.zeros === undefined);
    if (first.zeros && matrix.zeros) expect(new Uint16Array(first.zeros.slice().buffer)).toEqual(after(matrix.zeros));
    assert.equal(byRows.fingerprint('x'), byInputRanges.fingerprint('x'));
  }
  assert.equal(await byInputRanges.matrix({ tensor, firstRow: 4, outputs: 8 }), undefined);
  assert.equal(await byInputRanges.matrix({ tensor: 'model.norm.weight', outputs: 1 }), undefined);
  await Promise.all([byRows.close(), byInputRanges.close()]);
});

test('zeros as they are stored, and groups that devices can hold', () => {
  expect([...(zeroHalves('gptq', Uint32Array.of(0xfedcba98), 1) ?? [])].map(halfValue)).toEqual([
    ...[9, 10, 11, 12, 13, 14, 15, 0],
  ]);
  expect([...(zeroHalves('awq', Uint32Array.of(0x76543210), 0) ?? [])].map(halfValue)).toEqual([
    ...[0, 4, 1, 5, 2, 6, 3, 7],
  ]);
  assert.equal(zeroHalves('gptq', Uint32Array.of(0x77777777), 1), undefined);
  assert.equal(plainGroups(256, 2, undefined), 128);
  assert.equal(plainGroups(256, 16, undefined), undefined);
  assert.equal(plainGroups(64, 1, new Uint32Array(64)), 64);
  assert.equal(plainGroups(64, 2, new Uint32Array(64)), undefined);
});

test.each([
  ['llama-gptq', 'gptq'],
  ['llama-gptq-actorder', 'f32'],
  ['llama-awq', 'awq'],
  ['llama-fp8-channel', 'f32'],
  ['llama-fp8-block', 'f32'],
])('%s gives rows in %s', async (name, format) => {
  const { path, config } = readModelFolder(goldenFolder(name));
  const checkpoint = await Checkpoint.open(path, config.quantization);
  const tensor = 'model.layers.0.mlp.down_proj.weight';
  const [outputs = 0] = checkpoint.shapes.get(tensor) ?? [];
  for await (const rows of checkpoint.slices({ tensor, outputs })) expect(rows.format).toBe(format);
  const before = checkpoint.fingerprint('');
  for await (const rows of checkpoint.slices({ tensor: 'model.norm.weight', outputs: 1 })) assert(rows.data.length > 0);
  expect(checkpoint.fingerprint('')).not.toBe(before);
  await checkpoint.close();
});

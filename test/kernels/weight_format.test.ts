/** Precision of each weight format, and equality of packed and rounded rows. Budget: 1 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import {
  isInteger,
  packRows,
  rowBytes,
  roundRows,
  scalesPerRow,
  weightFormats,
  type WeightFormat,
} from '../../kernels/weights/weight_format.ts';
import { codeTables } from '../../kernels/weights/code_tables.ts';
import { RowDecoder } from '../../kernels/weights/stored_rows.ts';
import { Random } from '../../shared/base/random.ts';
import { halfValue } from '../support/half.ts';

const random = new Random(5);
const uniform = (): number => random.u32() / 2 ** 31 - 1;

/** Reads packed rows as the file header of weight_format.ts describes them. */
function unpack(format: WeightFormat, values: Float32Array, inner: number): number[] {
  const { data, scales } = packRows(format, values, inner);
  const bytes = new Uint8Array(data.buffer);
  const [perRow, perRowScales] = [rowBytes(format, inner), scalesPerRow(format, inner)];
  return Array.from(values, (_, i): number => {
    const [row, k] = [Math.floor(i / inner), i % inner];
    const at = row * perRow;
    const group = Math.floor(k / 32);
    const scale = halfValue(scales[row * perRowScales + (format === 'uint4' ? 2 : 1) * group] ?? 0);
    switch (format) {
      case 'f32':
        return new Float32Array(data.buffer)[at / 4 + k]!;
      case 'f16':
        return halfValue(new Uint16Array(data.buffer)[at / 2 + k]!);
      case 'int8':
        return ((bytes[at + k]! << 24) >> 24) * scale + 0;
      case 'mxfp4':
      case 'iq4': {
        const byte = bytes[at + Math.floor(k / 8) * 4 + (k % 4)]!;
        const exponent = new Uint8Array(scales.buffer)[2 * row * perRowScales + group]!;
        const of = format === 'iq4' ? scale / 64 : exponent === 0 ? 0 : 2 ** (exponent - 127);
        return codeTables[format][k % 8 < 4 ? byte & 15 : byte >> 4]! * of + 0;
      }
      case 'int4':
      case 'uint4': {
        const byte = bytes[at + Math.floor(k / 8) * 4 + (k % 4)]!;
        const zero = format === 'int4' ? 8 : halfValue(scales[row * perRowScales + 2 * group + 1]!);
        return ((k % 8 < 4 ? byte & 15 : byte >> 4) - zero) * scale + 0;
      }
    }
  });
}

test.each(weightFormats)('%s: packed rows hold exactly the rounded values, at every row width', (format) => {
  for (const inner of [1, 31, 32, 33, 64, 100]) {
    for (const size of [1e-6, 0.02, 1, 300]) {
      const values = Float32Array.from({ length: 3 * inner }, () => uniform() * size);
      const rounded = values.slice();
      roundRows(format, rounded, inner);
      assert.deepEqual(unpack(format, values, inner), [...rounded]);
    }
  }
});

test('rounding stays within half a step of each format', () => {
  for (let i = 0; i < 50; i++) {
    const values = Float32Array.from({ length: 32 }, () => uniform());
    const largest = Math.max(...values.map(Math.abs));
    for (const [format, bound] of [
      ['f16', 2 ** -11],
      ['int8', (largest / 127) * 0.502],
      // The value of largest magnitude takes -8; the other side ends at 7.
      ['int4', largest / 8 + 1e-3],
      // The zero is a whole one: a value at either end may be half a step beyond.
      ['uint4', ((Math.max(0, ...values) - Math.min(0, ...values)) / 15) * 1.01],
      // The largest step of each table: from 8 to 12, of up to 14 at most; from -127 to -104.
      ['mxfp4', (largest / 7) * 2.01],
      ['iq4', (largest / 127) * 14.1],
    ] as const) {
      const rounded = values.slice();
      roundRows(format, rounded, 32);
      values.forEach((value, k) => {
        expect(Math.abs(value - rounded[k]!)).toBeLessThanOrEqual(bound);
      });
    }
  }
});

test('what a format cannot hold is held as near as it can: no infinity, no subnormal, no NaN', () => {
  const values = Float32Array.of(1e6, -1e6, 2 ** -15, -(2 ** -20), 0, 65_504, 65_519, 1);
  const rounded = values.slice();
  roundRows('f16', rounded, 8);
  assert.deepEqual([...rounded], [65_504, -65_504, 0, -0, 0, 65_504, 65_504, 1]);
  for (const format of weightFormats) {
    const zeros = new Float32Array(40);
    roundRows(format, zeros, 40);
    assert(
      zeros.every((value) => value === 0),
      format,
    );
  }
});

test('rows that are not whole are refused', () => {
  assert.throws(() => packRows('f16', new Float32Array(7), 4), /no whole rows of 4/);
});

test.each([...weightFormats, 'bf16'] as const)('%s rows of a file are read wherever they lie', (format) => {
  const decoder = new RowDecoder();
  const [numRows, inner] = [3, 40];
  const values = Float32Array.from({ length: numRows * inner }, uniform);
  const bits = new Uint32Array(values.buffer);
  // bf16 is the high half of an f32; the others are packed, but for f16's padding.
  for (let i = 0; format === 'bf16' && i < bits.length; i++) bits[i] = bits[i]! & 0xffff0000;
  const packed = format === 'bf16' ? undefined : packRows(format, values, inner);
  const rows = (bytes: Uint8Array): Uint8Array => {
    const perRow = bytes.length / numRows;
    const kept = format === 'f32' ? 4 * inner : format === 'f16' ? 2 * inner : perRow;
    return Buffer.concat(
      Array.from({ length: numRows }, (_, row) => bytes.subarray(row * perRow, row * perRow + kept)),
    );
  };
  const data = packed
    ? rows(new Uint8Array(packed.data.buffer))
    : new Uint8Array(Uint16Array.from(bits, (word) => word >>> 16).buffer);
  const scales = packed && packed.scales.length > 0 ? new Uint8Array(packed.scales.buffer) : undefined;
  if (format !== 'bf16') roundRows(format, values, inner);
  for (const offset of [0, 1, 3]) {
    // A Buffer within another, as a reader of files has it.
    const within = (bytes: Uint8Array): Buffer =>
      Buffer.concat([Buffer.alloc(offset), bytes, Buffer.alloc(5)]).subarray(offset, offset + bytes.length);
    const stored = { rowStart: 0, format, data: within(data), ...(scales ? { scales: within(scales) } : {}) };
    assert.deepEqual([...decoder.floats(stored, inner)], [...values], `at ${offset}`);
    if (format !== 'bf16' && isInteger(format)) {
      const again = decoder.packed(format, stored, inner);
      assert.deepEqual([again.data, again.scales], [packed?.data, packed?.scales]);
    }
  }
});

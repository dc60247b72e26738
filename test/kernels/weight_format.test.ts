/** What a weight format keeps, and that packed rows say the same as rounded ones. Budget: 1 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import {
  packRows,
  rowBytes,
  roundRows,
  scalesPerRow,
  weightFormats,
  type WeightFormat,
} from '../../kernels/weight_format.ts';
import { Random } from '../../shared/base/random.ts';
import { halfValue } from '../support/half.ts';

const random = new Random(5);
const uniform = (): number => random.u32() / 2 ** 31 - 1;

/** Reads packed rows as the file header of weight_format.ts describes them. */
function unpack(format: WeightFormat, values: Float32Array, inner: number): number[] {
  const { data, scales } = packRows(format, values, inner);
  const bytes = new Uint8Array(data.buffer);
  const [perRow, perRowScales] = [rowBytes(format, inner), scalesPerRow(format, inner)];
  return Array.from(values, (_, i) => {
    const [row, k] = [Math.floor(i / inner), i % inner];
    const at = row * perRow;
    const scale = halfValue(scales[row * perRowScales + Math.floor(k / 32)] ?? 0);
    switch (format) {
      case 'f32':
        return new Float32Array(data.buffer)[at / 4 + k]!;
      case 'f16':
        return halfValue(new Uint16Array(data.buffer)[at / 2 + k]!);
      case 'int8':
        return ((bytes[at + k]! << 24) >> 24) * scale + 0;
      case 'int4': {
        const byte = bytes[at + Math.floor(k / 8) * 4 + (k % 4)]!;
        return ((k % 8 < 4 ? byte & 15 : byte >> 4) - 8) * scale + 0;
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

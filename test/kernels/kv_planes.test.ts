/** Planes of K and V: what a device cannot express is refused when a program is loaded, before anything of it is written. Budget: 1 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { DeviceError } from '../../kernels/device.ts';
import { layoutOfOneLayer } from '../../kernels/kv_layout.ts';
import { planesOf } from '../../kernels/kv_planes.ts';
import { kvLayoutFor } from '../support/kv.ts';

const op = { layer: 0, kvHeads: 4, headDim: 32 };

test('K and V have a plane each, or one for both, as wide as the heads or wider', () => {
  for (const dtype of ['f16', 'f32'] as const) {
    const { k, v } = planesOf(kvLayoutFor([{ planes: [128, 160] }], dtype), op);
    const bytes = dtype === 'f16' ? 2 : 4;
    assert.deepEqual([k.offset, k.tokenBytes], [0, 128 * bytes]);
    assert.deepEqual([v.offset, v.tokenBytes], [32 * 128 * bytes, 160 * bytes]);
    const both = planesOf(kvLayoutFor([{ planes: [128] }], dtype), op);
    assert.equal(both.k, both.v);
  }
});

test.each([
  [
    'a V of fewer heads',
    [128, 96],
    /layer 0 stores 96 values of a token in a KV plane, but its 4 KV heads of 32 need 128/,
  ],
  ['a K of fewer heads', [64, 128], /layer 0 stores 64 values/],
  ['no plane', [], /layer 0 stores 0 KV planes: attention needs K and V, or one plane for both/],
  ['a third plane', [128, 128, 128], /layer 0 stores 3 KV planes/],
])('%s is refused', (_, planes, message) => {
  const layout = kvLayoutFor([{ planes }], 'f16');
  expect(() => planesOf(layout, op)).toThrow(DeviceError);
  expect(() => planesOf(layout, op)).toThrow(message);
});

test('a layout that a device makes up is the one that the spec gives', () => {
  for (const dtype of ['f16', 'f32'] as const)
    for (const planes of [[64, 64], [48], [64, 32]])
      expect(kvLayoutFor([{ planes }], dtype, 16)).toMatchObject(layoutOfOneLayer(planes, 16, dtype));
});

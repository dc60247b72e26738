/** Which blocks a window needs, against what each row sees. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { frameWindows, numUnseen } from '../../shared/kv/windows.ts';

test('blocks that are not seen are those of which no row from there on sees a token', () => {
  for (const blockSize of [4, 32])
    for (const window of [1, 2, 3, 5, 31, 32, 33, 64, 100])
      for (let row = 0; row < 200; row++) {
        const firstSeen = Math.max(0, row - window + 1);
        assert.equal(numUnseen(window, row, blockSize), Math.floor(firstSeen / blockSize), `${window} ${row}`);
      }
  assert.equal(numUnseen(0, 1_000, 32), 0, 'a layer without a window sees all');
});

test('a frame sees what its widest layer sees', () => {
  const frames = [
    { firstLayer: 0, numLayers: 2 },
    { firstLayer: 2, numLayers: 2 },
    { firstLayer: 4, numLayers: 1 },
  ];
  expect(frameWindows(frames, [512, 1_024, 512, 0, 256])).toEqual([1_024, 0, 256]);
  expect(frameWindows(frames, [0, 0, 0, 0, 0])).toEqual([0, 0, 0]);
});

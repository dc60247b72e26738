/** The benchmark of the disk tier, small. Budget: 20 s. */
import assert from 'node:assert/strict';
import { tmpdir } from 'node:os';
import { test } from 'vitest';
import { benchStore } from './store.ts';

test('store reports every figure it promises', async () => {
  const figures = await benchStore({
    folder: tmpdir(),
    recordKiBs: [16],
    totalBytes: 2 << 20,
    numRecovered: 500,
    onFigure: () => undefined,
  });
  const compared = [
    'put',
    'put, fdatasync',
    'get',
    'get, not cached',
    'put, encrypted',
    'get, encrypted',
    'get, not cached, encrypted',
  ];
  const latencies = ['alone', 'loaded'].flatMap((how) => [`get, ${how}, p50`, `get, ${how}, p99`]);
  assert.deepEqual(
    figures.map(({ name }) => name),
    [...[...compared, ...latencies].map((name) => `store/16 KiB/${name}`), 'store/recovery of 500 blocks'],
  );
  for (const { name, value } of figures) assert(Number.isFinite(value) && value > 0, `${name}: ${value}`);
});

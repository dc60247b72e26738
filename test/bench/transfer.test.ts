/** The transfer benchmark, small. Budget: 20 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { benchTransfer } from './transfer.ts';

test('transfer reports every figure it promises', async () => {
  const figures = await benchTransfer({
    recordKiBs: [16],
    numStreams: [1, 2],
    totalBytes: 4 << 20,
    measureMs: 100,
    onFigure: () => undefined,
  });
  const names = figures.map(({ name }) => name.replace('transfer/16 KiB/', ''));
  const plain = 'plain socket, XXH64 checked';
  const of = (streams: string): string[] =>
    [plain, 'grpc', 'bulk', 'same host'].flatMap((what) => [`${streams}/${what}`, `${streams}/${what}/cpu`]);
  const ways = ['grpc', 'bulk', 'same host'];
  const misses = ways.map((way) => `1 stream/${way}/a fetch that misses, p50`);
  const puts = ways.flatMap((way) => [`put/${way}`, `put/${way}/cpu`]);
  const copies = ['copy and XXH64 in memory', 'copy and XXH64 of one record, in cache'];
  assert.deepEqual([...names].sort(), [...copies, ...of('1 stream'), ...of('2 streams'), ...misses, ...puts].sort());
  for (const { name, value } of figures) assert(Number.isFinite(value) && value > 0, `${name}: ${value}`);
});

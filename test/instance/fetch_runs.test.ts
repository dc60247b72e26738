/** Runs of blocks that are requested from each source when layers have attention windows. */
import { expect, test } from 'vitest';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { consecutive, SeenRuns, stateSource, wholeRuns } from '../../shared/instance/fetch_runs.ts';
import type { Source } from '../../shared/protocol/messages.ts';
import type { KvSpec } from '../../shared/kv/kv_spec.ts';
import { evenSpec } from '../support/kv.ts';

const BLOCK = 4;
const hashes = chainOf(
  '0c'.repeat(16) as Digest,
  BLOCK,
  Array.from({ length: 160 }, (_, i) => i),
);
const source = (address: string, start: number, end: number): Source => ({ address, start, end, isComputing: false });
const notified = ({ runs, from, isParted }: ReturnType<SeenRuns['of']>): string =>
  `${runs.map(({ address, start, end, wanted }) => `${address} ${start}-${end}${wanted ? `:${wanted.join()}` : ''}`).join(' ')} from ${from}${isParted ? ' parted' : ''}`;

/** A frame for each window. */
const specOf = (windows: readonly number[]): KvSpec =>
  evenSpec(
    { numLayers: windows.length, blockSize: BLOCK, payloadBytes: 8 * windows.length },
    { minFrameBytes: 1, windows },
  );

test.each([
  ['no windows', [0, 0], [source('a', 0, 10), source('b', 10, 20)], 0, 'a 0-10 b 10-20 from 0'],
  ['all see 8 tokens', [8, 8], [source('a', 0, 10), source('b', 10, 20)], 0, 'b 18-20 from 18 parted'],
  ['one sees all', [0, 8, 5], [source('a', 0, 10), source('b', 10, 20)], 0, 'a 0-10:0 b 10-18:0 b 18-20 from 0 parted'],
  ['what is there already is not asked for', [0, 8], [source('a', 17, 20)], 17, 'a 17-18:0 a 18-20 from 17 parted'],
  ['nothing lies before a window', [0, 80], [source('a', 0, 20)], 0, 'a 0-20 from 0'],
  ['what is there reaches into the window', [8, 8], [source('a', 19, 20)], 19, 'a 19-20 from 19'],
  ['no sources', [8, 8], [], 3, ' from 3'],
] as const)('%s', (_, windows, sources, from, want) => {
  expect(notified(new SeenRuns(specOf(windows)).of(sources, from, hashes, false))).toBe(want);
});

test('what was parted once comes whole, from the first block on that was', () => {
  const seen = new SeenRuns(specOf([0, 8]));
  expect(notified(seen.of([source('a', 0, 12)], 0, hashes, true))).toBe('a 0-10:0 a 10-12 from 0 parted');
  expect(notified(seen.of([source('a', 0, 20)], 0, hashes, true))).toBe('a 0-10 a 10-18:0 a 18-20 from 0 parted');
  expect(notified(seen.of([source('a', 0, 20)], 0, hashes, true))).toBe('a 0-18 a 18-20 from 0');
  // A fetch that no other sequence shares neither remembers parted blocks nor looks them up.
  expect(notified(seen.of([source('a', 0, 20)], 0, hashes, false))).toBe('a 0-18:0 a 18-20 from 0 parted');
  expect(notified(new SeenRuns(specOf([0, 8])).of([source('a', 0, 12)], 0, hashes, false))).toBe(
    'a 0-10:0 a 10-12 from 0 parted',
  );
});

test('sources follow one another, up to the first hole', () => {
  const sources = [source('c', 9, 14), source('a', 0, 4), source('b', 2, 8), source('d', 8, 12), source('e', 20, 25)];
  expect(consecutive(sources, 1, 13)).toEqual([
    ...[source('a', 1, 4), source('b', 4, 8), source('d', 8, 12), source('c', 12, 13)],
  ]);
  expect(consecutive(sources, 15, 30)).toEqual([]);
  expect(notified(wholeRuns([source('a', 1, 4)], 1))).toBe('a 1-4 from 1');
});

test('states are no blocks, and that after the most blocks is fetched, but none after a block that does not come', () => {
  const state = (address: string, end: number): Source => ({ ...source(address, end - 1, end), isState: true });
  const sources = [state('s', 4), source('a', 0, 4), state('t', 8), source('b', 5, 8), state('u', 5), state('v', 5)];
  expect(consecutive(sources, 0, 10)).toEqual([source('a', 0, 4)]);
  expect([3, 4, 5, 7, 8, 20].map((most) => stateSource(sources, most)?.address)).toEqual([
    ...[undefined, 's', 'u', 'u', 't', 't'],
  ]);
  expect(stateSource([source('a', 0, 4)], 10)).toBe(undefined);
});

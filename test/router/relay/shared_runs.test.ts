/** Runs that two token lists share, against the longest common subsequence. Budget: 10 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../../shared/base/random.ts';
import { commonPrefix, sharedRuns } from '../../../services/router/relay/shared_runs.ts';

/** Length of the longest common subsequence, by the table that its definition gives. */
function longestCommon(one: Uint32Array, other: Uint32Array): number {
  let row = new Uint32Array(other.length + 1);
  for (const token of one) {
    const next = new Uint32Array(other.length + 1);
    for (let k = 0; k < other.length; k++)
      next[k + 1] = token === other[k] ? row[k]! + 1 : Math.max(row[k + 1]!, next[k]!);
    row = next;
  }
  return row.at(-1) ?? 0;
}

function text(random: Random, length: number, vocabulary: number): number[] {
  return Array.from({ length }, () => random.below(vocabulary));
}

/** The tokens with some ranges of up to 20 replaced, dropped or added. */
function edited(random: Random, tokens: readonly number[], numEdits: number, vocabulary: number): number[] {
  const list = [...tokens];
  for (let i = 0; i < numEdits; i++)
    list.splice(
      random.below(list.length),
      random.below(2) * random.below(20),
      ...text(random, random.below(20), vocabulary),
    );
  return list;
}

function totalOf(earlier: Uint32Array, later: Uint32Array, start: number): number {
  let [earlierEnd, laterEnd, total] = [start, start, 0];
  for (const { earlierStart, laterStart, length } of sharedRuns(earlier, later, start)) {
    assert(length > 0 && earlierStart >= earlierEnd && laterStart >= laterEnd, 'runs ascend and are apart');
    [earlierEnd, laterEnd] = [earlierStart + length, laterStart + length];
    assert.deepEqual(earlier.subarray(earlierStart, earlierEnd), later.subarray(laterStart, laterEnd));
    total += length;
  }
  return total;
}

test.each([
  [50_000, 0.97],
  [200, 0.95],
  [3, 0],
])(
  'of random edits over %i different tokens nearly all that is left is found, and nothing that is not',
  (vocabulary, least) => {
    const random = new Random(vocabulary);
    let [numFound, numCommon] = [0, 0];
    for (let i = 0; i < 60; i++) {
      const before = text(random, 100 + random.below(1_200), vocabulary);
      const earlier = Uint32Array.from(before);
      const later = Uint32Array.from(edited(random, before, 1 + random.below(8), vocabulary));
      const start = commonPrefix(earlier, later);
      assert.notEqual(earlier[start], later[start]);
      assert.deepEqual(earlier.subarray(0, start), later.subarray(0, start));
      const common = longestCommon(earlier.subarray(start), later.subarray(start));
      const found = totalOf(earlier, later, start);
      assert(found <= common, `${found} of ${common}`);
      numFound += found;
      numCommon += common;
    }
    assert(numFound >= least * numCommon, `${numFound} of ${numCommon}`);
  },
);

test('of 100,000 tokens with one in the first block changed all others are found', () => {
  const random = new Random(5);
  const earlier = Uint32Array.from(text(random, 100_000, 30_000));
  const later = earlier.slice();
  later[9] = 30_001;
  assert.deepEqual(sharedRuns(earlier, later, 9), [{ earlierStart: 10, laterStart: 10, length: 99_990 }]);
});

test('lists that share nothing have no runs, nor have empty ones', () => {
  const random = new Random(6);
  const [one, other] = [text(random, 5_000, 1 << 20), text(random, 5_000, 1 << 20)].map((list) =>
    Uint32Array.from(list),
  ) as [Uint32Array, Uint32Array];
  assert.equal(totalOf(one, other, 0), 0);
  assert.deepEqual(sharedRuns(new Uint32Array(0), one, 0), []);
});

/** The table of the index while its parts grow, lose keys and fill up. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { KeyTable, MAX_TOGETHER, SET, SEGMENT } from '../../shared/placement/prefix_index/key_table.ts';

/** Returns the segment of a key; 0 when the table does not have the key. */
function segmentOf(table: KeyTable, low: number, high: number): number {
  const at = table.find(low, high);
  return table.words[at + SET] === 0 ? 0 : table.words[at + SEGMENT]!;
}

function put(table: KeyTable, low: number, high: number, segment: number): boolean {
  const at = table.insert(table.find(low, high), low, high);
  if (at < 0) return false;
  table.words[at + SET] = 1;
  table.words[at + SEGMENT] = segment;
  return true;
}

test('what was put in is found and nothing else, through growth and removals, one by one and many at once', () => {
  const random = new Random(5);
  const numKeys = 100_000;
  const table = new KeyTable(numKeys);
  // Every tenth word is the same, so some keys differ in one word only.
  const keys = Int32Array.from({ length: 2 * numKeys }, (_, i) => (i % 10 === 0 ? 7 : random.u32()));
  const isIn = new Uint8Array(numKeys);
  for (let i = 0; i < numKeys; i++) {
    const [low, high] = [keys[2 * i]!, keys[2 * i + 1]!];
    assert(put(table, low, high, i + 1));
    isIn[i] = 1;
    const other = random.below(i + 1);
    if (random.chance(1, 3) && isIn[other] === 1) {
      table.delete(table.find(keys[2 * other]!, keys[2 * other + 1]!));
      isIn[other] = 0;
    }
  }
  assert.equal(
    table.size,
    isIn.reduce((sum, one) => sum + one, 0),
  );
  const places = new Int32Array(MAX_TOGETHER);
  for (let i = 0; i < numKeys; i++) {
    if (i % MAX_TOGETHER === 0) table.findAll(keys, i, Math.min(i + MAX_TOGETHER, numKeys), places);
    const [low, high] = [keys[2 * i]!, keys[2 * i + 1]!];
    assert.equal(segmentOf(table, low, high), isIn[i] === 1 ? i + 1 : 0);
    assert.equal(places[i % MAX_TOGETHER], table.find(low, high));
    assert.equal(table.isAt(places[i % MAX_TOGETHER]!, low, high), isIn[i] === 1);
    assert.equal(segmentOf(table, low ^ 1, high), 0);
  }
});

test('a part that is full takes no more, and keeps what it has (P1)', () => {
  const [table, empty] = [new KeyTable(1_000), new KeyTable(1_000)];
  const line = empty.find(1, 0);
  const found: number[] = [];
  let isFull = false;
  // Keys of one part only: those that an empty table has in one line.
  for (let low = 1; !isFull; low++) {
    if (empty.find(low, 0) !== line) continue;
    if (put(table, low, 0, low)) found.push(low);
    else isFull = true;
  }
  assert(found.length >= 4, `${found.length} keys`);
  for (const low of found) assert.equal(segmentOf(table, low, 0), low);
  assert.equal(table.size, found.length);
});

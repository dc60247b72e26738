/** The eviction order of recurrent states against a naive model under seeded random events. Budget: 5 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { LeastWorthFirst } from '../../shared/engine/state_worth.ts';

/** A slot as the model sees it: a plain row of a list. */
interface Row {
  readonly slot: number;
  tokens: number;
  numHits: number;
  priority: number;
  isIn: boolean;
  numPins: number;
}

const NUM_SLOTS = 12;

test('the slot with the least priority goes first: tokens times uses, above what was evicted before', () => {
  const seed = Number(process.env['SEED'] ?? 1);
  const random = new Random(seed);
  const worth = new LeastWorthFirst();
  const rows = Array.from({ length: NUM_SLOTS }, (_, slot): Row => ({
    slot,
    tokens: 0,
    numHits: 0,
    priority: 0,
    isIn: false,
    numPins: 0,
  }));
  let level = 0;
  let numVictims = 0;
  /** Priorities of the model's rows, of which the least ones are victims. */
  const least = (among: readonly Row[]): number => Math.min(...among.map(({ priority }) => priority));
  for (let event = 0; event < 20_000; event++) {
    const row = rows[random.below(NUM_SLOTS)]!;
    const pick = random.below(9);
    if (pick === 0 && !row.isIn) {
      const tokens = 1 + random.below(400);
      worth.value(row.slot, tokens);
      Object.assign(row, { tokens, numHits: 0, priority: level + tokens });
    } else if ((pick === 1 || pick > 6) && !row.isIn && row.tokens > 0) {
      worth.insert(row.slot);
      row.isIn = true;
    } else if (pick === 2) {
      worth.touch(row.slot);
      if (row.tokens > 0) row.priority = level + row.tokens * (1 + ++row.numHits);
    } else if (pick === 3 && random.below(4) === 0) {
      assert.equal(worth.remove(row.slot), row.isIn);
      row.isIn = false;
    } else if (pick === 4 && random.below(2) === 0) {
      worth.pin(row.slot);
      row.numPins++;
    } else if (pick === 5 && row.numPins > 0) {
      worth.unpin(row.slot);
      row.numPins--;
    } else if (pick === 6) {
      const may = rows.filter(({ isIn, numPins }) => isIn && numPins === 0);
      const spared = new Set(
        random.below(2) === 0 ? [] : rows.map(({ slot }) => slot).filter(() => random.below(2) > 0),
      );
      const victim = worth.victim((slot) => spared.has(slot));
      if (may.length === 0) {
        assert.equal(victim, undefined);
        continue;
      }
      const others = may.filter(({ slot }) => !spared.has(slot));
      const evicted = may.find(({ slot }) => slot === victim);
      assert(evicted, `slot ${victim} may not be evicted, SEED=${seed}`);
      assert(others.length === 0 || others.includes(evicted), `a spared slot goes before others, SEED=${seed}`);
      assert.equal(evicted.priority, least(others.length > 0 ? others : may), `SEED=${seed}`);
      assert(worth.remove(evicted.slot));
      level = Math.max(level, evicted.priority);
      evicted.isIn = false;
      numVictims++;
    }
    const present = rows.filter(({ isIn }) => isIn);
    assert.equal(worth.size, present.length);
    const order = [...worth.inOrder()];
    assert.deepEqual(new Set(order), new Set(present.map(({ slot }) => slot)));
    const priorities = order.map((slot) => rows[slot]!.priority);
    assert.deepEqual(
      priorities,
      [...priorities].sort((a, b) => a - b),
    );
    for (const { slot, isIn, numPins } of rows) {
      assert.equal(worth.has(slot), isIn);
      assert.equal(worth.isPinned(slot), numPins > 0);
    }
  }
  assert(numVictims > 500, `${numVictims} slots were evicted`);
});

test('a state that was hit often does not stay for ever', () => {
  const worth = new LeastWorthFirst();
  worth.value(0, 100);
  worth.insert(0);
  for (let hit = 0; hit < 20; hit++) worth.touch(0);
  let numOthers = 0;
  for (let next = 1; worth.has(0); next++) {
    worth.value(next, 90);
    worth.insert(next);
    const victim = worth.victim();
    assert(victim !== undefined && worth.remove(victim));
    if (victim === next) numOthers++;
  }
  // Each victim raises the level by 90, and the hits are worth 2,100.
  expect(numOthers).toBe(23);
});

test('a slot that gets another state begins anew, and is inserted once', () => {
  const worth = new LeastWorthFirst();
  worth.value(0, 100);
  worth.touch(0);
  worth.value(0, 50);
  worth.value(1, 60);
  worth.insert(0);
  worth.insert(1);
  expect(worth.victim()).toBe(0);
  expect(() => {
    worth.insert(0);
  }).toThrow('an item is inserted once');
  worth.pin(0);
  expect(worth.victim()).toBe(1);
});

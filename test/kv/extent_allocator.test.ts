/** The extent allocator against a naive model, one byte of map per aligned unit, under seeded random events. Budget: 5 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { ExtentAllocator, type Extent } from '../../shared/kv/extent_allocator.ts';

const UNIT = 64;

/** The same promises, kept by looking at every unit: 0 is free, else the number of the slot that has it. */
class NaiveAllocator {
  readonly units: Uint32Array;
  readonly slots = new Map<number, number>();
  #next = 1;

  constructor(numUnits: number) {
    this.units = new Uint32Array(numUnits);
  }

  /** Whether so many free units lie side by side anywhere. */
  hasRun(numUnits: number): boolean {
    let run = 0;
    for (const owner of this.units) {
      run = owner === 0 ? run + 1 : 0;
      if (run === numUnits) return true;
    }
    return false;
  }

  take(slot: number, numUnits: number): void {
    const range = this.units.subarray(slot / UNIT, slot / UNIT + numUnits);
    assert(range.length === numUnits && range.every((owner) => owner === 0), `slot ${slot} lies on bytes in use`);
    range.fill(this.#next++);
    this.slots.set(slot, numUnits);
  }

  /** @returns the free extent around the released slot. */
  release(slot: number): Extent {
    const numUnits = this.slots.get(slot)!;
    this.slots.delete(slot);
    this.units.fill(0, slot / UNIT, slot / UNIT + numUnits);
    let [start, end] = [slot / UNIT, slot / UNIT + numUnits];
    while (start > 0 && this.units[start - 1] === 0) start--;
    while (end < this.units.length && this.units[end] === 0) end++;
    return { start: start * UNIT, end: end * UNIT };
  }

  get numFree(): number {
    return this.units.filter((owner) => owner === 0).length * UNIT;
  }
}

describe.each([
  { name: 'slots of one size', sizes: [640], numBytes: 64 * 640 },
  { name: 'two sizes, one a multiple of the other', sizes: [UNIT, 10 * UNIT], numBytes: 16_384 },
  { name: 'any sizes, and bytes that fill no unit', sizes: [1, 63, 65, 700, 2_001, 4_096], numBytes: 32_768 + 17 },
])('$name', ({ sizes, numBytes }) => {
  const seed = Number(process.env['SEED'] ?? 1);

  test('no two slots share a byte, released extents merge with their neighbours, and nothing is lost', () => {
    const random = new Random(seed);
    const allocator = new ExtentAllocator(numBytes, UNIT);
    const model = new NaiveAllocator(Math.floor(numBytes / UNIT));
    let numRefused = 0;
    for (let event = 0; event < 4_000; event++) {
      const held = [...model.slots.keys()];
      if (held.length === 0 || random.below(100) < 55) {
        const bytes = sizes[random.below(sizes.length)]!;
        const numUnits = Math.ceil(bytes / UNIT);
        const slot = allocator.allocate(bytes);
        if (slot === undefined) numRefused++;
        else model.take(slot, numUnits);
        // With a few free extents every one of them is looked at, so a refusal means that none is long enough.
        if (slot === undefined && sizes.length === 1) assert(!model.hasRun(numUnits), `refused, SEED=${seed}`);
      } else {
        const slot = held[random.below(held.length)]!;
        assert.deepEqual(allocator.release(slot), model.release(slot), `SEED=${seed}`);
      }
      assert.equal(allocator.numFreeBytes, model.numFree);
      assert.equal(allocator.numInUse, model.slots.size);
    }
    assert(numRefused > 0, 'it was full now and then');
    for (const slot of [...model.slots.keys()]) assert.deepEqual(allocator.release(slot), model.release(slot));
    assert.equal(allocator.numFreeBytes, model.units.length * UNIT);
    assert.equal(allocator.allocate(model.units.length * UNIT), 0, 'all of it is one extent again');
  });

  test('slotAt names the slot in use that begins or ends at a byte', () => {
    const random = new Random(seed + 1);
    const allocator = new ExtentAllocator(numBytes, UNIT);
    const ends = new Map<number, number>();
    for (;;) {
      const bytes = sizes[random.below(sizes.length)]!;
      const slot = allocator.allocate(bytes);
      if (slot === undefined) break;
      ends.set(slot + allocator.lengthOf(bytes), slot);
    }
    for (const [end, slot] of ends) {
      assert.equal(allocator.slotAt(slot), slot);
      // A neighbour that begins where this one ends goes first.
      assert([slot, end].includes(allocator.slotAt(end)!));
    }
    assert.equal(allocator.slotAt(UNIT / 2), undefined);
  });
});

test('a slot is allocated at `near` when the free extent there is long enough', () => {
  const allocator = new ExtentAllocator(10 * UNIT, UNIT);
  const slots = [0, 1, 2, 3].map(() => allocator.allocate(UNIT)!);
  allocator.release(slots[1]!);
  assert.equal(allocator.allocate(UNIT, slots[1]), slots[1]);
  assert.notEqual(allocator.allocate(2 * UNIT, slots[1]), slots[1]);
});

test('extents that were used before go before the unused end, so that a file does not grow', () => {
  const allocator = new ExtentAllocator(100 * UNIT, UNIT);
  const slots = [0, 1, 2].map(() => allocator.allocate(UNIT)!);
  allocator.release(slots[0]!);
  assert.equal(allocator.allocate(UNIT), slots[0]);
});

test('slots that are taken from the start on are kept, and overlapping or misplaced ones refused', () => {
  const taken = [
    { start: UNIT, end: 2 * UNIT },
    { start: 4 * UNIT, end: 4 * UNIT + 1 },
  ];
  const allocator = new ExtentAllocator(8 * UNIT, UNIT, taken);
  assert.equal(allocator.numInUse, 2);
  assert.equal(allocator.numFreeBytes, 6 * UNIT);
  assert.deepEqual(allocator.release(UNIT), { start: 0, end: 4 * UNIT });
  for (const wrong of [
    [
      { start: 0, end: 2 * UNIT },
      { start: UNIT, end: 3 * UNIT },
    ],
    [{ start: 1, end: UNIT }],
    [{ start: UNIT, end: UNIT }],
  ])
    assert.throws(() => new ExtentAllocator(8 * UNIT, UNIT, wrong), /slots overlap at byte/);
});

test('releasing a slot twice is a broken invariant', () => {
  const allocator = new ExtentAllocator(4 * UNIT, UNIT);
  const slot = allocator.allocate(UNIT)!;
  allocator.release(slot);
  assert.throws(() => allocator.release(slot), /slot 0 of 256 bytes is not in use/);
});

/** Eviction policies: one suite for all, against a naive model under random events. Budget: 5 s. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { LeastRecentlyUsed, type EvictionPolicy } from '../../shared/kv/eviction.ts';
import type { EvictionClass } from '../../shared/kv/kv_spec.ts';

/** A list that is searched from its front: what a policy must do, as slowly as can be. */
class NaiveModel {
  items: { readonly item: number; readonly evictionClass: EvictionClass; usedAt: number }[] = [];
  pins: number[] = [];
  #now = 0;

  insert(item: number, evictionClass: EvictionClass): void {
    this.items.push({ item, evictionClass, usedAt: this.#now++ });
  }

  touch(item: number): void {
    for (const one of this.items) if (one.item === item) one.usedAt = this.#now++;
  }

  remove(item: number): void {
    this.items = this.items.filter((one) => one.item !== item);
  }

  unpin(item: number): void {
    const at = this.pins.indexOf(item);
    if (at >= 0) this.pins.splice(at, 1);
  }

  inOrder(): number[] {
    return this.items
      .slice()
      .sort((a, b) => a.evictionClass - b.evictionClass || a.usedAt - b.usedAt)
      .map(({ item }) => item);
  }

  victim(isSpared: (item: number) => boolean): number | undefined {
    const free = this.inOrder().filter((item) => !this.pins.includes(item));
    return free.find((item) => !isSpared(item)) ?? free[0];
  }
}

function evictionConformance(name: string, make: () => EvictionPolicy<number>): void {
  describe(name, () => {
    test('agrees with the naive model after each of 20,000 random events', () => {
      const random = new Random(Number(process.env['SEED'] ?? 11));
      const [policy, model] = [make(), new NaiveModel()];
      for (let event = 0; event < 20_000; event++) {
        const item = random.below(24);
        const kind = random.below(7);
        if (kind === 0 && !policy.has(item)) {
          const evictionClass = random.pick([0, 1, 1] as const);
          policy.insert(item, evictionClass);
          model.insert(item, evictionClass);
        } else if (kind === 1) {
          policy.touch(item);
          model.touch(item);
        } else if (kind === 2 && random.chance(1, 2)) {
          assert.equal(
            policy.remove(item),
            model.items.some((one) => one.item === item),
          );
          model.remove(item);
        } else if (kind === 3) {
          policy.pin(item);
          model.pins.push(item);
        } else if (kind === 4 || kind === 5) {
          policy.unpin(item);
          model.unpin(item);
        }
        const spared = random.below(24);
        const isSpared = (one: number): boolean => one % 3 === spared % 3;
        assert.equal(policy.victim(isSpared), model.victim(isSpared));
        assert.equal(
          policy.victim(),
          model.victim(() => false),
        );
        assert.deepEqual([...policy.inOrder()], model.inOrder());
        assert.equal(policy.size, model.items.length);
        assert.equal(policy.isPinned(item), model.pins.includes(item));
      }
    });

    test('what is outside every window goes before what was used longer ago', () => {
      const policy = make();
      for (const item of [1, 2, 3]) policy.insert(item);
      policy.insert(4, 0);
      policy.insert(5, 0);
      policy.touch(4);
      expect([...policy.inOrder()]).toEqual([5, 4, 1, 2, 3]);
      assert.equal(policy.victim(), 5);
    });

    test('an item may go while all are looked at', () => {
      const policy = make();
      for (let item = 0; item < 10; item++) policy.insert(item);
      for (const item of policy.inOrder()) if (item % 2 === 0) policy.remove(item);
      expect([...policy.inOrder()]).toEqual([1, 3, 5, 7, 9]);
    });

    test('an item is there once', () => {
      const policy = make();
      policy.insert(1, 0);
      assert.throws(() => {
        policy.insert(1);
      }, /inserted once/);
    });
  });
}

evictionConformance('least recently used', () => new LeastRecentlyUsed());

/** Work of placements that heartbeats do not count yet, against a naive model. Budget: 2 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import type { InstanceWork } from '../../shared/protocol/instance_work.ts';
import { Instance } from '../../shared/placement/instance.ts';
import { OpenPlacements, type PlacedWork } from '../../shared/placement/open_placements.ts';

const reported: InstanceWork = {
  step: { constantMs: 5, rowMs: 0.5, pairMs: 0.001, contextMs: 0, sequenceMs: 0 },
  chunkTokens: 100,
  maxNumSeqs: 8,
  pacedStepMs: 0,
  promptsMs: 40,
  ends: [],
  prompts: { tokens: 10, pairs: 55, sequences: 1 },
  generating: { sequences: 2, contextTokens: 300 },
  coming: { sequences: 1, contextTokens: 10 },
  numBlocks: 64,
  freeBlocks: 20,
  waitingBlocks: 0,
  blockBytes: 1_000,
};

const blocksOf = (work: InstanceWork | undefined): (number | undefined)[] => [work?.freeBlocks, work?.waitingBlocks];

const workOf = (tokens: number, blocks: number): PlacedWork => ({
  prompts: { tokens, pairs: tokens * tokens, sequences: 1 },
  coming: { sequences: 1, contextTokens: 3 * tokens, blocks },
});

test('each placement counts from its call until a heartbeat has seen it or it has ended, whatever the order', () => {
  for (let seed = 0; seed < 20; seed++) {
    const random = new Random(seed);
    const numbers = { last: 0 };
    const placements = [new OpenPlacements(numbers), new OpenPlacements(numbers)] as const;
    const naive = [new Map<number, PlacedWork>(), new Map<number, PlacedWork>()] as const;
    const seen = [0, 0];
    for (let i = 0; i < 400; i++) {
      const at = random.chance(1, 2) ? 0 : 1;
      const [own, model] = [placements[at], naive[at]];
      const event = random.below(4);
      if (event < 2) {
        const work = workOf(random.below(5_000), random.below(200));
        model.set(own.add(work), work);
      } else if (event === 2) {
        const number = 1 + random.below(numbers.last + 1);
        own.end(number);
        model.delete(number);
      } else {
        const last = random.below(numbers.last + 1);
        own.seen(last);
        seen[at] = Math.max(seen[at] ?? 0, last);
      }
      const unreported = [...model].filter(([number]) => number > (seen[at] ?? 0)).map(([, work]) => work);
      const sum = (value: (work: PlacedWork) => number): number => unreported.reduce((all, one) => all + value(one), 0);
      assert.equal(own.size, model.size, `seed ${seed}`);
      assert.equal(own.numUnreported, unreported.length);
      assert.deepEqual(own.work, {
        prompts: {
          tokens: sum(({ prompts }) => prompts.tokens),
          pairs: sum(({ prompts }) => prompts.pairs),
          sequences: sum(({ prompts }) => prompts.sequences),
        },
        coming: {
          sequences: sum(({ coming }) => coming.sequences),
          contextTokens: sum(({ coming }) => coming.contextTokens),
          blocks: sum(({ coming }) => coming.blocks),
        },
      });
    }
  }
});

describe('the work of an instance', () => {
  const hear = (instance: Instance, work: InstanceWork | undefined, seen: number): void => {
    const load = { running: 3, waiting: 0, preemptions: 0, lastStepMs: 1, isDraining: false, tiers: {}, work };
    instance.receiveHeartbeat({ load, blocks: 0, seen: { r1: seen, r2: 7 } }, 'r1', 0);
  };
  const member = { name: 'd', role: 'decode' as const, address: 'd:1', pid: 1, epoch: 'e' };

  test('is that of its heartbeat and of the placements since, counted once, and gone with them', () => {
    const instance = new Instance({ member, protocolVersion: 1 }, 0);
    instance.place(workOf(200, 4));
    assert.deepEqual(instance.work, undefined, 'its heartbeats do not carry it');
    hear(instance, reported, 0);
    assert.deepEqual(instance.work, {
      ...reported,
      prompts: { tokens: 210, pairs: 40_055, sequences: 2 },
      coming: { sequences: 2, contextTokens: 610 },
      freeBlocks: 16,
      waitingBlocks: 0,
      // Two steps, 200 rows, 40,000 pairs.
      promptsMs: 40 + 10 + 100 + 40,
    });
    assert.equal(instance.work, instance.work, 'made once');
    const second = instance.place(workOf(0, 30));
    assert.deepEqual(blocksOf(instance.work), [0, 14]);
    hear(instance, { ...reported, freeBlocks: 3, waitingBlocks: 2 }, 1);
    // While a sequence waits for blocks, another one takes none of those that are free.
    assert.deepEqual(blocksOf(instance.work), [3, 32]);
    instance.end(second);
    assert.deepEqual(blocksOf(instance.work), [3, 2]);
    hear(instance, undefined, 2);
    assert.deepEqual(instance.work, undefined);
  });
});

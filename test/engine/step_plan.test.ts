/** The step plan, which decides how many rows each sequence computes, tested against its rules under random cases. Budget: 2 s. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { PromptTime } from '../../shared/engine/prompt_time.ts';
import {
  planStep,
  type Candidate,
  type SampledBy,
  type PlannableSequence,
  type PromptLimits,
  type StepRoom,
  type StepPlan,
} from '../../shared/engine/step_plan.ts';

const BLOCK = 4;

interface Played extends PlannableSequence {
  readonly name: string;
}

interface Wish {
  readonly submitted?: number;
  readonly remaining: number;
  readonly nextStop?: number;
  readonly numBlocks?: number;
  readonly isReadingPrompt?: boolean;
  readonly sampledBy?: SampledBy;
  /** Samples from the row before its target; a prefill never does. */
  readonly isDecode?: boolean;
}

function candidate(name: string, wish: Wish): Candidate<Played> {
  const { submitted = 0, remaining, isReadingPrompt = false, sampledBy = 'device', isDecode = true } = wish;
  const target = submitted + remaining;
  const blocks = { length: wish.numBlocks ?? Math.ceil(target / BLOCK) };
  return {
    sampledBy,
    sequence: {
      name,
      remaining,
      nextStop: wish.nextStop ?? target,
      cursor: { submitted },
      blocks,
      isReadingPrompt,
      samplesAt: (end) => isDecode && end === target,
    },
  };
}

const plenty: StepRoom = { rows: 64, spareSamples: 8, hostSamples: 8, masks: 8, freeBlocks: 100 };
const any = (): number => Infinity;

function rowsIn({ work }: StepPlan<Played>): Record<string, number> {
  return Object.fromEntries(work.map(({ sequence, count }) => [sequence.name, count]));
}

function plan(
  wishes: Record<string, Wish>,
  budget: Partial<StepRoom> = {},
  promptRows: (tokenRows: number) => number = any,
  promptTime?: PromptLimits['promptTime'],
): StepPlan<Played> {
  const candidates = Object.entries(wishes).map(([name, wish]) => candidate(name, wish));
  return planStep(candidates, { ...plenty, ...budget }, BLOCK, { promptRows, promptTime });
}

describe('rows', () => {
  test('sequences that need one row come before prompts, each in order of arrival', () => {
    const { work } = plan({ a: { remaining: 40 }, b: { remaining: 1 }, c: { remaining: 9 }, d: { remaining: 1 } });
    expect(work.map(({ sequence, count }) => [sequence.name, count])).toEqual([
      ['b', 1],
      ['d', 1],
      ['a', 40],
      ['c', 9],
    ]);
  });

  test('are no more than the budget, and a prompt is cut where it ends', () => {
    expect(rowsIn(plan({ a: { remaining: 40 }, b: { remaining: 40 }, c: { remaining: 1 } }))).toEqual({
      c: 1,
      a: 40,
      b: 23,
    });
  });

  test('of prompts are as many as those with so many tokens may take', () => {
    const asked: number[] = [];
    const result = plan({ a: { remaining: 1 }, b: { remaining: 1 }, c: { remaining: 40 } }, {}, (tokenRows) => {
      asked.push(tokenRows);
      return 8;
    });
    expect(rowsIn(result)).toEqual({ a: 1, b: 1, c: 8 });
    expect(asked).toEqual([2]);
  });

  test('of prompts take no longer than there is time for, each row deeper in a prompt longer than one before it', () => {
    const time = { constantMs: 10, rowMs: 1, pairMs: 0.01, contextMs: 0, sequenceMs: 0 };
    const wishes = { a: { remaining: 1, submitted: 9 }, b: { remaining: 40 }, c: { remaining: 40, submitted: 100 } };
    const rows = (ms: number): Record<string, number> =>
      rowsIn(
        plan(wishes, {}, any, (tokens) => {
          expect(tokens).toEqual({ rows: 1, pairs: 0, contextTokens: 10, sequences: 1 });
          return new PromptTime(time, ms);
        }),
      );
    // The 40 rows of b take 48.2 ms; four rows of c after 100 tokens take 8.1 ms, eight take 16.36 ms.
    expect(rows(64)).toEqual({ a: 1, b: 40, c: 4 });
    expect(rows(65)).toEqual({ a: 1, b: 40, c: 8 });
    expect(rows(30)).toEqual({ a: 1, b: 24 });
    expect(rows(-5)).toEqual({ a: 1, b: 4 });
  });

  test('stop before a block that is there already', () => {
    expect(rowsIn(plan({ a: { submitted: 8, remaining: 30, nextStop: 16 } }))).toEqual({ a: 8 });
    expect(rowsIn(plan({ a: { submitted: 8, remaining: 30, nextStop: 8 } }))).toEqual({});
  });

  test('whose logits are wanted take samples: the spare ones of all, and one of its own', () => {
    const wishes = { a: { remaining: 30, isReadingPrompt: true }, b: { remaining: 30, isReadingPrompt: true } };
    const { work, left } = plan(wishes, { spareSamples: 5 });
    expect(work.map(({ count }) => count)).toEqual([6, 1]);
    assert.equal(left.spareSamples, 0);
  });
});

describe('sampling', () => {
  test('of the host are few in a step; whose turn it is not is computed up to the row that it would sample from', () => {
    const { work, left } = plan(
      {
        a: { remaining: 1, sampledBy: 'host' },
        b: { remaining: 1, sampledBy: 'host' },
        c: { remaining: 1, sampledBy: 'waits' },
        d: { remaining: 9, sampledBy: 'host' },
        e: { remaining: 9, sampledBy: 'host', isDecode: false },
        f: { remaining: 1 },
      },
      { hostSamples: 1 },
    );
    expect(work.map(({ sequence, count }) => [sequence.name, count])).toEqual([
      ['a', 1],
      ['f', 1],
      ['d', 8],
      ['e', 9],
    ]);
    assert.equal(left.hostSamples, 0);
  });
});

describe('a sequence that waits for its mask', () => {
  test('gets no row, and counts among those that prompts may not hold up', () => {
    const wishes = { a: { remaining: 1, sampledBy: 'waits' }, b: { remaining: 40 } } as const;
    const { work } = plan(wishes, {}, (tokenRows) => (tokenRows > 0 ? 3 : 40));
    expect(work.map(({ sequence, count }) => [sequence.name, count])).toEqual([['b', 3]]);
  });

  test('takes one of the masks that a step has', () => {
    const wishes = {
      a: { remaining: 1, sampledBy: 'masked' },
      b: { remaining: 1, sampledBy: 'masked' },
      c: { remaining: 9, sampledBy: 'masked' },
    } as const;
    const { work, left } = plan(wishes, { masks: 1 });
    expect(work.map(({ sequence, count }) => [sequence.name, count])).toEqual([
      ['a', 1],
      ['c', 8],
    ]);
    assert.equal(left.masks, 0);
  });
});

describe('blocks', () => {
  test('are taken for the rows that are planned, and who finds none is left out and named', () => {
    const result = plan(
      {
        a: { submitted: 8, remaining: 1, numBlocks: 2 },
        b: { submitted: 8, remaining: 9, numBlocks: 2 },
        c: { submitted: 8, remaining: 1, numBlocks: 2 },
        d: { submitted: 9, remaining: 1, numBlocks: 3 },
      },
      { freeBlocks: 2 },
    );
    expect(result.work.map(({ sequence, newBlocks }) => [sequence.name, newBlocks])).toEqual([
      ['a', 1],
      ['c', 1],
      ['d', 0],
    ]);
    assert.equal(result.short?.name, 'b');
    assert.equal(result.left.freeBlocks, 0);
  });

  test('a sequence that has more than its rows need takes none', () => {
    const { work } = plan({ a: { remaining: 4, numBlocks: 9 } }, { freeBlocks: 0 });
    expect(work.map(({ newBlocks }) => newBlocks)).toEqual([0]);
  });
});

test('whatever the sequences: no budget is exceeded, nobody is planned twice, and nothing is changed', () => {
  const random = new Random(Number(process.env['SEED'] ?? 4));
  for (let round = 0; round < 5_000; round++) {
    const candidates = Array.from({ length: random.below(12) }, (_, i) => {
      const submitted = random.below(40);
      const remaining = random.below(3) === 0 ? 1 : random.below(50);
      return candidate(String(i), {
        submitted,
        remaining,
        nextStop: submitted + random.below(remaining + 1),
        numBlocks: Math.ceil(submitted / BLOCK) + random.below(3),
        isReadingPrompt: random.chance(1, 4),
        sampledBy: random.pick(['device', 'host', 'waits'] as const),
      });
    });
    const budget: StepRoom = {
      rows: 1 + random.below(64),
      spareSamples: random.below(8),
      hostSamples: random.below(4),
      masks: random.below(4),
      freeBlocks: random.below(20),
    };
    const promptRows = random.below(40);
    const before = JSON.stringify(candidates);
    const { work, short, left } = planStep(candidates, budget, BLOCK, { promptRows: () => promptRows });
    assert.equal(JSON.stringify(candidates), before);
    assert.equal(new Set(work.map(({ sequence }) => sequence)).size, work.length);
    const sum = (of: (one: (typeof work)[number]) => number): number => work.reduce((all, one) => all + of(one), 0);
    assert(sum(({ count }) => count) <= budget.rows);
    assert(sum(({ sequence, count }) => (sequence.remaining > 1 ? count : 0)) <= promptRows);
    assert.equal(
      sum(({ newBlocks }) => newBlocks),
      budget.freeBlocks - left.freeBlocks,
    );
    for (const value of Object.values(left)) assert(value >= 0);
    for (const { sequence, count, newBlocks } of work) {
      const end = sequence.cursor.submitted + count;
      assert(count > 0 && count <= sequence.remaining && end <= sequence.nextStop);
      assert((sequence.blocks.length + newBlocks) * BLOCK >= end, 'there is a block for every row');
      const { sampledBy } = candidates.find((one) => one.sequence === sequence)!;
      assert(!(sampledBy === 'waits' && sequence.samplesAt(end)), 'who waits does not sample');
    }
    assert(!short || !work.some(({ sequence }) => sequence === short));
  }
});

/** Tokens that a simulated instance counts by steps, against the same tokens counted one by one. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { SimulatedGeneration } from '../../services/replay/simulated_generation.ts';
import { SimulatedSequence } from '../../services/replay/simulated_sequence.ts';

const BLOCK_TOKENS = 4;

/** A sequence, and its tokens counted one by one. */
interface Counted {
  readonly sequence: SimulatedSequence;
  readonly outputTokens: number;
  readonly gaps: number[];
  readonly told: number[];
  generated: number;
  lastMs: number;
  toldMs: number;
}

function countedOf(random: Random): Counted {
  const outputTokens = 2 + random.below(40);
  const target = 1 + random.below(20);
  const counted: Counted = {
    outputTokens,
    gaps: [],
    told: [],
    generated: 0,
    lastMs: 0,
    toldMs: 0,
    sequence: new SimulatedSequence({
      kind: 'decode',
      request: 0,
      priority: 0,
      sharer: { tenant: '' },
      hashes: [],
      target,
      outputTokens,
      expectedTokens: 8,
      onToken: () => undefined,
      onTokens: (_, gaps, lastMs) => {
        counted.told.push(...gaps);
        counted.toldMs = lastMs;
      },
      onEnd: () => undefined,
    }),
  };
  return counted;
}

/** One more token, that comes alone. */
function join(generation: SimulatedGeneration, counted: Counted, nowMs: number): void {
  const { sequence } = counted;
  counted.generated++;
  counted.lastMs = nowMs;
  sequence.output.add();
  sequence.blocks = new Array<number>(Math.ceil((sequence.length - 1) / BLOCK_TOKENS)).fill(0);
  generation.join(sequence);
}

test('tokens, gaps, ends, filled blocks and tokens of KV are those that are counted one by one, however long it generates', () => {
  const random = new Random(3);
  const generation = new SimulatedGeneration(BLOCK_TOKENS);
  let held: Counted[] = [];
  let preempted: Counted[] = [];
  let [nowMs, numEnded, numPreempted] = [0, 0, 0];
  for (let step = 0; step < 5_000; step++) {
    nowMs += 1 + random.below(1_000) / 64;
    for (const one of held) {
      one.generated++;
      one.gaps.push(Math.fround(nowMs - one.lastMs));
      one.lastMs = nowMs;
    }
    const ending = held.filter(({ generated, outputTokens }) => generated === outputTokens);
    const ended = generation.stepped(nowMs);
    assert.deepEqual(new Set(ended), new Set(ending.map(({ sequence }) => sequence)));
    for (const one of ending) {
      assert.deepEqual([one.sequence.generated, one.told, one.toldMs], [one.generated, one.gaps, one.lastMs]);
      numEnded++;
    }
    held = held.filter((one) => !ending.includes(one));
    const came = [...preempted, ...Array.from({ length: random.below(3) }, () => countedOf(random))];
    preempted = [];
    for (const one of came) join(generation, one, nowMs);
    held.push(...came.filter(({ sequence }) => generation.list.includes(sequence)));
    const filled = new Set(generation.takeFilled());
    for (const { sequence, generated } of held) {
      assert.equal(sequence.generated, generated);
      assert.equal(filled.has(sequence), sequence.length > sequence.blocks.length * BLOCK_TOKENS);
    }
    for (const sequence of filled) {
      sequence.blocks.push(0);
      generation.grew(sequence);
    }
    const [first] = held;
    if (first && first.generated < first.outputTokens - 1 && random.below(8) === 0) {
      generation.remove(first.sequence);
      assert.deepEqual([first.sequence.generated, first.told], [first.generated, first.gaps]);
      held.shift();
      preempted.push(first);
      numPreempted++;
    }
    const context = held.reduce((sum, { sequence }) => sum + sequence.length, 0);
    assert.deepEqual([generation.list.length, generation.contextTokens], [held.length, context]);
  }
  assert(numEnded > 1_000 && numPreempted > 100);
});

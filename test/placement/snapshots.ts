/** Clusters and questions for tests of policies: hand-made ones, and random ones from a seed. */
import type { ClusterSnapshot, HeldSnapshot, InstanceSnapshot, Question } from '../../shared/placement/policy.ts';
import type { Random } from '../../shared/base/random.ts';
import type { InstanceWork } from '../../shared/protocol/instance_work.ts';

/** Work of an instance that does nothing: 10 ms a step, 1 ms a row, 256 free blocks. */
const idle: InstanceWork = {
  step: { constantMs: 10, rowMs: 1, pairMs: 0, contextMs: 0, sequenceMs: 0 },
  chunkTokens: 512,
  maxNumSeqs: 64,
  pacedStepMs: 0,
  promptsMs: 0,
  prompts: { tokens: 0, pairs: 0, sequences: 0 },
  generating: { sequences: 0, contextTokens: 0 },
  coming: { sequences: 0, contextTokens: 0 },
  numBlocks: 256,
  freeBlocks: 256,
  waitingBlocks: 0,
  blockBytes: 1_000,
  ends: [],
};

export function workOf(more: Partial<InstanceWork> = {}): InstanceWork {
  return { ...idle, ...more };
}

export function instance(name: string, more: Partial<InstanceSnapshot> = {}): InstanceSnapshot {
  return {
    id: `${name}/e`,
    name,
    role: name.startsWith('p') ? 'prefill' : 'decode',
    address: `${name}:1`,
    numericsClass: 'n',
    mayGenerate: true,
    maxModelLen: 128,
    queueLength: 0,
    isPlaceable: true,
    isAvoided: false,
    work: undefined,
    coldAtMs: undefined,
    ...more,
  };
}

/** Returns ranges of blocks with their holders; `runs` maps each holder to its number of leading blocks, all in memory. */
function rangesOf(runs: Record<string, number>): HeldSnapshot[] {
  const ends = [...new Set(Object.values(runs))].sort((a, b) => a - b);
  return ends.map((end, i) => ({
    start: ends[i - 1] ?? 0,
    end,
    holders: Object.entries(runs).flatMap(([name, run]) =>
      run >= end ? [{ id: `${name}/e`, address: `${name}:1`, isInMemory: true, isOnDevice: true }] : [],
    ),
  }));
}

/** Returns a cluster of two decode and two prefill instances with blocks of 4 tokens. */
export function cluster(runs: Record<string, number>, more: Partial<ClusterSnapshot> = {}): ClusterSnapshot {
  return {
    blockSize: 4,
    decode: [instance('d1'), instance('d2')],
    prefill: [instance('p1'), instance('p2')],
    ranges: rangesOf(runs),

    promised: [],
    links: [],
    otherLink: { bytesPerMs: 200_000, latencyMs: 1 },
    turn: 0,
    random: [0, 0],
    tieBreak: 0,
    ageMs: 60_000,
    withoutDecodeMs: 0,
    ...more,
  };
}

/** A prompt of 42 tokens, ten blocks and two tokens. */
export const question: Question = {
  numTokens: 42,
  numBlocks: 10,
  maxLength: 64,
  retryAvoided: false,
  isEmbedding: false,
  decode: undefined,
  outputTokens: 22,
  targets: undefined,
  waitedMs: 0,
  isBegun: false,
  numericsClass: undefined,
};

const BLOCK_SIZE = 4;

/** Returns a random question with at most 12 full blocks; half of the rows of a context of 128 are for output. */
export function randomQuestion(random: Random): Question {
  const numBlocks = random.below(13);
  const numTokens = numBlocks * BLOCK_SIZE + 1 + random.below(BLOCK_SIZE);
  const outputTokens = random.below(64);
  return {
    ...question,
    numTokens,
    numBlocks,
    outputTokens,
    maxLength: numTokens + outputTokens,
    retryAvoided: random.below(4) === 0,
    waitedMs: random.below(2_000),
    numericsClass: [undefined, 'n', 'other', 'gone'][random.below(4)],
  };
}

/** Returns a random cluster; `isKnown` says whether all instances report their work, else some do. */
export function randomCluster(random: Random, numBlocks: number, isKnown: boolean): ClusterSnapshot {
  const of = (letter: string, most: number): InstanceSnapshot[] =>
    Array.from({ length: random.below(most + 1) }, (_, i) => randomInstance(random, `${letter}${i}`, isKnown));
  const [decode, prefill] = [of('d', 4), of('p', 3)];
  const holders = [...decode, ...prefill, ...of('s', 2)];
  return cluster(
    {},
    {
      blockSize: BLOCK_SIZE,
      decode,
      prefill,
      ranges: randomRanges(random, holders, numBlocks),
      links: holders.flatMap(({ address }) =>
        [...decode, ...prefill]
          .filter(() => random.below(2) === 0)
          .map(({ id }) => ({
            from: address,
            to: id,
            bytesPerMs: 1 + random.below(1_000),
            latencyMs: random.below(5),
          })),
      ),
      turn: random.below(1_000),
      random: [random.below(1_000) / 1_000, random.below(1_000) / 1_000],
      tieBreak: random.below(65_536),
      ageMs: random.below(10_000),
      withoutDecodeMs: random.below(2) === 0 ? undefined : random.below(120_000),
    },
  );
}

function randomInstance(random: Random, name: string, isKnown: boolean): InstanceSnapshot {
  const numBlocks = 1 + random.below(256);
  const work = workOf({
    step: {
      constantMs: random.below(20),
      rowMs: random.below(3),
      pairMs: random.below(100) / 1_000,
      contextMs: random.below(100) / 10_000,
      sequenceMs: random.below(10) / 10,
    },
    prompts: { tokens: random.below(500), pairs: random.below(5_000), sequences: random.below(5) },
    generating: { sequences: random.below(9), contextTokens: random.below(2_000) },
    coming: { sequences: random.below(3), contextTokens: random.below(500) },
    numBlocks,
    freeBlocks: random.below(numBlocks + 1),
    waitingBlocks: random.below(20),
  });
  return instance(name, {
    maxModelLen: 16 + random.below(160),
    queueLength: random.below(50),
    isPlaceable: random.below(6) > 0,
    isAvoided: random.below(6) === 0,
    numericsClass: random.below(3) > 0 ? 'n' : 'other',
    mayGenerate: !name.startsWith('p') || random.below(3) > 0,
    work: isKnown || random.below(2) === 0 ? work : undefined,
    coldAtMs: random.below(2) === 0 ? undefined : -random.below(60_000),
  });
}

/** Returns ranges in which each holder has a prefix of its own, and perhaps blocks after a hole. */
function randomRanges(random: Random, holders: readonly InstanceSnapshot[], numBlocks: number): HeldSnapshot[] {
  const held = holders.map(() => {
    const [prefix, from] = [random.below(numBlocks + 1), random.below(2 * numBlocks + 1)];
    return (block: number): boolean => block < prefix || block >= from;
  });
  const ranges: { start: number; end: number; holders: HeldSnapshot['holders'] }[] = [];
  const isInMemory = holders.map(({ name }) => !name.startsWith('s') || random.below(2) === 0);
  for (let block = 0; block < numBlocks; block++) {
    const its = holders.flatMap(({ id, address }, i) =>
      held[i]?.(block) ? [{ id, address, isInMemory: isInMemory[i] ?? true, isOnDevice: isInMemory[i] ?? true }] : [],
    );
    const last = ranges.at(-1);
    const isSame = last?.end === block && JSON.stringify(last.holders) === JSON.stringify(its);
    if (isSame) last.end = block + 1;
    else if (its.length > 0) ranges.push({ start: block, end: block + 1, holders: its });
  }
  return ranges;
}

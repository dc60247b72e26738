/** Work that an engine has left, counted from its sequences. Budget: 1 s. */
import { describe, expect, test } from 'vitest';
import { AnswerLength, workLeft, type WorkOptions, type WorkSequence } from '../../shared/engine/engine_work.ts';
import { MAX_ENDS, workSchema, type InstanceWork } from '../../shared/protocol/instance_work.ts';

const BLOCK = 4;
const step = { constantMs: 10, rowMs: 1, pairMs: 0.01, contextMs: 0.001, sequenceMs: 0 };
const options: WorkOptions = {
  step,
  chunkTokens: 20,
  maxNumSeqs: 8,
  pacedStepMs: 0,
  numBlocks: 100,
  freeBlocks: 40,
  blockBytes: 512,
  blockSize: BLOCK,
  expectedTokens: 50,
  cachedBlocks: () => 0,
};

interface Wish {
  readonly kind?: 'prefill' | 'decode' | 'embed';
  readonly state: 'waiting' | 'loading' | 'running';
  readonly prompt: number;
  readonly output?: number;
  readonly submitted?: number;
  readonly numBlocks?: number;
  readonly firstHeld?: number;
  readonly isFetching?: boolean;
  readonly fetchEnd?: number;
  readonly expectedTokens?: number;
  readonly groupIndex?: number;
  readonly awaitedRows?: number;
  readonly maxLength?: number;
}

function sequenceOf(wish: Wish): WorkSequence {
  const { kind = 'decode', state, prompt, output = 0, submitted = 0, isFetching = false, fetchEnd } = wish;
  const { numBlocks = 0, firstHeld = 0, expectedTokens, groupIndex, maxLength = 1_000, awaitedRows = 0 } = wish;
  const length = prompt + output;
  const hittableBlocks = Math.floor((prompt - 1) / BLOCK);
  const group = groupIndex === undefined ? undefined : { id: 'g', index: groupIndex, size: 2 };
  const sequence = {
    state: { kind: state, blocks: new Array<number>(numBlocks).fill(0), firstHeld },
    request: { kind, isFetching, fetchEnd, expectedTokens, group, request: { promptLength: prompt, maxLength } },
    cursor: { submitted },
    length,
    hittableBlocks,
    awaitedRows,
    target: kind === 'prefill' ? hittableBlocks * BLOCK : length,
  };
  return sequence as unknown as WorkSequence;
}

const left = (wishes: readonly Wish[], more: Partial<WorkOptions> = {}): InstanceWork => {
  const work = workLeft(wishes.map(sequenceOf), { ...options, ...more });
  // A heartbeat may carry it as it is.
  expect(workSchema.parse(JSON.parse(JSON.stringify(work)))).toEqual(work);
  return work;
};

describe('prompts', () => {
  test('in a pipeline have the rows of their own ranges, spread over what is left', () => {
    const { prompts } = left([{ kind: 'prefill', state: 'running', prompt: 17, submitted: 4, awaitedRows: 8 }]);
    expect(prompts).toEqual({ tokens: 4, pairs: (12 * 4 + 78) / 3, sequences: 1 });
  });

  test('have the rows that are not computed yet: those of a prefill end with its last full block', () => {
    const { prompts, coming, generating } = left([
      { kind: 'prefill', state: 'running', prompt: 11, submitted: 3 },
      { kind: 'embed', state: 'running', prompt: 10, submitted: 10 },
      { state: 'running', prompt: 9, submitted: 4 },
    ]);
    expect(prompts).toEqual({ tokens: 5 + 5, pairs: 5 * 3 + 15 + 5 * 4 + 15, sequences: 2 });
    expect(coming).toEqual({ sequences: 1, contextTokens: 9 });
    expect(generating).toEqual({ sequences: 0, contextTokens: 0 });
  });

  test('of sequences whose blocks come from elsewhere begin after these, others after the cached ones', () => {
    expect(left([{ state: 'loading', prompt: 18, isFetching: true, submitted: 4 }]).prompts.tokens).toBe(2);
    expect(left([{ state: 'waiting', prompt: 18, isFetching: true }]).prompts.tokens).toBe(2);
    expect(left([{ kind: 'prefill', state: 'loading', prompt: 18, isFetching: true, fetchEnd: 3 }]).prompts).toEqual({
      tokens: 4,
      pairs: 4 * 12 + 10,
      sequences: 1,
    });
    expect(left([{ state: 'waiting', prompt: 18 }]).prompts.tokens).toBe(18);
    expect(left([{ state: 'waiting', prompt: 18 }], { cachedBlocks: () => 2 }).prompts.tokens).toBe(10);
  });

  test('that wait need blocks; further samples of a prompt have no rows of their own', () => {
    const { prompts, coming, waitingBlocks } = left([
      { state: 'waiting', prompt: 18, groupIndex: 0 },
      { state: 'waiting', prompt: 18, groupIndex: 1 },
      { kind: 'prefill', state: 'waiting', prompt: 9 },
    ]);
    expect(prompts).toMatchObject({ tokens: 18 + 8, sequences: 2 });
    expect(coming.sequences).toBe(2);
    expect(waitingBlocks).toBe(5 + 5 + 2);
  });

  test('take steps of so many rows, one step for each chunk, and paced ones with tokens', () => {
    const prompt: Wish = { kind: 'prefill', state: 'running', prompt: 51 };
    const rowsMs = 48 + 0.01 * (48 * 49 * 0.5);
    expect(left([]).promptsMs).toBe(0);
    expect(left([prompt]).promptsMs).toBeCloseTo(3 * 10 + rowsMs, 9);
    const generating: Wish = { state: 'running', prompt: 96, output: 4, submitted: 99 };
    const tokensMs = 10 + 1 + 0.1;
    // Steps of 20 rows less the token's, as many as there are.
    expect(left([prompt, generating]).promptsMs).toBeCloseTo(3 * tokensMs + rowsMs, 9);
    // Steps that leave 10 ms for prompts: six of them.
    expect(left([prompt, generating], { pacedStepMs: 21.1 }).promptsMs).toBeCloseTo(6 * tokensMs + rowsMs, 9);
    // Four rows of each step are the least.
    expect(left([prompt, generating], { pacedStepMs: 5 }).promptsMs).toBeCloseTo(12 * tokensMs + rowsMs, 9);
  });
});

describe('sequences that generate', () => {
  test('have one row left, or a step computes it: their context counts, and no prompt', () => {
    const { generating, coming, prompts } = left([
      { state: 'running', prompt: 10, submitted: 9 },
      { state: 'running', prompt: 10, output: 5, submitted: 15 },
    ]);
    expect(generating).toEqual({ sequences: 2, contextTokens: 25 });
    expect(coming.sequences + prompts.sequences).toBe(0);
  });

  test('end when their answers are as long as expected, and then leave their blocks', () => {
    const base: Wish = { state: 'running', prompt: 10, output: 10, submitted: 19 };
    const { ends } = left([
      // Expected by the router; by the mean of the engine; at most; and longer than expected already.
      { ...base, expectedTokens: 30, numBlocks: 5 },
      { ...base, numBlocks: 7, firstHeld: 3 },
      { ...base, numBlocks: 2, maxLength: 23 },
      { ...base, expectedTokens: 8, numBlocks: 1 },
    ]);
    const tokensMs = 10 + 4 + 0.08;
    expect(ends.map(({ ms, ...rest }) => ({ tokens: Math.round(ms / tokensMs), ...rest }))).toEqual([
      { tokens: 3, sequences: 1, blocks: 2 },
      { tokens: 5, sequences: 2, blocks: 3 },
      { tokens: 20, sequences: 3, blocks: 8 },
      { tokens: 40, sequences: 4, blocks: 12 },
    ]);
  });

  test('end later while prompts lengthen the steps', () => {
    const running: Wish = { state: 'running', prompt: 10, submitted: 9, expectedTokens: 10 };
    const prompt: Wish = { kind: 'prefill', state: 'running', prompt: 401 };
    const [alone] = left([running]).ends;
    const [mixed] = left([running, prompt], { pacedStepMs: 30 }).ends;
    expect(alone!.ms).toBeCloseTo(10 * (11 + 0.01), 9);
    expect(mixed!.ms).toBeCloseTo(10 * 30, 9);
  });

  test('are many: the ends are summed up in a few', () => {
    const wishes = Array.from({ length: 35 }, (_, i): Wish => {
      return { state: 'running', prompt: 10, submitted: 9, numBlocks: 2, expectedTokens: 35 - i };
    });
    const { ends } = left(wishes);
    expect(ends.length).toBe(MAX_ENDS);
    expect(ends.at(-1)).toMatchObject({ sequences: 35, blocks: 70 });
    for (const [i, { ms, sequences }] of ends.entries()) {
      expect(ms).toBeGreaterThan(ends[i - 1]?.ms ?? 0);
      // Answers of 1, 2, 3 ... tokens.
      expect(Math.round(ms / (10 + 35 + 0.35))).toBe(sequences);
    }
  });
});

test('the mean length of answers follows those that end', () => {
  const lengths = new AnswerLength();
  expect(lengths.mean).toBe(256);
  lengths.finished(10);
  expect(lengths.mean).toBe(10);
  for (let i = 0; i < 100; i++) lengths.finished(100);
  expect(lengths.mean).toBeGreaterThan(95);
});

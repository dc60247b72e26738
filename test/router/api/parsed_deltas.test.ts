/** Deltas of several choices on their way to one taker: in turn, and none after the answer was given up. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { systemClock } from '../../../shared/base/clock.ts';
import type { Taken } from '../../../shared/base/handover.ts';
import { eachDelta, type AnswerRuns, type ParsedDelta } from '../../../services/router/api/parsed_deltas.ts';
import type { AnswerDelta } from '../../../services/router/api/prompt_output.ts';
import { turn } from '../../support/until.ts';

const delta = (text: string): AnswerDelta => ({
  text,
  tokens: [{ token: 1, position: 1, logprob: [-1], topTokens: [], topLogprobs: [] }],
  offset: 0,
  numTokens: 1,
  finish: undefined,
  stopReason: null,
  matchedStop: null,
});

/** A run whose deltas a test gives, and which ends as the test says. */
class PlayedRun {
  give: (text: string) => Taken = () => undefined;
  end: () => void = () => undefined;
  fail: (error: Error) => void = () => undefined;

  readonly run = (take: (delta: AnswerDelta) => Taken): Promise<void> => {
    this.give = (text) => take(delta(text));
    return new Promise((resolve, reject) => {
      [this.end, this.fail] = [resolve, reject];
    });
  };
}

interface WorldOptions {
  readonly hasLogprobs?: boolean;
  readonly echo?: string;
  /** Answer of the taker. */
  readonly onDelta?: (delta: ParsedDelta) => Promise<void> | undefined;
}

/** Two choices of one answer; names of tokens are known once `known` is called. */
function world({ hasLogprobs = false, echo, onDelta = () => undefined }: WorldOptions) {
  let known: () => void = () => undefined;
  const names = new Promise<void>((resolve) => (known = resolve));
  const nameOf = () => ({ bytes: [], text: 'x', escaped: '', name: 'x', isAdded: false });
  const played = [new PlayedRun(), new PlayedRun()] as const;
  const promptLogprobs = Array.from({ length: 4 }, (_, i) => ({ ...delta('').tokens[0], position: i + 1 }));
  const generation = { promptTokens: Uint32Array.of(1, 2, 3, 4, 5), promptLogprobs };
  const taken: string[] = [];
  const answer = {
    context: {
      clock: systemClock,
      codec: { hasTokenizer: true, names: () => names.then(() => nameOf), decode: () => Promise.resolve(['']) },
    },
    body: { sampling: { numLogprobs: hasLogprobs ? 0 : -1 }, isNamingIds: false },
    runs: played.map(({ run }) => ({ run, generation, first: { generation }, trace: {}, echo })),
  } as unknown as AnswerRuns;
  const ended = eachDelta(answer, { signal: new AbortController().signal }, (one) => {
    taken.push(`${one.index}${one.text}`);
    return onDelta(one);
  });
  const outcome = ended.then(
    () => 'all',
    (error: unknown) => (error as Error).message,
  );
  return { played, taken, known, outcome };
}

test('a choice whose names come after another has failed is given to nobody, and the failure waits for it', async () => {
  const { played, taken, known, outcome } = world({ hasLogprobs: true });
  void played[0].give('a');
  played[1].fail(new Error('lost'));
  let isOver = false;
  void outcome.then(() => (isOver = true));
  for (let i = 0; i < 5; i++) await turn();
  assert.equal(isOver, false);
  known();
  assert.equal(await outcome, 'lost');
  assert.deepEqual(taken, []);
  assert.equal(await played[0].give('b'), 'enough');
});

test('a prompt that is echoed slice by slice stops where the answer was given up', async () => {
  const { played, taken, known, outcome } = world({ hasLogprobs: true, echo: 'prompt' });
  void played[0].give('a');
  await turn();
  played[1].fail(new Error('lost'));
  await turn();
  known();
  assert.equal(await outcome, 'lost');
  assert.deepEqual(taken, []);
});

test('while a taker is behind, the deltas of all choices wait, and come in their order', async () => {
  let catchUp: () => void = () => undefined;
  const onDelta = ({ text }: ParsedDelta): Promise<void> | undefined =>
    text === 'a' ? new Promise((resolve) => (catchUp = resolve)) : undefined;
  const { played, taken, outcome } = world({ onDelta });
  const first = played[0].give('a');
  const second = played[1].give('b');
  await turn();
  assert.deepEqual(taken, ['0a']);
  catchUp();
  await Promise.all([first, second]);
  assert.equal(played[0].give('c'), undefined);
  assert.deepEqual(taken, ['0a', '1b', '0c']);
  for (const { end } of played) end();
  assert.equal(await outcome, 'all');
});

test('a taker that fails ends the answer, and all runs have enough', async () => {
  const onDelta = (): undefined => {
    throw new Error('the reader has stopped');
  };
  const { played, taken, outcome } = world({ onDelta });
  assert.equal(played[0].give('a'), 'enough');
  assert.equal(await outcome, 'the reader has stopped');
  assert.equal(played[1].give('b'), 'enough');
  assert.deepEqual(taken, ['0a']);
});

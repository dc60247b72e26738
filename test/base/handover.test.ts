/** Values on their way to a taker that keeps up, waits, has enough or fails. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { ENOUGH, Handover, type Taken } from '../../shared/base/handover.ts';
import { turn } from '../support/until.ts';

interface Value {
  readonly n: number;
}

/** A handover to a taker that answers what `answers` has for a value, and how it ended. */
function world(answers: Readonly<Record<number, () => Taken>> = {}) {
  const taken: number[] = [];
  const handover = new Handover<Value>(({ n }) => {
    taken.push(n);
    return answers[n]?.();
  });
  const state: { ended?: string } = {};
  handover.ended.then(
    () => (state.ended = 'all'),
    (error: unknown) => (state.ended = (error as Error).message),
  );
  return { taken, handover, state };
}

const push = (handover: Handover<Value>, ...numbers: number[]): void => {
  for (const n of numbers) handover.push({ n });
};

test('a taker that keeps up has each value at once, in order, and the end after the last one', async () => {
  const { taken, handover, state } = world();
  push(handover, 1, 2, 3);
  assert.deepEqual(taken, [1, 2, 3]);
  await turn();
  assert.equal(state.ended, undefined);
  handover.end();
  push(handover, 4);
  await turn();
  assert.deepEqual([taken, state.ended], [[1, 2, 3], 'all']);
});

test.each([
  ['without an error', undefined, 'all'],
  ['with one', new Error('lost'), 'lost'],
])('values wait for a taker that is behind, also those before an end %s', async (_name, error, ended) => {
  let catchUp: (answer: undefined) => void = () => undefined;
  const { taken, handover, state } = world({ 1: () => new Promise((resolve) => (catchUp = resolve)) });
  push(handover, 1, 2, 3);
  handover.end(error);
  handover.end(new Error('only the first end counts'));
  await turn();
  assert.deepEqual([taken, state.ended], [[1], undefined]);
  catchUp(undefined);
  await turn();
  assert.deepEqual([taken, state.ended], [[1, 2, 3], ended]);
});

test('a failure drops the values that wait, and ends when the taker is done with the one that it has', async () => {
  let catchUp: (answer: undefined) => void = () => undefined;
  const { taken, handover, state } = world({ 1: () => new Promise((resolve) => (catchUp = resolve)) });
  push(handover, 1, 2);
  handover.fail(new Error('the caller went away'));
  await turn();
  assert.equal(state.ended, undefined);
  catchUp(undefined);
  await turn();
  assert.deepEqual([taken, state.ended], [[1], 'the caller went away']);
});

test('after an end a failure drops nothing', async () => {
  let catchUp: (answer: undefined) => void = () => undefined;
  const { taken, handover, state } = world({ 1: () => new Promise((resolve) => (catchUp = resolve)) });
  push(handover, 1, 2);
  handover.end();
  handover.fail(new Error('too late'));
  catchUp(undefined);
  await turn();
  assert.deepEqual([taken, state.ended], [[1, 2], 'all']);
});

test.each<[string, () => Taken, string]>([
  ['says so', () => ENOUGH, 'all'],
  ['says so later', () => Promise.resolve(ENOUGH), 'all'],
  [
    'throws',
    () => {
      throw new Error('no room');
    },
    'no room',
  ],
  ['rejects', () => Promise.reject(new Error('no room')), 'no room'],
])('a taker that %s gets nothing more, whatever comes', async (_name, answer, ended) => {
  const { taken, handover, state } = world({ 2: answer });
  push(handover, 1, 2, 3);
  await turn();
  push(handover, 4);
  handover.end(new Error('later'));
  await turn();
  assert.deepEqual([taken, state.ended], [[1, 2], ended]);
});

test('one that has enough while the way fails has ended well', async () => {
  let answer: (answer: typeof ENOUGH) => void = () => undefined;
  const { handover, state } = world({ 1: () => new Promise((resolve) => (answer = resolve)) });
  push(handover, 1);
  handover.fail(new Error('the caller went away'));
  answer(ENOUGH);
  await turn();
  assert.equal(state.ended, 'all');
});

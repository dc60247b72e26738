/** Expected lengths of answers. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { MeanLengthPredictor, type LengthFeatures } from '../../../services/router/conductor/length_predictor.ts';

const features = (more: Partial<LengthFeatures> = {}): LengthFeatures => ({
  tenant: '',
  kind: '/v1/completions',
  template: 'a',
  promptTokens: 100,
  maxTokens: 1_000,
  ...more,
});

function learnt(answers: readonly [Partial<LengthFeatures>, number, boolean?][]): MeanLengthPredictor {
  const lengths = new MeanLengthPredictor();
  for (const [more, tokens, isCut = false] of answers) lengths.learn(features(more), tokens, isCut);
  return lengths;
}

const times = <T>(count: number, value: T): T[] => Array.from({ length: count }, () => value);
const about = (value: number, expected: number): void =>
  assert(Math.abs(value - expected) < 1e-6 * expected, `${value} is not ${expected}`);

test('a group with enough answers decides; a request of another group is predicted by the next coarser one', () => {
  const lengths = learnt([...times(8, [{}, 40] as const), ...times(8, [{ template: 'b' }, 80] as const)] as never);
  about(lengths.predict(features()), 40);
  about(lengths.predict(features({ template: 'b' })), 80);
  about(lengths.predict(features({ template: 'a', promptTokens: 90_000 })), 40);
  const mixed = lengths.predict(features({ template: 'c' }));
  assert(mixed > 60 && mixed < 70, 'the later answers weigh more');
  assert.equal(lengths.predict(features({ template: 'c', kind: '/v1/chat/completions' })), mixed);
  assert.equal(lengths.predict(features({ template: 'c', tenant: 'x' })), mixed);
});

test('no prediction exceeds what the request allows, also while nothing is known', () => {
  const lengths = learnt([]);
  assert.equal(lengths.predict(features({ maxTokens: 16 })), 16);
  assert.equal(lengths.predict(features()), 256);
  about(learnt(times(8, [{}, 40]) as never).predict(features({ maxTokens: 7 })), 7);
});

test('answers that were cut count as answers that go on', () => {
  const all = learnt(times(9, [{ maxTokens: 50 }, 50, true]) as never);
  assert.equal(all.predict(features({ maxTokens: 700 })), 700);
  // Half of them end after 50 tokens, half are cut there: 100 tokens for each end.
  const half = learnt(Array.from({ length: 2_000 }, (_, i) => [{}, 50, i % 2 === 0]) as never);
  assert(Math.abs(half.predict(features()) - 100) < 2);
});

test('a habit that changes is followed', () => {
  const lengths = learnt([...times(500, [{}, 40]), ...times(200, [{}, 400])] as never);
  assert(lengths.predict(features()) > 370);
});

test('groups are bounded (P1), and those in use stay', () => {
  const lengths = learnt(times(8, [{}, 40]) as never);
  for (let i = 0; i < 20_000; i++) {
    lengths.learn(features({ template: `t${i}` }), 5, false);
    if (i % 1_000 === 0) lengths.learn(features(), 40, false);
  }
  assert(lengths.size > 15_000 && lengths.size <= 1 << 14);
  about(lengths.predict(features()), 40);
});

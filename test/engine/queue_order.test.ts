/** The orders of the queue: the suite that all pass, the cases that make each what it is, and equal tokens under all. Budget: 30 s. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { loadModel } from '../../shared/engine/load_model.ts';
import { queueOrderNames, type QueuedSequence, type QueueOrderName } from '../../shared/engine/queue_order.ts';
import { Harness } from '../support/engine_harness.ts';
import { goldenFolder } from '../support/golden.ts';
import { generate, greedy, loadDefaults, loadReference } from '../support/reference_loop.ts';
import { orderOfFacts, PlayedEngine, queueOrderSuite, type Named } from './queue_order_suite.ts';

describe.each([...queueOrderNames])('%s', queueOrderSuite);

const random = new Random(12);
const promptOf = (length: number): number[] => Array.from({ length }, () => random.below(1_000));

type Facts = Partial<QueuedSequence> & { readonly nextBlock?: string };

function sequencesOf(facts: Record<string, Facts>): (QueuedSequence & Named)[] {
  return Object.entries(facts).map(([name, one]) => ({
    name,
    priority: 0,
    arrivedMs: 0,
    promptRows: 10,
    rowsLeft: 10,
    rowsRun: 0,
    ...one,
  }));
}

function admission(name: QueueOrderName, facts: Record<string, Facts>, nowMs = 0): string {
  return orderOfFacts(name)
    .sorted(sequencesOf(facts), nowMs)
    .map((one) => one.name)
    .join('');
}

describe('before any order', () => {
  test('comes priority, lower first', () => {
    const facts = { a: { priority: 5 }, b: { priority: -1 }, c: {}, d: { priority: 5 }, e: { priority: -1 } };
    for (const name of queueOrderNames) {
      assert.equal(admission(name, facts), 'becad', name);
    }
  });

  test('comes age: a level of priority for every half minute, and within a level the oldest first', () => {
    const facts = {
      a: { priority: 7, arrivedMs: 0, rowsLeft: 900 },
      b: { priority: 0, arrivedMs: 10_000, rowsLeft: 5 },
      c: { priority: 0, arrivedMs: 25_000, rowsLeft: 4 },
    };
    assert.equal(admission('shortest_first', facts, 29_999), 'cba');
    assert.equal(admission('shortest_first', facts, 30_000), 'acb');
    assert.equal(admission('shortest_first', facts, 40_000), 'bac');
  });
});

test('first_come keeps the list', () => {
  assert.equal(admission('first_come', { a: { rowsLeft: 9 }, b: { rowsLeft: 1 }, c: {} }), 'abc');
  const list = sequencesOf({ a: {}, b: {} });
  assert.equal(orderOfFacts('first_come').sorted(list, 1e9), list);
});

test('shortest_first: what has the fewest rows and expected tokens left, and who comes with fewer passes a long prompt', () => {
  const engine = new PlayedEngine('shortest_first', 200, 16, 8);
  const long = engine.submit(promptOf(160), 1);
  engine.step();
  const answered = engine.submit(promptOf(24), 30, { expectedTokens: 150 });
  const short = engine.submit(promptOf(40), 1);
  for (let i = 0; i < 60; i++) engine.step();
  assert.deepEqual(engine.admitted, [long, short, answered]);
  assert.deepEqual(engine.ended, [short, long, answered]);
  // With ten rows left the one that came first passes one of twenty.
  const first = engine.submit(promptOf(42), 1);
  engine.step();
  engine.step();
  const second = engine.submit(promptOf(20), 1);
  for (let i = 0; i < 9; i++) engine.step();
  assert.deepEqual(engine.ended.slice(3), [first, second]);
});

test('the last one by the order is preempted: under shortest_first the one with most left, although it came first', () => {
  for (const [name, wanted] of [
    ['first_come', 2],
    ['shortest_first', 1],
  ] as const) {
    const engine = new PlayedEngine(name, 8, 16, 4);
    engine.submit(promptOf(14), 10, { expectedTokens: 10 });
    engine.submit(promptOf(14), 6, { expectedTokens: 6 });
    for (let i = 0; i < 40; i++) engine.step();
    assert.deepEqual(engine.preempted.slice(0, 1), [wanted], name);
    assert.equal(engine.ended.length, 2);
  }
});

test('slices: prompts take turns of 512 rows, and one that has just come waits for its own', () => {
  const order = orderOfFacts('slices');
  const at = (a: number, b: number, c: number): string => {
    const state = { a, b, c };
    for (const one of sequences) Object.assign(one, { rowsRun: state[one.name as keyof typeof state] });
    return order
      .sorted(sequences, 0)
      .map((one) => one.name)
      .join('');
  };
  const sequences = sequencesOf({ a: {}, b: {}, c: {} });
  assert.equal(at(0, 0, 0), 'abc');
  assert.equal(at(511, 0, 0), 'abc');
  assert.equal(at(512, 0, 0), 'bca');
  assert.equal(at(512, 512, 0), 'cab');
  assert.equal(at(512, 512, 512), 'abc');
  const late = sequencesOf({ d: {} });
  assert.equal(
    order
      .sorted([...late, ...sequences], 0)
      .map(({ name }) => name)
      .join(''),
    'abcd',
  );
});

test('feedback: a prompt joins at the level that has rows enough, and falls by one when they are used up', () => {
  const order = orderOfFacts('feedback');
  const [long, short, medium] = sequencesOf({
    long: { promptRows: 5_000 },
    short: { promptRows: 100 },
    medium: { promptRows: 1_000 },
  });
  const names = (): string[] => order.sorted([long!, short!, medium!], 0).map(({ name }) => name);
  assert.deepEqual(names(), ['short', 'medium', 'long']);
  // A level of 256 rows, then one of 512 and one of 1,024, after the medium one that is there already.
  Object.assign(short!, { rowsRun: 256 });
  assert.deepEqual(names(), ['short', 'medium', 'long']);
  Object.assign(short!, { rowsRun: 256 + 512 });
  assert.deepEqual(names(), ['medium', 'short', 'long']);
});

test('shared_prefix: the largest group first, in the order in which its members came, also once its block is there', () => {
  const facts = {
    a: { nextBlock: 'x' },
    b: {},
    c: { nextBlock: 'y' },
    d: { nextBlock: 'z' },
    e: { nextBlock: 'y' },
    f: { nextBlock: 'z' },
    g: { nextBlock: 'z' },
    h: {},
  };
  assert.equal(admission('shared_prefix', facts), 'dfgceabh');
  const engine = new PlayedEngine('shared_prefix', 200, 16, 2);
  const [one, other] = [promptOf(32), promptOf(32)];
  const ids = [one, other, one, other, other].map((prefix) => engine.submit([...prefix, ...promptOf(8)], 2));
  for (let i = 0; i < 40; i++) engine.step();
  // Those of the second prefix first; the first one of them computes it, and the others hit it.
  assert.deepEqual(
    engine.admitted.filter((id) => id === ids[1] || id === ids[3] || id === ids[4]),
    [ids[1], ids[3], ids[4]],
  );
  assert.equal(engine.admitted[0], ids[1]);
  assert.equal(engine.ended.length, 5);
});

test('under every order, and a shortage of blocks, each sequence gets the tokens that it gets alone (E2)', async () => {
  const path = goldenFolder('llama-odd');
  const prefix = Array.from({ length: 70 }, () => random.below(333));
  const cases = Array.from({ length: 10 }, (_, i) => {
    const own = Array.from({ length: 1 + random.below(90) }, () => random.below(333));
    return { prompt: i % 2 ? own : [...prefix, ...own], maxTokens: 40 + random.below(40), priority: random.below(2) };
  });
  const reference = await loadReference(path, 'f16', 512);
  const want = [];
  for (const { prompt, maxTokens } of cases)
    want.push((await generate(reference.executable, prompt, greedy, maxTokens)).map(({ token }) => token));
  await reference.executable.close();
  for (const name of queueOrderNames) {
    const [numBlocks, chunkTokens] = [12, 64];
    const model = await loadModel({ ...loadDefaults, modelPath: path, numBlocks, chunkTokens });
    const h = new Harness(model, numBlocks, chunkTokens, 8, undefined, name);
    const ids = cases.map(({ prompt, maxTokens, priority }) =>
      h.submit(prompt, maxTokens, { priority, expectedTokens: maxTokens }),
    );
    await h.run();
    expect(ids.map((id) => h.outputs.get(id))).toEqual(want);
    assert(h.engine.load.numPreemptions > 0, `${name} preempts`);
    await model.executable.close();
  }
});

/** Conversions of rules: shared, kept, bounded in number and time, whatever their thread does. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { RuleConversions } from '../../../shared/text/grammar/text_rules.ts';
import type { TextRule } from '../../../shared/text/grammar/text_rule.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { Threads } from '../../../shared/base/threads.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';

const never = new AbortController().signal;
const rule = (pattern: string): TextRule => ({ kind: 'regex', param: 'regex', pattern });

/** A thread that answers when it is told to: `texts` are the rules that it was given. */
function made(): {
  readonly rules: RuleConversions;
  readonly clock: SimulatedClock;
  readonly texts: string[];
  readonly answer: (value: string | Error) => Promise<void>;
  readonly closed: () => number;
  /** Adds CPU time to what the thread has used. */
  readonly use: (ms: number) => void;
} {
  const texts: string[] = [];
  const waiting: { resolve: (value: string) => void; reject: (error: Error) => void }[] = [];
  let numClosed = 0;
  let usedMs = 0;
  const threads = {
    spawn: () => ({
      call: (method: string, one: { pattern: string }) =>
        method === 'ready'
          ? Promise.resolve()
          : new Promise<string>((resolve, reject) => {
              texts.push(one.pattern);
              waiting.push({ resolve, reject });
            }),
      cpuMs: () => Promise.resolve(usedMs),
      close: () => {
        numClosed++;
        return Promise.resolve();
      },
    }),
  } as unknown as Threads;
  const clock = new SimulatedClock();
  return {
    rules: new RuleConversions(threads, clock),
    clock,
    texts,
    closed: () => numClosed,
    use: (ms) => (usedMs += ms),
    answer: async (value) => {
      await turn();
      const one = waiting.shift();
      assert(one);
      if (value instanceof Error) one.reject(value);
      else one.resolve(value);
      await turn();
    },
  };
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
const why = async (coming: Promise<string>): Promise<string> => {
  try {
    return await coming;
  } catch (error) {
    assert(error instanceof Failure);
    return `${error.code}: ${error.message}`;
  }
};

test('one rule is converted once for all that ask, and kept', async () => {
  const { rules, texts, answer } = made();
  const all = Array.from({ length: 200 }, () => rules.convert(rule('a'), { signal: never }));
  await answer('A');
  expect(new Set(await Promise.all(all))).toEqual(new Set(['A']));
  assert.equal(await rules.convert(rule('a'), { signal: never }), 'A');
  assert.deepEqual(texts, ['a']);
});

test('a rule that is refused is refused again at once', async () => {
  const { rules, texts, answer } = made();
  const first = why(rules.convert(rule('('), { signal: never }));
  await answer(new Failure('invalid_request', 'it is open'));
  assert.equal(await first, 'invalid_request: it is open');
  assert.equal(await why(rules.convert(rule('('), { signal: never })), 'invalid_request: it is open');
  assert.deepEqual(texts, ['(']);
});

test('one that takes too much CPU time ends its thread, and may be tried again after a minute', async () => {
  const { rules, clock, texts, answer, closed, use } = made();
  const first = why(rules.convert(rule('a'), { signal: never }));
  await turn();
  await clock.run(500);
  use(5_000);
  await clock.run(1_000);
  assert.match(await first, /^invalid_request: it took over 5 s of CPU time/);
  assert.equal(closed(), 1);
  assert.match(await why(rules.convert(rule('a'), { signal: never })), /took over 5 s of CPU/);
  await clock.run(62_001);
  const again = rules.convert(rule('a'), { signal: never });
  // A late answer of the thread that was ended changes nothing.
  await answer('late');
  await answer('A');
  assert.equal(await again, 'A');
  assert.deepEqual(texts, ['a', 'a']);
});

test('one whose thread gets no CPU time is not refused: the next request tries again', async () => {
  const { rules, clock, texts, answer, closed } = made();
  const first = why(rules.convert(rule('a'), { signal: never }));
  await turn();
  await clock.run(59_000);
  assert.equal(closed(), 0, 'it has a minute');
  await clock.run(62_000);
  assert.match(await first, /^overloaded: the machine has no time to read it/);
  assert.equal(closed(), 1);
  const again = rules.convert(rule('a'), { signal: never });
  await answer('late');
  await answer('A');
  assert.equal(await again, 'A');
  assert.deepEqual(texts, ['a', 'a']);
});

test('a thread that dies of a rule is replaced', async () => {
  const { rules, answer, closed } = made();
  const first = why(rules.convert(rule('a'), { signal: never }));
  await answer(new Error('out of memory'));
  assert.match(await first, /^invalid_request: it cannot be read/);
  assert.equal(closed(), 1);
  const next = rules.convert(rule('b'), { signal: never });
  await answer('B');
  assert.equal(await next, 'B');
});

test('a client that leaves does not wait; more than 64 waiting rules are refused', async () => {
  const { rules, answer } = made();
  const gone = new AbortController();
  const left = why(rules.convert(rule('0'), { signal: gone.signal }));
  const others = Array.from({ length: 64 }, (_, i) => why(rules.convert(rule(`${i + 1}`), { signal: never })));
  assert.match(await why(rules.convert(rule('65'), { signal: never })), /^overloaded/);
  gone.abort();
  assert.match(await left, /^cancelled/);
  for (let i = 0; i < 65; i++) await answer(String(i));
  assert.deepEqual(
    await Promise.all(others),
    Array.from({ length: 64 }, (_, i) => String(i + 1)),
  );
});

test('the end: rules that run or wait fail, and no thread is started for them', async () => {
  const { rules, texts, answer, closed } = made();
  const all = ['a', 'b', 'c'].map((pattern) => why(rules.convert(rule(pattern), { signal: never })));
  await turn();
  await rules.close();
  // A thread that is closed fails what it has.
  await answer(new Error('the worker ended'));
  for (const one of all) assert.match(await one, /^cancelled/);
  assert.deepEqual([texts, closed()], [['a'], 1]);
});

test('what is kept stays bounded, and is counted once', async () => {
  const { rules, texts, answer } = made();
  const large = 'x'.repeat(1 << 20);
  for (let i = 0; i < 12; i++) {
    const one = rules.convert(rule(`${i}`), { signal: never });
    await answer(large);
    await one;
  }
  assert.equal(await rules.convert(rule('11'), { signal: never }), large);
  assert.equal(texts.length, 12);
  const again = rules.convert(rule('0'), { signal: never });
  await answer('small');
  assert.equal(await again, 'small');
  assert.equal(await rules.convert(rule('0'), { signal: never }), 'small');
});

test('clients take turns: who asks for much delays another by one rule, and a known rule waits for nobody', async () => {
  const { rules, answer, texts } = made();
  const known = rules.convert(rule('known'), { signal: never, share: { key: 'somebody' } });
  await answer('K');
  assert.equal(await known, 'K');
  const hostile = Array.from({ length: 12 }, (_, i) =>
    why(rules.convert(rule(`slow ${i}`), { signal: never, share: { key: 'hostile' } })),
  );
  await turn();
  const own = rules.convert(rule('own'), { signal: never, share: { key: 'victim' } });
  assert.equal(await rules.convert(rule('known'), { signal: never, share: { key: 'victim' } }), 'K');
  await answer('S');
  await answer('O');
  assert.equal(await own, 'O');
  assert.deepEqual(texts, ['known', 'slow 0', 'own', 'slow 1']);
  for (let i = 1; i < 12; i++) await answer('S');
  await Promise.all(hostile);
  // Twelve clients with one rule each: a small rule of a thirteenth is the second.
  const others = Array.from({ length: 12 }, (_, i) =>
    why(rules.convert(rule(`other ${i}`), { signal: never, share: { key: `hostile-${i}` } })),
  );
  await turn();
  const choice: TextRule = { kind: 'choice', param: 'guided_choice', texts: ['a'] };
  const small = rules.convert(choice, { signal: never, share: { key: 'late' } });
  await answer('S');
  await answer('C');
  assert.equal(await small, 'C');
  for (let i = 1; i < 12; i++) await answer('S');
  await Promise.all(others);
});

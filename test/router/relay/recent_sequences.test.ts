/**
 * Prompts next to the sequences that they continue: which of them are rewritten, where, and how much of the text reappears. Tokens are
 * random; the cache is a perfect one, which holds every prefix that was ever remembered. Budget: 15 s.
 */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../../shared/base/random.ts';
import type { Digest } from '../../../shared/kv/block_key.ts';
import { RecentSequences } from '../../../services/router/relay/recent_sequences.ts';
import { commonPrefix } from '../../../services/router/relay/shared_runs.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';

const root = 'ab'.repeat(16) as Digest;
const otherRoot = 'cd'.repeat(16) as Digest;

class Router {
  readonly recent: RecentSequences;
  readonly #clock = new SimulatedClock();
  readonly #all: { readonly root: Digest; readonly tokens: Uint32Array }[] = [];

  constructor(maxTokens?: number) {
    this.recent = new RecentSequences(maxTokens);
  }

  /** Runs a prompt with its answer; returns where it is rewritten, and how many tokens it shares with what it continues. */
  async run(prompt: readonly number[], answer: readonly number[], under = root): Promise<[number, number] | undefined> {
    const tokens = Uint32Array.from(prompt);
    const held = Math.max(0, ...this.#all.map((one) => (one.root === under ? commonPrefix(one.tokens, tokens) : 0)));
    const heldTokens = Math.floor(Math.min(held, tokens.length - 1) / 32) * 32;
    const finding = this.recent.find({ root: under, tokens, heldTokens }, this.#clock);
    await this.#clock.run(this.#clock.nowMs() + 1);
    const found = await finding;
    const sequence = {
      root: under,
      promptLength: prompt.length,
      keys: new Int32Array(0),
      tokens: Uint32Array.from([...prompt, ...answer]),
    };
    this.#all.push(sequence);
    const remembering = this.recent.remember(sequence, found, this.#clock);
    await this.#clock.run(this.#clock.nowMs() + 1);
    await remembering;
    return found && [found.start, found.sharedTokens];
  }
}

/** A source of texts, in which no token is the same as the one before. */
function texts(seed: number): (length: number) => number[] {
  const random = new Random(seed);
  return (length) => Array.from({ length }, (_, i) => 2 * random.below(20_000) + (i % 2));
}

test('a chat that goes on is not rewritten, nor is its last answer when it is generated again', async () => {
  const [router, text] = [new Router(), texts(1)];
  let prompt = text(900);
  for (let turn = 0; turn < 6; turn++) {
    const answer = text(200);
    assert.equal(await router.run(prompt, answer), undefined);
    assert.equal(await router.run(prompt, text(180)), undefined, 'again');
    assert.equal(await router.run(prompt, answer), undefined);
    // A template trims the end of an answer.
    prompt = [...prompt, ...answer.slice(0, -3), ...text(120)];
  }
});

test('a chat whose answer was cut at a stop string goes on', async () => {
  const [router, text] = [new Router(), texts(2)];
  const [prompt, answer] = [text(500), text(300)];
  await router.run(prompt, answer);
  assert.equal(await router.run([...prompt, ...answer.slice(0, 280), ...text(100)], text(9)), undefined);
});

test('other questions under one system prompt, or about one document, are other prompts', async () => {
  const [router, text] = [new Router(), texts(3)];
  const [system, document] = [text(2_000), text(4_000)];
  for (let i = 0; i < 10; i++) {
    assert.equal(await router.run([...system, ...text(60)], text(200)), undefined, 'a question');
    assert.equal(await router.run([...system, ...text(30), ...document, ...text(5)], text(200)), undefined, 'before');
    assert.equal(await router.run([...text(40), ...document, ...text(30)], text(200)), undefined, 'both sides');
  }
});

test('a chat that is compacted to a summary begins anew', async () => {
  const [router, text] = [new Router(), texts(4)];
  const [system, summary] = [text(1_000), text(700)];
  await router.run([...system, ...text(9_000), ...text(40)], summary);
  assert.equal(await router.run([...system, ...text(30), ...summary, ...text(200)], text(100)), undefined);
});

test('a chat that quotes another one whole is no rewritten form of it', async () => {
  const [router, text] = [new Router(), texts(5)];
  const [system, quoted, answer] = [text(300), text(2_000), text(300)];
  await router.run([...system, ...quoted], answer);
  const [own, ownAnswer] = [[...system, ...text(500)], text(100)];
  await router.run(own, ownAnswer);
  assert.equal(await router.run([...own, ...ownAnswer, ...text(9), ...quoted, ...answer], text(30)), undefined);
});

test('a line at the front that changes with each request: all after it is shared', async () => {
  const [router, text] = [new Router(), texts(6)];
  const head = text(13);
  let rest = text(5_000);
  for (let turn = 0; turn < 5; turn++) {
    const prompt = [...head, ...text(7), ...rest];
    const answer = text(turn === 3 ? 4 : 150);
    const found = await router.run(prompt, answer);
    // The text of the turn before, without the line; its answer's end, and what the client added, are new.
    if (turn > 0) assert.deepEqual(found, [13, prompt.length - 7 - 80]);
    rest = [...rest, ...answer, ...text(80)];
  }
  assert.equal(router.recent.size, 1, 'a rewritten sequence replaces what it continues');
});

test('reasoning that is dropped from each earlier turn: what stood between is shared', async () => {
  const [router, text] = [new Router(), texts(7)];
  const steps = Array.from({ length: 4 }, () => ({ reasoning: text(300), call: text(45), result: text(600) }));
  const first = text(1_500);
  const [lastReasoning, answer] = [text(2_000), text(250)];
  const before = [...first, ...steps.flatMap(({ reasoning, call, result }) => [...reasoning, ...call, ...result])];
  await router.run(before, [...lastReasoning, ...answer]);
  const kept = [...first, ...steps.flatMap(({ call, result }) => [...call, ...result]), ...answer];
  assert.deepEqual(await router.run([...kept, ...text(70)], text(30)), [1_500, kept.length]);
});

test('reasoning that is most of a chat: what the client wrote and the calls are shared', async () => {
  const [router, text] = [new Router(), texts(14)];
  let withReasoning = text(200);
  let without = withReasoning;
  for (let step = 0; step < 5; step++) {
    const [reasoning, call, result] = [text(900), text(50), text(60)];
    assert.equal(await router.run(withReasoning, [...reasoning, ...call]), undefined);
    withReasoning = [...withReasoning, ...reasoning, ...call, ...result];
    without = [...without, ...call, ...result];
  }
  await router.run(withReasoning, [9, 9, 9]);
  assert.deepEqual(await router.run([...without, ...text(70)], text(30)), [200, without.length]);
});

test('one call whose JSON comes back spaced otherwise: what follows it is shared', async () => {
  const [router, text] = [new Router(), texts(8)];
  const [first, call, result, answer] = [text(700), text(40), text(900), text(120)];
  await router.run([...first, ...call, ...result], answer);
  const respaced = call.flatMap((token, i) => (i % 4 === 3 ? [50_000, token] : [token]));
  const found = await router.run([...first, ...respaced, ...result, ...answer, ...text(60)], text(10));
  assert.deepEqual([found?.[0], (found?.[1] ?? 0) >= 700 + 900 + 120], [703, true]);
  assert((found?.[1] ?? 0) <= 700 + 40 + 900 + 120, 'no more than there was');
});

test('an earlier message that is edited, with the turns after it kept', async () => {
  const [router, text] = [new Router(), texts(9)];
  const [first, message, later, answer] = [text(400), text(100), text(2_000), text(90)];
  await router.run([...first, ...message, ...later], answer);
  const found = await router.run([...first, ...text(130), ...later, ...answer, ...text(40)], text(10));
  assert.deepEqual(found, [400, 400 + 2_000 + 90]);
  // With the turns dropped it is another chat.
  assert.equal(await router.run([...first, ...text(90)], text(50)), undefined);
});

test('a turn that is sent again under another line, or next to another one, is known by the answers before it', async () => {
  const [router, text] = [new Router(), texts(15)];
  let rest = text(1_000);
  for (let turn = 0; turn < 4; turn++) {
    const prompts = [1, 2, 3].map(() => [...text(9), ...rest]) as [number[], number[], number[]];
    const answers = [text(80), text(80), text(80)] as const;
    for (const [i, prompt] of prompts.entries()) {
      const found = await router.run(prompt, answers[i]!);
      // Before the first answer nothing tells it from another chat under the same system prompt.
      const numShared = i === 0 ? rest.length - 40 : rest.length;
      assert.deepEqual(found, turn === 0 ? undefined : [0, numShared], `turn ${turn}, ${i}`);
    }
    rest = [...rest, ...answers[2], ...text(40)];
  }
});

test('a hundred chats with one system prompt, interleaved: each is compared with itself', async () => {
  const [router, text] = [new Router(), texts(10)];
  const system = text(3_000);
  const chats = Array.from({ length: 100 }, () => ({ line: text(9), rest: [...system, ...text(150)] }));
  for (let turn = 0; turn < 3; turn++)
    for (const [i, chat] of chats.entries()) {
      // Every other chat has a line that changes.
      if (i % 2 === 1) chat.line = text(9);
      const prompt = [...chat.line, ...chat.rest];
      const answer = text(100);
      const found = await router.run(prompt, answer);
      if (turn > 0) assert.deepEqual(found, i % 2 === 1 ? [0, prompt.length - 9 - 50] : undefined, `chat ${i}`);
      chat.rest = [...chat.rest, ...answer, ...text(50)];
    }
  assert.equal(router.recent.size, 100);
});

test('a prompt is compared under its own salt only', async () => {
  const [router, text] = [new Router(), texts(11)];
  const [rest, answer] = [text(2_000), text(100)];
  const next = (): number[] => [...text(10), ...rest, ...answer, ...text(40)];
  await router.run([...text(10), ...rest], answer, otherRoot);
  assert.equal(await router.run(next(), text(60)), undefined);
  assert.deepEqual(await router.run(next(), text(60), otherRoot), [0, 2_100]);
});

test('sequences are bounded (P1): the oldest are dropped, and what is left is still found', async () => {
  const [router, text] = [new Router(10_000), texts(12)];
  const chats = Array.from({ length: 20 }, () => text(900));
  const answers = chats.map(() => text(100));
  for (const [i, chat] of chats.entries()) {
    await router.run([i, 1, 2, 3, ...chat], answers[i]!);
    assert(router.recent.numTokens <= 10_000, `${router.recent.numTokens}`);
  }
  const { size } = router.recent;
  assert.equal(size, 9);
  const next = (i: number): number[] => [7, 7, ...chats[i]!, ...answers[i]!, ...text(64)];
  assert.deepEqual(await router.run(next(19), text(9)), [0, 1_000]);
  assert.equal(await router.run(next(2), text(9)), undefined);
  const before = router.recent.numTokens;
  await router.run(text(10_001), []);
  assert.equal(router.recent.numTokens, before, 'one that is too long drops no other');
});

test('short prompts are not looked at', async () => {
  const [router, text] = [new Router(), texts(13)];
  await router.run(text(40), text(10));
  assert.equal(router.recent.size, 0);
});

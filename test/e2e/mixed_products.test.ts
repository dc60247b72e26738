/**
 * Instances of one cluster whose products differ (kernels/wasm/products.ts): one implementation computes prompts, another generates. Tokens and
 * blocks are those of either alone, blocks of each are cache hits for the other, and either continues an answer of the other. Needs native
 * kernels. Not covered: two machines. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import type { LoadedModel } from '../../shared/engine/load_model.ts';
import { harbour, mapConcurrently, type RequestView } from '../support/cluster.ts';
import { JoinedRoles } from '../support/joined_roles.ts';
import { sized } from '../support/long.ts';
import { setsHere, whyNone } from '../support/native_sets.ts';
import { generate, greedy, loadReference } from '../support/reference_loop.ts';
import { stoppedIn } from '../support/stopped_in.ts';
import { streamTokens } from '../support/token_stream.ts';
import { NEVER_SILENT, until } from '../support/until.ts';

type Mixed = 'native' | 'relaxed';

const hasNative = setsHere.length > 0;
if (!hasNative) console.log(`mixed products: left out, ${whyNone}`);

const NUM_PROMPTS = sized(100, 16);
const BLOCK = 32;
const random = new Random(54);
const token = (): number => 3 + random.below(1_500);

interface Case {
  readonly prompt: readonly number[];
  readonly maxTokens: number;
  readonly temperature: number;
  readonly seed: number;
}

const cases = Array.from({ length: NUM_PROMPTS }, (_, i): Case => ({
  prompt: Array.from({ length: i % 4 === 0 ? 40 + random.below(60) : 100 + random.below(500) }, token),
  maxTokens: 4 + random.below(16),
  temperature: i % 2 === 0 ? 0 : 0.9,
  seed: random.below(2 ** 31),
}));
const [first, second] = [cases.slice(0, NUM_PROMPTS / 2), cases.slice(NUM_PROMPTS / 2)];
/** A long answer, whose instance is killed in the middle of it. */
const long: Case = { prompt: Array.from({ length: 300 }, token), maxTokens: 1_200, temperature: 0.8, seed: 5 };

const alone = new Map<Mixed, LoadedModel>();
let roles: JoinedRoles;

/** Returns the tokens of a single-process loop with one implementation. */
async function tokensOf({ prompt, maxTokens, temperature, seed }: Case, products: Mixed): Promise<number[]> {
  const output = await generate(alone.get(products)!.executable, prompt, { ...greedy, temperature, seed }, maxTokens);
  return output.map((sampled) => sampled.token);
}

/** Returns the full blocks of a prompt, as the loop of {@link tokensOf} has left them in the first blocks of its device. */
async function blocksOf({ prompt }: Case, products: Mixed): Promise<Uint8Array[]> {
  const { executable } = alone.get(products)!;
  const ids = Array.from({ length: Math.floor(prompt.length / BLOCK) }, (_, i) => i);
  const blocks = ids.map(() => new Uint8Array(executable.blockBytes));
  await executable.exportBlocks(ids, blocks);
  return blocks;
}

/** Starts instances that compute prompts with one implementation and generate with the other. */
async function pair(prefill: Mixed, decode: Mixed): Promise<void> {
  // Steps of a prompt are short enough to be struck.
  const more = ['--chunk-tokens', '64', '--products'];
  await Promise.all([
    roles.addInstance('prefill', `prefill-${prefill}`, ...more, prefill),
    roles.addInstance('decode', `decode-${decode}`, ...more, decode),
  ]);
}

/** Asks for all, compares their tokens, and returns their views. */
async function ask(asked: readonly Case[], want: ReadonlyMap<Case, readonly number[]>): Promise<RequestView[]> {
  const { cluster } = roles;
  const actual = await mapConcurrently(asked, 4, async ({ prompt, maxTokens, temperature, seed }) => {
    const { choices } = await cluster.completion({ prompt, max_tokens: maxTokens, temperature, seed });
    return choices[0]?.token_ids;
  });
  for (const [i, one] of asked.entries()) assert.deepEqual(actual[i], want.get(one), `prompt ${i}`);
  return cluster.requests(asked.length);
}

/** Sum of tokens over requests. */
const sum = (views: readonly RequestView[], of: keyof RequestView['tokens']): number =>
  views.reduce((all, { tokens }) => all + tokens[of], 0);
const numBlocks = (of: readonly Case[]): number =>
  of.reduce((all, { prompt }) => all + Math.floor((prompt.length - 1) / BLOCK), 0);

function expectSplit(views: readonly RequestView[], prefill: Mixed, decode: Mixed): void {
  for (const { attempts } of views) {
    expect(attempts.map((attempt) => attempt.decode)).toEqual([`decode-${decode}`]);
    expect(attempts[0]?.prefills.map((one) => one.prefill)).toEqual([`prefill-${prefill}`]);
    expect(attempts[0]?.report?.fetched_tokens).toBeGreaterThan(0);
  }
}

async function divergentBlocks(): Promise<number> {
  const text = await (await fetch(`${roles.url}/metrics`)).text();
  const counts = [...text.matchAll(/^penstock_divergent_blocks_total\{.*\} (\d+)$/gm)].map(([, count]) =>
    Number(count),
  );
  assert(counts.length > 0, 'the metric is there');
  return counts.reduce((a, b) => a + b, 0);
}

describe.runIf(hasNative)('products that differ', () => {
  const want = new Map<Case, readonly number[]>();

  beforeAll(async () => {
    for (const products of ['native', 'relaxed'] as const)
      alone.set(products, await loadReference(harbour, 'f16', 2_048, { products }));
    roles = await JoinedRoles.start('--policy', 'longest_prefix', '--local-prefill-tokens', '8', ...NEVER_SILENT);
    await roles.addStore('store');
  });
  afterAll(async () => {
    await roles.cluster.close();
    for (const { executable } of alone.values()) await executable.close();
  });

  test(`${NUM_PROMPTS} prompts have the same tokens and blocks with either alone`, async () => {
    for (const one of cases) {
      const [tokens, blocks] = [await tokensOf(one, 'native'), await blocksOf(one, 'native')];
      assert.deepEqual(await tokensOf(one, 'relaxed'), tokens);
      const others = await blocksOf(one, 'relaxed');
      assert(blocks.length > 0 && blocks.every((block, i) => Buffer.compare(block, others[i]!) === 0));
      want.set(one, tokens);
    }
  });

  const stored = async (of: readonly Case[]): Promise<void> => {
    await until('its blocks are stored', async () => {
      const { tiers } = await roles.cluster.node('store');
      return (tiers['dram']?.blocks ?? 0) >= numBlocks(of);
    });
  };

  test('native computes prompts, relaxed generates', async () => {
    await pair('native', 'relaxed');
    const views = await ask(first, want);
    expectSplit(views, 'native', 'relaxed');
    expect(sum(views, 'cached')).toBe(0);
    await stored(first);
  });

  test('relaxed computes prompts, native generates, and both find the blocks of the other way', async () => {
    await roles.remove('prefill-native', 'decode-relaxed');
    await pair('relaxed', 'native');
    const hits = await ask(first, want);
    expect(sum(hits, 'computed')).toBeLessThanOrEqual(first.length * BLOCK);
    const views = await ask(second, want);
    expectSplit(views, 'relaxed', 'native');
    expect(sum(views, 'cached')).toBe(0);
    await stored(cases);
  });

  test('native and relaxed the first way round find the blocks of the second, and no block diverges', async () => {
    await roles.remove('prefill-relaxed', 'decode-native');
    await pair('native', 'relaxed');
    const hits = await ask(second, want);
    expect(sum(hits, 'computed')).toBeLessThanOrEqual(second.length * BLOCK);
    assert.equal(await divergentBlocks(), 0);
  });

  test('an answer whose instance is killed in the middle continues exactly with the other products, both ways', async () => {
    const { prompt, maxTokens, temperature, seed } = long;
    const body = { prompt, max_tokens: maxTokens, temperature, seed };
    const tokens = await tokensOf(long, 'native');
    for (const [victim, next] of [
      ['relaxed', 'native'],
      ['native', 'relaxed'],
    ] as const) {
      const stopped = await stoppedIn(roles.cluster, 'answer', () => streamTokens(roles.cluster, body));
      assert.equal(stopped.victim, `decode-${victim}`);
      await roles.addInstance('decode', `decode-${next}`, '--products', next);
      roles.kill(`decode-${victim}`, 'SIGKILL');
      const { tokens: streamed, error, isDone } = await stopped.answer;
      assert.equal(error, undefined);
      assert(isDone);
      assert.deepEqual(streamed, tokens);
      const view = (await roles.cluster.requests(8)).find(({ id }) => id === stopped.view.id);
      expect(view?.attempts.map((attempt) => attempt.decode)).toEqual([`decode-${victim}`, `decode-${next}`]);
    }
  });

  test('a prompt whose native instance is killed in the middle is continued by relaxed', async () => {
    const { answer, victim } = await stoppedIn(roles.cluster, 'prompt', async () => {
      const one: Case = { prompt: Array.from({ length: 1_900 }, token), maxTokens: 8, temperature: 0, seed: 0 };
      const { choices } = await roles.cluster.completion({ prompt: one.prompt, max_tokens: one.maxTokens });
      return { one, tokens: choices[0]?.token_ids };
    });
    assert.equal(victim, 'prefill-native');
    roles.kill(victim, 'SIGKILL');
    const { one, tokens } = await answer;
    assert.deepEqual(tokens, await tokensOf(one, 'native'));
    assert.equal(await divergentBlocks(), 0);
  });
});

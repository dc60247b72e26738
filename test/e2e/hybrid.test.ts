/**
 * Hybrids over processes: two prefill, two decode instances and two stores. Tokens are those of one process: cold, with hits of any length
 * from any instance and from a store, after kills in mid-answer and after a store's restart. Budget: 120 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, describe, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import type { LoadedModel } from '../../shared/engine/load_model.ts';
import { Cluster, heartbeats, mapConcurrently, type RequestView } from '../support/cluster.ts';
import { goldenFolder } from '../support/golden.ts';
import { halfOf, isLong } from '../support/long.ts';
import { stoppedIn } from '../support/stopped_in.ts';
import { generate, greedy, loadReference } from '../support/reference_loop.ts';
import { until } from '../support/until.ts';

const NUM_NEW = 40;
const numPrompts = isLong ? 200 : 24;

/** Tokens that were computed for a request, by its prefill instances too. */
function computedOf({ attempts }: RequestView): number {
  return attempts
    .flatMap(({ report, prefills }) => [report, ...prefills.map((one) => one.report)])
    .reduce((sum, report) => sum + (report?.computed_tokens ?? 0), 0);
}

describe.each(halfOf(['qwen3_5', 'qwen3_5-moe'] as const))('%s', (name) => {
  const path = goldenFolder(name);
  const random = new Random(19);
  let cluster: Cluster;
  let reference: LoadedModel;
  let vocabSize = 0;
  beforeAll(async () => {
    const numbers = ['--prefill', '2', '--decode', '2', '--store', '2', '--threads', '1', '--state-interval', '2'];
    // Prompts are computed elsewhere than answers, whatever that costs.
    const policy = ['--policy', 'longest_prefix', '--local-prefill-tokens', '0'];
    cluster = await Cluster.up('--model', path, ...policy, '--kv-dtype', 'f16', ...numbers);
    reference = await loadReference(path, 'f16', 1_024);
    vocabSize = reference.shape.vocabSize;
  });
  afterAll(async () => {
    await reference.executable.close();
    await cluster.close();
  });

  const promptOf = (length: number): number[] => Array.from({ length }, () => random.below(vocabSize));
  const expected = async (prompt: readonly number[], count = NUM_NEW): Promise<number[]> =>
    (await generate(reference.executable, prompt, greedy, count)).map(({ token }) => token);
  let ofReference = Promise.resolve<unknown>(undefined);

  async function check(prompt: readonly number[]): Promise<number[]> {
    const answer = cluster.completion({ prompt, max_tokens: NUM_NEW, temperature: 0, ignore_eos: true });
    // The reference runs one sequence at a time.
    const want = (ofReference = ofReference.then(() => expected(prompt))) as Promise<number[]>;
    const { choices } = await answer;
    assert.deepEqual(choices[0]?.token_ids, await want);
    return await want;
  }

  test('prompts that share prefixes of any length, cold and again: the tokens are those of one process, and prefixes are hit', async () => {
    const common = promptOf(600);
    const prompts = Array.from({ length: numPrompts }, (_, i) => [
      ...common.slice(0, (i * 37) % 600),
      ...promptOf(30 + ((i * 53) % 200)),
    ]);
    await mapConcurrently(prompts, 3, check);
    await mapConcurrently(prompts.slice(0, 8), 3, check);
    const views = await cluster.requests(8);
    for (const view of views) {
      const computed = computedOf(view);
      assert(computed <= 64, `${computed} of ${view.prompt_tokens} tokens were computed again`);
    }
    const engines = (await cluster.pool()).filter(({ role }) => role !== 'store');
    assert.equal(engines.length, 4);
    const attempts = (await cluster.requests(numPrompts + 8)).flatMap((view) => view.attempts);
    const workers = attempts.flatMap(({ decode, prefills }) => [decode, ...prefills.map(({ prefill }) => prefill)]);
    for (const { name: engine, state_slots: states } of engines) {
      assert(states, `${engine} does not say what slots for states it has`);
      const isValid = states.saved + states.used <= states.slots && (states.saved > 0 || !workers.includes(engine));
      assert(isValid, `${engine}: ${JSON.stringify(states)}`);
    }
    const hits = engines.reduce((sum, { state_slots: states }) => sum + (states?.hits ?? 0), 0);
    assert(hits >= 8, `${hits} sequences began with a saved state, and 8 prompts came twice`);
  });

  test('a turn of a chat takes the state after the answer before it along', async () => {
    let history = promptOf(150);
    for (let turn = 0; turn < 4; turn++) history = [...history, ...(await check(history)), ...promptOf(20)];
    for (const view of (await cluster.requests(4)).slice(0, 3)) {
      const computed = computedOf(view);
      assert(computed <= 20 + 40 + 2 * 32, `a turn computed ${computed} tokens`);
    }
  });

  test('a decode instance killed in mid-answer: the other one goes on, each token once and the same', async () => {
    const count = 500;
    let prompts: number[][] = [];
    const { answer, victim, view } = await stoppedIn(cluster, 'answer', () => {
      prompts = Array.from({ length: 4 }, () => promptOf(260));
      return Promise.all(
        prompts.map((prompt) => cluster.completion({ prompt, max_tokens: count, temperature: 0, ignore_eos: true })),
      );
    });
    cluster.kill(victim);
    for (const [i, { choices }] of (await answer).entries())
      assert.deepEqual(choices[0]?.token_ids, await expected(prompts[i]!, count));
    const done = (await cluster.requests(4)).find(({ id }) => id === view.id);
    assert((done?.attempts.length ?? 0) > 1, 'it went on elsewhere');
    await until(`${victim} is back`, async () =>
      (await cluster.pool()).some(({ name, state }) => name === victim && state === 'alive'),
    );
  });

  test('everything restarted but the disks of the stores: prefixes are hit from there', async () => {
    const prompt = promptOf(420);
    const numOnDisk = async (): Promise<number> =>
      (await cluster.pool()).reduce((sum, { tiers }) => sum + (tiers['disk']?.blocks ?? 0), 0);
    const first = await numOnDisk();
    await check(prompt);
    // The prompt's full blocks, and the state after them.
    const wanted = first + Math.floor(420 / 32) + 1;
    let before = -1;
    await until('the stores have written what they were offered', async () => {
      // States may come in an offer of their own.
      await heartbeats(cluster.url);
      const now = await numOnDisk();
      const isSame = now === before && now >= wanted;
      before = now;
      return isSame;
    });
    await cluster.killAndAwait(['store-1', 'store-2', 'decode-1', 'decode-2', 'prefill-1', 'prefill-2']);
    await until('the router knows what the stores have', async () => (await numOnDisk()) >= before);
    await check(prompt);
    const [view] = await cluster.requests(1);
    const computed = view ? computedOf(view) : Infinity;
    assert(computed <= 64, `${computed} of 420 tokens were computed again`);
  });
});

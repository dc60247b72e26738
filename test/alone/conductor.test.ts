/**
 * The default policy on real processes: system prompts that chats share, sent by the official client two at a time, are computed about
 * once, wherever they are placed, and answered as a single process answers. How soon they are answered is a figure of
 * `npm run bench -- cluster`. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import type { LoadedModel } from '../../shared/engine/load_model.ts';
import { Cluster, harbour, mapConcurrently } from '../support/cluster.ts';
import { generate, greedy, loadReference } from '../support/reference_loop.ts';
import { sharedChats, tokensToCompute } from '../support/shared_chats.ts';

const NUM_CHATS = 60;
const NUM_SYSTEMS = 4;
const SENTENCES = 24;
const MAX_TOKENS = 6;
const BLOCK_SIZE = 32;
/** Chats at a time: so many that they meet, and so few that a busy machine keeps up, which is not measured here. */
const CONCURRENCY = 2;

let cluster: Cluster;
let client: OpenAI;
let reference: LoadedModel;
beforeAll(async () => {
  reference = await loadReference(harbour, 'f16');
  cluster = await Cluster.up('--prefill', '2', '--decode', '2', '--store', '2');
  client = new OpenAI({ baseURL: `${cluster.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
afterAll(async () => {
  await cluster.close();
  await reference.executable.close();
});

interface Answered {
  readonly prompt: readonly number[];
  readonly output: readonly number[];
}

async function ask({ system, user }: { readonly system: string; readonly user: string }): Promise<Answered> {
  const wanted = { temperature: 0, max_tokens: MAX_TOKENS, ignore_eos: true, return_token_ids: true };
  const answer = (await client.chat.completions.create({
    model: 'harbour',
    messages: [
      { role: 'system', content: system },
      { role: 'user', content: user },
    ],
    ...wanted,
  })) as unknown as { prompt_token_ids: number[]; choices: { token_ids: number[] }[] };
  return { prompt: answer.prompt_token_ids, output: answer.choices[0]?.token_ids ?? [] };
}

test('chats that share system prompts compute little more than with an endless shared cache, with the same tokens', async () => {
  const chats = sharedChats(NUM_CHATS, NUM_SYSTEMS, SENTENCES, new Random(7));
  const answers = await mapConcurrently(chats, CONCURRENCY, ask);
  const requests = await cluster.requests(NUM_CHATS);
  expect(requests.length).toBe(NUM_CHATS);
  const numComputed = requests.reduce((sum, { tokens }) => sum + tokens.computed, 0);
  const least = tokensToCompute(
    answers.map(({ prompt }) => prompt),
    BLOCK_SIZE,
  );
  const all = answers.reduce((sum, { prompt }) => sum + prompt.length, 0);
  console.log(`conductor: ${numComputed} of ${all} prompt tokens computed, ${least} with an endless shared cache`);
  assert(least < all / 2, 'the prompts share most of their tokens');
  expect(numComputed).toBeGreaterThanOrEqual(least);
  // A tenth more on an idle machine. On a busy one a short prefix is cheaper to compute than to wait for, so it is computed again.
  expect(numComputed).toBeLessThanOrEqual(1.5 * least);
  for (const { prompt, output } of answers) {
    const want = await generate(reference.executable, [...prompt], greedy, MAX_TOKENS, [], undefined);
    assert.deepEqual(
      output,
      want.map(({ token }) => token),
    );
  }
}, 180_000);

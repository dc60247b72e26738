/** Golden vectors through the whole path: router, prefill, store and decode, f32 weights and KV. Budget: 60 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Cluster } from '../support/cluster.ts';
import { sampleOf } from '../support/long.ts';
import { comparableSteps, goldenCases, goldenFolder, logitsAt, maxAbs } from '../support/golden.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';

const BOUND = 2e-3;

/** All of them run on one engine in test/engine; over the wire goes what their blocks differ in: heads, layers, windows, caps, a mixture. */
const models = [
  'llama-tied',
  'llama-head-dim',
  'llama-odd',
  'qwen2-tied-window',
  'gemma2',
  'mistral',
  'qwen3-moe',
] as const;

test.each(sampleOf(models, 3))('%s: golden ids and log-probabilities over the wire', async (name) => {
  const folder = goldenFolder(name);
  const { vocabSize } = readModelFolder(folder).config;
  const cluster = await Cluster.inProcess(
    ...['--model', folder, '--kv-dtype', 'f32', '--weights', 'f32', '--local-prefill-tokens', '0'],
    // Prompts are computed elsewhere than answers, whatever that costs.
    ...['--prefill', '1', '--decode', '1', '--policy', 'longest_prefix'],
  );
  try {
    for (const golden of goldenCases(name)) {
      const want = logitsAt(name, golden, golden.prompt.length - 1, vocabSize);
      const highest = maxAbs(want);
      const { choices } = await cluster.completion({
        prompt: golden.prompt,
        max_tokens: golden.greedy.length,
        logprobs: 5,
      });
      const [choice] = choices;
      assert(choice?.logprobs);
      assert.equal(choice.text, '', 'there is no tokenizer, so there is no text');
      assert.deepEqual(choice.prompt_token_ids, golden.prompt);
      const numSteps = comparableSteps(golden, BOUND * highest);
      assert.deepEqual(choice.token_ids.slice(0, numSteps), golden.greedy.slice(0, numSteps));

      const logSumExp = Math.log(want.reduce((sum, logit) => sum + Math.exp(logit), 0));
      const { token_logprobs: logprobs, top_logprobs: top } = choice.logprobs;
      const first = (want[choice.token_ids[0] ?? 0] ?? NaN) - logSumExp;
      assert(Math.abs((logprobs[0] ?? NaN) - first) <= BOUND * highest, `${logprobs[0]} is not ${first}`);
      const entries = Object.entries(top[0] ?? {});
      assert.equal(entries.length, 5);
      for (const [token, logprob] of entries) {
        const expected = (want[Number(token.replace('token_id:', ''))] ?? NaN) - logSumExp;
        assert(Math.abs(logprob - expected) <= BOUND * highest, `${token}: ${logprob} is not ${expected}`);
      }
    }
    const isLong = (numTokens: number): boolean => numTokens > 32;
    const elsewhere = (await cluster.requests()).filter(({ attempts }) => attempts[0]?.prefills.length);
    assert.deepEqual(
      elsewhere
        .map(({ prompt_tokens: n }) => n)
        .filter(isLong)
        .sort(),
      goldenCases(name)
        .map(({ prompt }) => prompt.length)
        .filter(isLong)
        .sort(),
      'every prompt longer than a block was prefilled elsewhere',
    );
  } finally {
    await cluster.close();
  }
});

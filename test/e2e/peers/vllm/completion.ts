/** vLLM's checks of `/v1/completions` (`completion/…`). */
import assert from 'node:assert/strict';
import { assertUsageChunks, COMPLETIONS, textsOf, type Api, type Body, type CompletionLogprobs } from '../api.ts';
import { model, openPrompt } from '../samples.ts';
import type { Check, PeerSuite } from '../suite.ts';

const greedy = { model, temperature: 0, max_tokens: 5 };
const text = { ...greedy, prompt: openPrompt };
const ids = { ...greedy, prompt: [5, 5, 5, 5, 5] };

/** Defines the checks of vLLM's completion tests. */
export function completionChecks(suite: PeerSuite, api: Api): void {
  suite.group('completion/test_completion', (check) => {
    single(check, api);
    logprobs(check, api);
    streams(check, api);
    samples(check, api);
    echo(check, api);
    invalidStructure(check, api);
  });
  suite.group('completion/test_prompt_validation', (check) => {
    check('empty_prompt refused', async () => {
      const { error } = await api.refused(COMPLETIONS, { model, prompt: null, prompt_embeds: [] });
      assert.match(error.param ?? '', /^prompt/);
    });
    check('out_of_vocab refused, message', async () => {
      const { error } = await api.refused(COMPLETIONS, { model, prompt: [999_999] });
      assert.match(error.message, /999999.*vocabulary/);
    });
  });
  suite.group('completion/test_empty_prompt_list', (check) => {
    for (const [name, prompt] of [
      ['prompt []', []],
      ['prompt [[]]', [[]]],
    ] as const) {
      check(name, async () => {
        const { error } = await api.refused(COMPLETIONS, { model, prompt });
        assert.match(error.message, /^prompt: .*none/);
      });
    }
    // A text without tokens begins with the model's start token, as with any tokenizer that adds one.
    for (const [name, prompt] of [
      ["prompt ['']", ['']],
      ["prompt ''", ''],
    ] as const) {
      check(name, async () => {
        const { choices, usage } = await api.complete({ ...greedy, prompt });
        assert.deepEqual([choices.length, usage.prompt_tokens], [1, 1]);
      });
    }
  });
  suite.group('completion/test_completion_text_offset', (check) => {
    offsets(check, api);
  });
}

function single(check: Check, api: Api): void {
  check('single_completion', async () => {
    const { id, choices, usage } = await api.complete(text);
    assert(id !== '');
    assert.equal(choices.length, 1);
    assert.equal(choices[0]?.finish_reason, 'length');
    assert(choices[0].text.length >= 5);
    const numPrompt = (await api.tokens(openPrompt)).length;
    assert.deepEqual([usage.prompt_tokens, usage.completion_tokens, usage.total_tokens], [numPrompt, 5, numPrompt + 5]);
    assert.equal(usage.prompt_tokens_details?.cached_tokens, 0);
    assert((await api.complete(ids)).choices[0]!.text.length >= 1);
  });
  check('choices[].prompt_logprobs attribute', async () => {
    const [choice] = (await api.complete(ids)).choices;
    assert(choice && Object.hasOwn(choice, 'prompt_logprobs'));
    assert.equal(choice.prompt_logprobs, null);
  });
  check('truncate_prompt_tokens left/right', async () => {
    const prompt = [10, 11, 12, 13, 14, 15, 16, 17];
    for (const [side, kept] of [
      ['right', prompt.slice(0, 4)],
      ['left', prompt.slice(-4)],
    ] as const) {
      const { choices, usage } = await api.complete({
        ...greedy,
        prompt,
        max_tokens: 1,
        return_token_ids: true,
        truncate_prompt_tokens: 4,
        truncation_side: side,
      });
      assert.deepEqual(choices[0]?.prompt_token_ids, kept);
      assert.equal(usage.prompt_tokens, 4);
    }
  });
}

function logprobs(check: Check, api: Api): void {
  check('no_logprobs', async () => {
    assert.equal((await api.complete({ ...ids, logprobs: null })).choices[0]?.logprobs, null);
  });
  for (const [name, numTop] of [
    ['zero_logprobs', 0],
    ['some_logprobs', 5],
  ] as const) {
    check(name, async () => {
      const { logprobs: lists } = (await api.complete({ ...ids, ignore_eos: true, logprobs: numTop })).choices[0]!;
      assert(lists);
      assert.equal(lists.token_logprobs.length, 5);
      for (const [i, top] of lists.top_logprobs.entries()) {
        const values = Object.values(top ?? {});
        assert(values.length >= Math.max(1, numTop) && values.length <= numTop + 1, `${values.length}`);
        assert.equal(Math.max(...values), lists.token_logprobs[i], 'greedy takes the best');
      }
    });
  }
  check('too_many_logprobs', async () => {
    for (const more of [{ logprobs: 21 }, { logprobs: 30, stream: true }]) {
      const { error } = await api.refused(COMPLETIONS, { ...ids, ...more });
      assert.equal(error.param, 'logprobs');
    }
    assert.notEqual((await api.complete(ids)).choices[0]?.text, '');
  });
  const prompts = ['The Heron keeps a ship in another harbour', 'My name is'];
  for (const numTop of [0, 1]) {
    check(`prompt_logprobs ${numTop}`, async () => {
      const { choices } = await api.complete({ ...greedy, prompt: prompts, prompt_logprobs: numTop });
      assert.equal(choices.length, 2);
      for (const [i, { prompt_logprobs: list }] of choices.entries()) {
        assert.equal(list?.length, (await api.tokens(prompts[i]!)).length);
        for (const one of list.slice(1)) assert(one && Object.values(one).every(({ logprob }) => logprob <= 0));
      }
    });
  }
  check('prompt_logprobs -1 refused', async () => {
    const { error } = await api.refused(COMPLETIONS, { ...greedy, prompt: prompts, prompt_logprobs: -1 });
    assert.equal(error.param, 'prompt_logprobs');
  });
}

function streams(check: Check, api: Api): void {
  check('streaming', async () => {
    const whole = (await api.complete(text)).choices[0]!;
    const chunks = await api.completionStream(text);
    for (const { choices } of chunks) assert.deepEqual([choices.length, typeof choices[0]?.text], [1, 'string']);
    const finishes = chunks.map(({ choices }) => choices[0]!.finish_reason);
    assert.deepEqual(finishes, [...finishes.slice(0, -1).fill(null), 'length']);
    assert.notEqual(chunks.at(-1)!.choices[0]!.text, '', 'the last text comes with the finish reason');
    assert.deepEqual(textsOf(chunks), [whole.text]);
  });
  const streamed = async (options: object, where: 'none' | 'last' | 'all'): Promise<void> => {
    const chunks = await api.completionStream({ ...text, stream_options: options });
    assertUsageChunks(chunks, where);
    if (where !== 'all') return;
    chunks.slice(0, -1).forEach(({ usage }, i) => {
      assert.equal(usage?.completion_tokens, i + 1);
    });
  };
  check('stream_options include_usage False', async () => {
    await streamed({ include_usage: false, continuous_usage_stats: false }, 'none');
    await streamed({ include_usage: false, continuous_usage_stats: true }, 'none');
  });
  check('stream_options usage True, continuous False', async () => {
    await streamed({ include_usage: true, continuous_usage_stats: false }, 'last');
  });
  check('stream_options usage True alone', async () => {
    await streamed({ include_usage: true }, 'last');
  });
  for (const [name, value] of [
    ['None', null],
    ['True', true],
  ] as const) {
    check(`stream False + stream_options refused (${name})`, async () => {
      for (const key of ['include_usage', 'continuous_usage_stats']) {
        const { error } = await api.refused(COMPLETIONS, { ...text, stream: false, stream_options: { [key]: value } });
        assert.equal(error.param, 'stream_options');
      }
    });
  }
  check('continuous_usage_stats True', async () => {
    await streamed({ include_usage: true, continuous_usage_stats: true }, 'all');
  });
  check('stream_options {}', async () => {
    await streamed({}, 'none');
  });
}

function samples(check: Check, api: Api): void {
  const wish = { model, prompt: openPrompt, max_tokens: 50, n: 3, temperature: 2, seed: 42 };
  check('parallel n=3', async () => {
    const { choices } = await api.complete({ ...wish, logprobs: 0 });
    assert.deepEqual(
      choices.map(({ index }) => index),
      [0, 1, 2],
    );
    for (const { finish_reason: finish } of choices) assert.match(finish ?? '', /^(stop|length)$/);
    assert.equal(new Set(choices.map(({ text: one }) => one)).size, 3);
    assert(new Set(choices.map(({ logprobs: lists }) => lists?.tokens.length)).size > 1, 'one stops early');
  });
  check('parallel n=3 stream', async () => {
    const chunks = await api.completionStream(wish);
    const whole = await api.complete(wish);
    assert.deepEqual(
      textsOf(chunks, 3),
      whole.choices.map(({ text: one }) => one),
    );
    const counts = [0, 1, 2].map((i) => chunks.filter(({ choices }) => choices[0]?.index === i).length);
    assert(counts.every((count) => count > 0 && count <= 50) && new Set(counts).size > 1, counts.join());
    const finishes = chunks.flatMap(({ choices }) => choices).filter(({ finish_reason: finish }) => finish !== null);
    assert.deepEqual(finishes.map(({ index }) => index).sort(), [0, 1, 2]);
  });
  for (const [name, prompt] of [
    ['batch str', openPrompt],
    ['batch list', ids.prompt],
  ] as const) {
    check(name, async () => {
      const batch = { ...greedy, prompt: [prompt, prompt] };
      const { choices } = await api.complete(batch);
      assert.equal(choices.length, 2);
      assert.equal(choices[0]?.text, choices[1]?.text);
      const chunks = await api.completionStream(batch);
      for (const one of chunks) assert.equal(one.choices.length, 1);
      assert.deepEqual(
        textsOf(chunks, 2),
        choices.map(({ text: one }) => one),
      );
    });
  }
  check('batch beam search n=2', async () => {
    const prompt = [openPrompt, openPrompt];
    const { choices } = await api.complete({ ...greedy, prompt, n: 2, use_beam_search: true });
    assert.equal(choices.length, 4);
    const [first, second, third, fourth] = choices.map(({ text: one }) => one);
    assert.notEqual(first, second);
    assert.deepEqual([first, second], [third, fourth]);
  });
}

function echo(check: Check, api: Api): void {
  for (const numTop of [1, 0]) {
    check(`echo_logprob ${numTop}`, async () => {
      for (const [prompt, shown] of [
        [openPrompt, openPrompt],
        [ids.prompt, await api.text(ids.prompt)],
      ] as const) {
        const { choices } = await api.complete({ ...greedy, prompt, echo: true, logprobs: numTop });
        const { text: echoed, logprobs: lists } = choices[0]!;
        assert(echoed.startsWith(shown) && lists);
        for (const list of Object.values(lists) as unknown[][]) assert(list.length > 5);
        const { token_logprobs: own, top_logprobs: top } = lists;
        assert.deepEqual([own[0], top[0]], [null, null]);
        for (const one of top.slice(1)) {
          const { length } = Object.keys(one ?? {});
          assert(length >= Math.max(1, numTop) && length <= numTop + 1, `${length}`);
        }
      }
    });
  }
}

function invalidStructure(check: Check, api: Api): void {
  const wrong: Record<string, Body> = {
    json: { structured_outputs: { json: { type: 'object', properties: { foo: 'bar' } } } },
    regex: { structured_outputs: { regex: '[.*' }, stop: ['\n'] },
    grammar: { structured_outputs: { grammar: 'root ::= missing_rule' } },
  };
  for (const [name, body] of Object.entries(wrong)) {
    check(`invalid structured ${name} refused`, async () => {
      const { error } = await api.refused(COMPLETIONS, { ...text, ...body });
      assert.match(error.param ?? '', /^structured_outputs/);
    });
  }
}

function offsets(check: Check, api: Api): void {
  const running = ({ tokens }: CompletionLogprobs): number[] =>
    tokens.map((_, i) => tokens.slice(0, i).reduce((sum, { length }) => sum + length, 0));
  check('text_offset starts 0, monotone', async () => {
    const { text: whole, logprobs: lists } = (await api.complete({ ...text, max_tokens: 12, logprobs: 0 })).choices[0]!;
    assert(lists);
    assert.equal(lists.tokens.join(''), whole);
    assert.deepEqual(lists.text_offset, running(lists));
  });
  check('stream text_offset continues', async () => {
    // The text lags behind its tokens: the colons that the model writes could become the stop string.
    const wish = { ...text, max_tokens: 12, logprobs: 0, stop: ['::::::'] };
    const whole = (await api.complete(wish)).choices[0]?.logprobs;
    const chunks = await api.completionStream(wish);
    assert(whole);
    assert.deepEqual(whole.text_offset, running(whole));
    assert.deepEqual(
      chunks.flatMap(({ choices }) => choices[0]?.logprobs?.text_offset ?? []),
      whole.text_offset,
    );
  });
}

/** SGLang's other checks: structure, models, Responses, stops, lengths, the cache, and bodies. */
import assert from 'node:assert/strict';
import { CHAT, COMPLETIONS, type Api, type Body, type ChatView, type CompletionView, type UsageView } from '../api.ts';
import { answer, CONTEXT, END, messages, model, openPrompt } from '../samples.ts';
import type { Check, PeerSuite } from '../suite.ts';

const greedy = { model, messages, temperature: 0 };

/** Defines the rest of `test_openai_server`: single parameters, models, and rerank. */
export function parameters(check: Check, api: Api): void {
  check('regex', async () => {
    const regex = String.raw`\{
   "name": "[\w]{1,12}",
   "population": [\d]{1,8}
\}`;
    const { choices } = await api.chat({ ...greedy, max_tokens: 128, regex });
    const value = JSON.parse(choices[0]?.message.content ?? '') as { name: unknown; population: unknown };
    assert.deepEqual([typeof value.name, typeof value.population], ['string', 'number']);
    assert.match(choices[0]?.message.content ?? '', new RegExp(`^${regex}$`));
  });
  check('penalty', async () => {
    const wish = { model, temperature: 0, max_tokens: 32, ignore_eos: true, prompt: openPrompt };
    const plain = (await api.complete(wish)).choices[0]!.text;
    const penalised = (await api.complete({ ...wish, frequency_penalty: 1 })).choices[0]!.text;
    assert.notEqual(penalised, plain);
    const { choices } = await api.chat({ ...greedy, max_tokens: 32, frequency_penalty: 1 });
    assert.equal(typeof choices[0]?.message.content, 'string');
  });
  check('response_prefill continue_final_message', async () => {
    const begun = answer.split(' ').slice(0, 3).join(' ');
    const { choices } = await api.chat({
      ...greedy,
      messages: [...messages, { role: 'assistant', content: begun }],
      continue_final_message: true,
    });
    assert.equal(`${begun}${choices[0]?.message.content}`, answer);
  });
}

/** Defines the checks of `/v1/models`. */
export function models(check: Check, api: Api): void {
  interface ModelView {
    readonly id: string;
    readonly root?: string;
    readonly max_model_len: number;
  }
  check('model_list', async () => {
    const { data } = await api.get<{ data: ModelView[] }>('/v1/models');
    assert.deepEqual(
      data.map(({ id, max_model_len: length }) => [id, length]),
      [[model, CONTEXT]],
    );
  });
  check('retrieve_model (.root)', async () => {
    assert.equal((await api.fetch('/v1/models/non-existent-model')).status, 404);
    const { id, root } = await api.get<ModelView>(`/v1/models/${model}`);
    assert.deepEqual([id, root], [model, model]);
  });
}

/** Defines the check of `/v1/rerank`. */
export function rerank(check: Check, api: Api): void {
  check('rerank', async () => {
    const list = await api.answer<{ score: number; document: string; index: number }[]>('/v1/rerank', {
      query: 'How many people live in Berlin?',
      documents: ['Berlin has 3.5 million inhabitants.', 'Nadia likes figs.'],
    });
    assert.deepEqual(list.map(({ index }) => index).sort(), [0, 1]);
    for (const { score, document } of list) assert.deepEqual([typeof score, typeof document], ['number', 'string']);
  });
}

interface ResponseView {
  readonly id: string;
  readonly object: string;
  readonly created_at: number;
  readonly model: string;
  readonly status: string;
  readonly error: unknown;
  readonly incomplete_details: unknown;
  readonly output: { readonly type: string; readonly content?: { readonly type: string; readonly text?: string }[] }[];
  readonly usage: { readonly input_tokens: number; readonly output_tokens: number; readonly total_tokens: number };
  readonly text?: { readonly format?: { readonly type: string } };
}

const RESPONSES = '/v1/responses';

/** Defines the checks of `/v1/responses`. */
export function responses(check: Check, api: Api): void {
  const wish = {
    model,
    input: messages,
    temperature: 0,
    top_p: 1,
    max_output_tokens: 32,
    store: true,
    parallel_tool_calls: true,
    tool_choice: 'auto',
    truncation: 'disabled',
  };
  const textOf = ({ output }: ResponseView): string =>
    output.flatMap(({ content = [] }) => content.map(({ text = '' }) => text)).join('');
  const assertCompleted = (response: ResponseView): void => {
    const { id, object, created_at: created, status, error, incomplete_details: incomplete, usage } = response;
    assert(id !== '' && created > 0);
    assert.deepEqual([object, status, error, incomplete], ['response', 'completed', null, null]);
    assert.equal(usage.total_tokens, usage.input_tokens + usage.output_tokens);
    assert(usage.output_tokens > 0);
    assert.equal(textOf(response), answer);
  };
  check('responses response', async () => {
    const response = await api.answer<ResponseView>(RESPONSES, wish);
    assertCompleted(response);
    assert.equal(response.model, model);
    assert.equal(response.text?.format?.type ?? 'text', 'text');
  });
  check('responses response_stream', async () => {
    const response = await api.post(RESPONSES, { ...wish, stream: true });
    assert.equal(response.status, 200, await response.clone().text());
    const events = (await response.text())
      .split('\n')
      .filter((line) => line.startsWith('data: {'))
      .map((line) => JSON.parse(line.slice(6)) as { type: string; delta?: string; response?: ResponseView });
    const types = events.map(({ type }) => type);
    assert.deepEqual(types.slice(0, 2), ['response.created', 'response.in_progress']);
    assert.equal(types.at(-1), 'response.completed');
    assert(types.indexOf('response.content_part.added') < types.indexOf('response.output_text.delta'));
    const deltas = events.filter(({ type }) => type === 'response.output_text.delta');
    assert.equal(deltas.map(({ delta }) => delta).join(''), answer);
    assertCompleted(events.at(-1)!.response!);
  });
  check('responses response_completion', async () => {
    assertCompleted(await api.answer<ResponseView>(RESPONSES, { ...wish, max_output_tokens: 16 }));
  });
  check('responses error', async () => {
    const response = await api.post(RESPONSES, { model, input: 'Hi', previous_response_id: 'bad' });
    const { error } = (await response.json()) as { error: { message: string; type: string; code: string } };
    assert.match(String(response.status), /^40[04]$/);
    assert.match(error.message, /previous_response_id|bad/);
    assert.deepEqual([typeof error.type, typeof error.code], ['string', 'string']);
  });
  check('responses penalty', async () => {
    const response = await api.answer<ResponseView>(RESPONSES, { ...wish, input: openPrompt, frequency_penalty: 1 });
    assert.equal(response.object, 'response');
    assert.match(response.status, /^(completed|incomplete)$/);
    assert(Array.isArray(response.output) && response.usage.output_tokens > 0);
  });
}

type Ended = Pick<ChatView['choices'][number], 'finish_reason' | 'matched_stop' | 'stop_reason'>;

/** Defines the checks of how an answer ends (`test_matched_stop`). */
export function stops(suite: PeerSuite, api: Api): void {
  suite.group('sglang/test_matched_stop', (check) => {
    /** Asks both endpoints. */
    const ends = async (more: Body): Promise<Ended[]> => {
      const completion: CompletionView = await api.complete({ model, prompt: openPrompt, temperature: 0, ...more });
      const chat = await api.chat({ ...greedy, ...more });
      return [...completion.choices, ...chat.choices] as Ended[];
    };
    // Both texts have a space.
    const atSpace = { max_tokens: 100, stop: ' ' };
    check('stop str finish_reason', async () => {
      for (const { finish_reason: finish } of await ends(atSpace)) assert.equal(finish, 'stop');
    });
    check('stop str matched_stop', async () => {
      for (const { matched_stop: matched, stop_reason: reason } of await ends(atSpace))
        assert.deepEqual([matched, reason], [' ', ' ']);
    });
    check('stop eos matched_stop (vLLM: stop_reason)', async () => {
      const { choices } = await api.chat(greedy);
      const { finish_reason: finish, stop_reason: reason } = choices[0]!;
      assert.deepEqual([finish, reason], ['stop', null]);
      const { choices: completed } = await api.complete({ model, prompt: 'What is an LLM?', temperature: 0 });
      assert.deepEqual([completed[0]?.finish_reason, completed[0]?.stop_reason], ['stop', null]);
      for (const { matched_stop: matched } of [choices[0]!, completed[0]!]) assert.equal(matched, END.id);
    });
    check('stop_regex', async () => {
      const stopRegex = 'and|or|e';
      for (const { finish_reason: finish, matched_stop: matched } of await ends({ stop_regex: stopRegex }))
        assert.deepEqual([finish, matched], ['stop', stopRegex]);
    });
    check('length', async () => {
      for (const end of await ends({ max_tokens: 5 })) {
        assert.equal(end.finish_reason, 'length');
        assert(Object.hasOwn(end, 'matched_stop'));
        assert.equal(end.matched_stop, null);
      }
    });
  });
}

/** Defines the checks of requests that do not fit the context (`test_request_length`). */
export function lengths(suite: PeerSuite, api: Api): void {
  suite.group('sglang/test_request_length', (check) => {
    const said = /maximum context length is 2048 tokens\. However, you requested \d+ tokens/;
    const water = (count: number): Body => ({
      ...greedy,
      messages: [{ role: 'user', content: 'water '.repeat(count) }],
    });
    check('longer', async () => {
      for (const more of [{}, { stream: true }]) {
        const { error } = await api.refused(CHAT, { ...water(2_400), ...more });
        assert.match(error.message, said);
        assert.deepEqual([error.param, error.code], ['messages', 'context_length_exceeded']);
      }
    });
    check('at_limit', async () => {
      // The template's own tokens take it over the limit.
      const count = async (words: number): Promise<number> => (await api.tokens('water '.repeat(words))).length;
      // A word is a token, besides a few of the first one.
      const words = CONTEXT - 1 - ((await count(10)) - 10);
      assert.equal(await count(words), CONTEXT - 1);
      const { error } = await api.refused(CHAT, water(words));
      assert.match(error.message, said);
    });
    check('max_tokens', async () => {
      const { error } = await api.refused(CHAT, { ...water(1), max_tokens: CONTEXT + 200 });
      assert.match(error.message, said);
      assert.match(error.message, /2248 in the completion/);
    });
  });
}

/** Defines the checks of cached tokens in usage (`test_cache_report`). */
export function cacheReports(suite: PeerSuite, api: Api): void {
  suite.group('sglang/test_cache_report', (check) => {
    const facts = Array.from({ length: 12 }, (_, i) => `Locker ${31 + i} opens with code ${4_100 + 37 * i}.`).join(
      '\n',
    );
    const usageOf = async (head: string, more: Body = {}): Promise<UsageView> => {
      const log = [{ role: 'system', content: `${head}\n${facts}` }, messages[1]];
      return (await api.chat({ ...greedy, messages: log, max_tokens: 10, ...more })).usage;
    };
    const cached = ({ prompt_tokens_details: details }: UsageView): number => {
      assert(details, 'usage says what was cached, at the first request too');
      return details.cached_tokens;
    };
    check('second request cached', async () => {
      const first = await usageOf('One log.');
      const second = await usageOf('One log.');
      assert.equal(cached(first), 0);
      assert(cached(second) > 0 && cached(second) < second.prompt_tokens);
    });
    check('cached == prompt-1', async () => {
      await usageOf('Another log.');
      const second = await usageOf('Another log.');
      assert.equal(cached(second), second.prompt_tokens - 1);
    });
    check('cache_salt', async () => {
      const counts: number[] = [];
      for (const salt of ['salt1', 'salt1', 'salt2', 'salt2'])
        counts.push(cached(await usageOf('A third log.', { cache_salt: salt })));
      const [first, second, third, fourth] = counts as [number, number, number, number];
      assert.deepEqual([first, third], [0, 0]);
      assert(second > 0 && fourth === second, counts.join());
    });
  });
}

/** Defines the checks of bodies (`test_request_body_validation`) and of `ignore_eos`. */
export function bodies(suite: PeerSuite, api: Api): void {
  suite.group('sglang/test_request_body_validation', (check) => {
    const good = JSON.stringify({ ...greedy, max_tokens: 5 });
    check('array', async () => {
      const { error } = await api.refused(CHAT, '[]');
      assert.match(error.message, /not a JSON object/);
    });
    check('bad json', async () => {
      const { error } = await api.refused(CHAT, '{"model": "harbour", "messages": [');
      assert.match(error.message, /not JSON/);
    });
    for (const [name, headers] of [
      ['no content-type', {}],
      ['text/plain', { 'content-type': 'text/plain' }],
    ] as const) {
      check(name, async () => {
        // Bytes have no type of their own, which a text has.
        const response = await api.post(CHAT, good, { headers, body: Buffer.from(good) });
        assert.equal(response.status, 415);
        assert.match(await response.text(), /application\/json/);
      });
    }
    check('charset', async () => {
      for (const type of ['application/json; charset=utf-8', 'Application/JSON; Charset=UTF-8']) {
        const response = await api.post(COMPLETIONS, JSON.stringify({ model, prompt: 'Nadia likes', max_tokens: 3 }), {
          headers: { 'content-type': type },
        });
        assert.equal(response.status, 200, type);
        assert.equal(((await response.json()) as CompletionView).choices.length, 1);
      }
    });
  });
  suite.group('sglang/ignore_eos', (check) => {
    check('ignore_eos', async () => {
      const wish = { ...greedy, max_tokens: 100 };
      const [stopped, longer] = [
        await api.chat({ ...wish, ignore_eos: false }),
        await api.chat({ ...wish, ignore_eos: true }),
      ];
      assert.deepEqual([stopped.choices[0]?.finish_reason, longer.choices[0]?.finish_reason], ['stop', 'length']);
      assert.equal(longer.usage.completion_tokens, 100);
      assert(stopped.usage.completion_tokens < 100);
    });
  });
}

/** vLLM's checks of `/tokenize`, `/detokenize` and `/tokenizer_info`, against the tokenizer library itself (`test_tokenization`). */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { Tokenizer } from '@huggingface/tokenizers';
import { harbour } from '../../../support/cluster.ts';
import type { Api, Body } from '../api.ts';
import { CONTEXT, model } from '../samples.ts';
import type { Check, PeerSuite } from '../suite.ts';

interface Tokenized {
  readonly count: number;
  readonly max_model_len: number;
  readonly tokens: number[];
  readonly token_strs: string[] | null;
}

const read = (name: string): object => JSON.parse(readFileSync(`${harbour}/${name}`, 'utf8')) as object;
/** The library's own declarations do not resolve under NodeNext. */
const library = new (
  Tokenizer as unknown as new (
    tokenizer: object,
    config: object,
  ) => { encode: (text: string, options: object) => { ids: number[]; tokens: string[] } }
)(read('tokenizer.json'), read('tokenizer_config.json'));
const encode = (text: string, special: boolean): { ids: number[]; tokens: string[] } =>
  library.encode(text, { add_special_tokens: special });
const encoded = (text: string, special: boolean): number[] => encode(text, special).ids;

/** Defines the checks of `test_tokenization`. */
export function tokenizationChecks(suite: PeerSuite, api: Api): void {
  suite.group('test_tokenization', (check) => {
    tokenize(check, api);
    tokenizeChat(check, api);
    tokenizerInfo(check, api);
  });
}

function assertTokens(tokenized: Tokenized, want: readonly number[]): void {
  assert.deepEqual(tokenized, { count: want.length, max_model_len: CONTEXT, tokens: want, token_strs: null });
}

function tokenize(check: Check, api: Api): void {
  const prompt = 'vllm1 This is a test prompt.';
  for (const [name, special] of [
    ['False', false],
    ['True', true],
  ] as const) {
    check(`completions special=${name}`, async () => {
      const wish = { model, prompt, add_special_tokens: special };
      assertTokens(await api.answer('/tokenize', wish), encoded(prompt, special));
    });
  }
  check('return_token_strs', async () => {
    const text = 'This is a token_strs test prompt! vllm1';
    const { tokens, token_strs: pieces } = await api.answer<Tokenized>('/tokenize', {
      model,
      prompt: text,
      return_token_strs: true,
    });
    assert.deepEqual(tokens, encoded(text, true));
    assert.deepEqual(pieces, encode(text, true).tokens);
    assert(pieces.includes('Ġis'), 'pieces are those of the vocabulary');
  });
  check('detokenize', async () => {
    const body = await api.answer('/detokenize', { model, tokens: encoded(prompt, false) });
    assert.deepEqual(body, { prompt });
  });
}

interface Message {
  readonly role: string;
  readonly content: string;
}
const talk: Message[] = [
  { role: 'user', content: 'Hi there!' },
  { role: 'assistant', content: 'Nice to meet you!' },
  { role: 'user', content: 'Can I ask a question? vllm1' },
];
const unfinished: Message = { role: 'assistant', content: 'Sure,' };

/** The chat template of the demo model. */
function rendered(messages: readonly Message[], hasPrompt: boolean, isContinued: boolean): string {
  const turns = messages.map(({ role, content }) => `<|im_start|>${role}\n${content}<|im_end|>\n`).join('');
  const open = isContinued ? turns.replace(/<\|im_end\|>\n$/, '') : turns;
  return `<|endoftext|>${open}${hasPrompt ? '<|im_start|>assistant\n' : ''}`;
}

function tokenizeChat(check: Check, api: Api): void {
  const cases: [string, boolean, boolean, Body][] = [
    ...[
      [false, false],
      [false, true],
      [true, false],
    ].map(([hasPrompt = false, isContinued = false]): [string, boolean, boolean, Body] => [
      `chat add_gen=${named(hasPrompt)} continue=${named(isContinued)}`,
      hasPrompt,
      isContinued,
      { add_generation_prompt: hasPrompt, continue_final_message: isContinued },
    ]),
    ['chat add_gen=False (no continue key)', false, false, { add_generation_prompt: false }],
    ['chat add_gen=True (no continue key)', true, false, {}],
  ];
  for (const [name, hasPrompt, isContinued, flags] of cases) {
    check(name, async () => {
      const messages = isContinued ? [...talk, unfinished] : talk;
      const text = rendered(messages, hasPrompt, isContinued);
      for (const special of [undefined, false, true]) {
        const wish = { model, messages, ...flags, ...(special === undefined ? {} : { add_special_tokens: special }) };
        assertTokens(await api.answer('/tokenize', wish), encoded(text, special ?? false));
      }
    });
  }
  check('chat with tools', async () => {
    const parameters = { type: 'object', properties: { location: { type: 'string' } } };
    const tools = [{ type: 'function', function: { name: 'get_weather', parameters } }];
    const messages = [{ role: 'user', content: "What's the weather like in Paris today?" }];
    const { tokens, count } = await api.answer<Tokenized>('/tokenize', { model, messages, tools });
    const chat = await api.chat({ model, messages, tools, max_tokens: 1, return_token_ids: true });
    assert.deepEqual(tokens, chat.prompt_token_ids);
    assert.equal(count, tokens.length);
    assert((await api.text(tokens)).includes('get_weather'));
  });
}

const named = (flag: boolean): string => (flag ? 'True' : 'False');

type Info = Record<string, unknown>;

function tokenizerInfo(check: Check, api: Api): void {
  const info = (): Promise<Info> => api.get<Info>('/tokenizer_info');
  const isGiven = (value: unknown): boolean => value !== undefined && value !== null;
  check('tokenizer_info 0', async () => {
    const { tokenizer_class: name } = await info();
    assert.equal(name, 'PreTrainedTokenizerFast');
  });
  check('tokenizer_info 1', async () => {
    const all = await info();
    const types: [string, (value: unknown) => boolean][] = [
      ...['add_bos_token', 'add_prefix_space', 'clean_up_tokenization_spaces', 'split_special_tokens'].map(
        (key): [string, (value: unknown) => boolean] => [key, (value) => typeof value === 'boolean'],
      ),
      ...['bos_token', 'eos_token', 'pad_token', 'unk_token', 'chat_template', 'errors'].map(
        (key): [string, (value: unknown) => boolean] => [key, (value) => typeof value === 'string'],
      ),
      ['model_max_length', Number.isInteger],
      ['additional_special_tokens', Array.isArray],
      ['added_tokens_decoder', (value) => typeof value === 'object' && !Array.isArray(value)],
    ];
    for (const [key, isRight] of types) assert(!isGiven(all[key]) || isRight(all[key]), `${key}: ${String(all[key])}`);
    assert.deepEqual([all['bos_token'], all['eos_token']], ['<|endoftext|>', '<|im_end|>']);
  });
  check('tokenizer_info 2', async () => {
    const { added_tokens_decoder: added } = await info();
    assert(typeof added === 'object' && added !== null);
    const entries = Object.entries(added as Record<string, { content: unknown; special: unknown }>);
    assert.deepEqual(
      entries.map(([id, { content, special }]) => [id, content, special]),
      [
        ['0', '<|endoftext|>', true],
        ['1', '<|im_start|>', true],
        ['2', '<|im_end|>', true],
      ],
    );
  });
  check('tokenizer_info 3', async () => {
    const { model_max_length: most } = await info();
    const { max_model_len: length } = await api.answer<Tokenized>('/tokenize', { model, prompt: 'a' });
    assert(typeof most === 'number' && most >= length);
  });
  check('tokenizer_info 4', async () => {
    const { chat_template: template } = await info();
    assert(typeof template === 'string' && template.includes('<|im_start|>'));
  });
}

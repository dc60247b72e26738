/**
 * The next prompt of a chat begins with the last one and the tokens of its answer, however client and template spell the message; where they
 * spell another message, it has the tokenizer's own tokens. Budget: 10 s.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { messageOf } from '../../shared/text/answer_message.ts';
import type { TemplateInput } from '../../shared/text/template_input.ts';
import type { ToolDefinition } from '../../shared/text/template_input.ts';
import { OutputFormat } from '../../shared/text/output/output_format.ts';
import type { ChatPrompt } from '../../shared/text/prompts.ts';
import { generatedTokens, type Answer } from '../../shared/text/encoder/generated_token_cache.ts';
import { linkEnds } from '../../shared/base/thread_link.ts';
import { TokenizerTools } from '../../shared/text/tokenizer_tools.ts';
import { readTextFiles, type TextFiles } from '../../shared/model/text_files.ts';
import { projectPath } from '../support/project.ts';
import { goldenFolder } from '../support/golden.ts';

type Messages = TemplateInput['messages'];
type Message = Messages[number];

const tide: ToolDefinition = {
  type: 'function',
  function: { name: 'tide', parameters: { type: 'object', properties: { place: { type: 'string' } } } },
};
const question: Message = { role: 'user', content: 'When is the tide high at the old mill?' };
const result = (id: unknown): Message => ({ role: 'tool', tool_call_id: id, content: '{"high": "9:15"}' });

/** A model's texts, and the text of the token that ends its answers. */
interface Texts {
  readonly files: TextFiles;
  readonly end: string;
}

const harbour: Texts = { files: readTextFiles(projectPath('config/models/harbour-tools')), end: '<|im_end|>' };

/** Llama 3's headers, with calls as JSON without tags. */
const llama: Texts = {
  files: {
    ...readTextFiles(goldenFolder('tokenizers/llama3')),
    template: `<|begin_of_text|>{%- for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}
      {%- if m.tool_calls %}{{ '{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' + (m.tool_calls[0].function.arguments | tojson) + '}' }}
      {%- else %}{{ m.content | trim }}{% endif %}{{ '<|eot_id|>' }}{% endfor %}
      {%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
      {%- if false %}<|python_tag|>{{ tools }}{% endif %}`,
  },
  end: '<|eot_id|>',
};

const input = (messages: Messages, more: Partial<TemplateInput> = {}): TemplateInput => ({
  messages,
  addGenerationPrompt: true,
  continueFinalMessage: false,
  addSpecialTokens: false,
  kwargs: {},
  tools: [tide],
  ...more,
});

const promptOf = (tools: TokenizerTools, template: TemplateInput): ChatPrompt =>
  tools.chatPrompt({ template, maxCharacters: 1e6, answerScope: 0n });

const idsOf = (tools: TokenizerTools, text: string): number[] => [
  ...tools.encode({ text, addSpecialTokens: false, maxCharacters: 1e6 }),
];

/** Ids of a text as no tokenizer makes them: one by one but for added tokens. */
function lettersOf(tools: TokenizerTools, text: string): number[] {
  return text
    .split(/(<[^\s<>]+>)/)
    .flatMap((part, i) =>
      i % 2 === 1 ? idsOf(tools, part) : Array.from(part).flatMap((letter) => idsOf(tools, letter)),
    );
}

interface Turn {
  readonly template: TemplateInput;
  /** Text that the model generates. */
  readonly text: string;
}

interface Generated {
  /** Ids of the prompt and of what was generated after it. */
  readonly ids: number[];
  /** The message as the API answers it. */
  readonly message: Message;
  readonly answer: Answer | undefined;
}

/** Generates a text after a chat's prompt, and remembers its tokens. */
function generated(tools: TokenizerTools, { end }: Texts, { template, text }: Turn): Generated {
  const prompt = promptOf(tools, template);
  const ids = lettersOf(tools, text);
  const found = generatedTokens(prompt.ids, ids, new Set(tools.delimiters()), 0n);
  const { choice, specialTokens } = tools.outputFacts();
  let calls = 0;
  const parser = new OutputFormat(choice, specialTokens).parser({
    tools: new Map(),
    hasTools: true,
    isParallel: true,
    prefix: prompt.prefix,
    newId: () => `id${(calls++).toString().padStart(12, '0')}`,
  });
  assert(parser);
  const message = messageOf([...parser.push(text), ...parser.end()], true);
  return { ids: [...prompt.ids, ...ids, ...idsOf(tools, end)], message, answer: found && tools.remember(found) };
}

const begins = (tools: TokenizerTools, template: TemplateInput, ids: readonly number[]): boolean =>
  ids.every((id, i) => promptOf(tools, template).ids[i] === id);

const spaced = '<tool_call>\n{"name":"tide",  "arguments":{"place":"old \\u006dill"}}\n</tool_call>';
const thinking = { kwargs: { enable_thinking: true } };

describe.each<[string, Texts, Turn & { readonly next?: readonly Message[] }]>([
  ['a text in other tokens', harbour, { template: input([question], thinking), text: 'The tide is high at noon.' }],
  ['a text with white space around it', harbour, { template: input([question], thinking), text: ' At 9:15. \n' }],
  ['calls whose JSON is spaced otherwise', harbour, { template: input([question], thinking), text: spaced }],
  [
    'content and two calls',
    harbour,
    { template: input([question], thinking), text: `I look.\n\n${spaced}\n\n${spaced}` },
  ],
  [
    'reasoning and a call',
    harbour,
    { template: input([question], thinking), text: `<think>\nthe old mill\n</think>\n${spaced}` },
  ],
  ['a call without tags', llama, { template: input([question]), text: '{"name":"tide","parameters":{"place":"x"}}' }],
  ['a text that the template trims', llama, { template: input([question]), text: '\nAt 9:15. ' }],
])('%s', (_, texts, turn) => {
  /** The template's input for the turn after an answer: results of its calls, or another question. */
  const nextOf = ({ message }: Generated, before = turn.template): TemplateInput => {
    const calls = message['tool_calls'] as readonly { readonly id: string }[] | undefined;
    const more = calls?.map(({ id }) => result(id)) ?? [{ role: 'user', content: 'And at the pier?' }];
    return { ...before, messages: [...before.messages, message, ...more] };
  };

  test('comes back in the tokens that were generated', () => {
    const tools = new TokenizerTools(texts.files);
    const one = generated(tools, texts, turn);
    const next = nextOf(one);
    assert(!begins(new TokenizerTools(texts.files), next, one.ids), 'the case is one for the cache');
    assert(begins(tools, next, one.ids));
    const two = generated(tools, texts, { template: next, text: turn.text });
    assert(begins(tools, nextOf(two, next), two.ids));
  });

  test('comes back so through another router', () => {
    const own = new TokenizerTools(texts.files);
    const other = new TokenizerTools(texts.files);
    const one = generated(own, texts, turn);
    assert(one.answer);
    other.learn(one.answer);
    assert(begins(other, nextOf(one), one.ids));
  });

  test('comes back so in a thread that starts later, from the thread that has it', async () => {
    const own = new TokenizerTools(texts.files);
    const late = new TokenizerTools(texts.files);
    const one = generated(own, texts, turn);
    const [from, to] = linkEnds();
    late.takeAnswers(to);
    own.giveAnswers(from);
    await late.answersTaken();
    assert(begins(late, nextOf(one), one.ids));
    const two = generated(late, texts, { template: nextOf(one), text: turn.text });
    assert(begins(late, nextOf(two, nextOf(one)), two.ids));
  });

  test('another message has the tokenizer’s own tokens', () => {
    const tools = new TokenizerTools(texts.files);
    const plain = new TokenizerTools(texts.files);
    const one = generated(tools, texts, turn);
    const { messages } = nextOf(one);
    const [before, after] = [turn.template.messages, messages.slice(turn.template.messages.length + 1)];
    // Text and calls are each of their own: where a template takes one of them, they are two messages.
    const said = Object.fromEntries(Object.entries(one.message).filter(([key]) => key !== 'tool_calls'));
    const calling = (name: string, json: string): Message => ({
      ...one.message,
      content: '',
      tool_calls: [{ id: 'x', function: { name, arguments: json } }],
    });
    const changes: Messages = [
      { ...said, role: 'assistant', content: 'At 9:16.' },
      { ...said, role: 'assistant', content: 'At 9: 15.' },
      calling('tide', '{"place": "old  mill"}'),
      calling('tides', '{"place": "old mill"}'),
    ];
    for (const message of changes) {
      const next = { ...turn.template, messages: [...before, message, ...after] };
      assert.deepEqual(promptOf(tools, next).ids, promptOf(plain, next).ids);
    }
    const otherBefore = { ...turn.template, messages: [{ role: 'user', content: 'Tide?' }, ...messages.slice(1)] };
    assert.deepEqual(promptOf(tools, otherBefore).ids, promptOf(plain, otherBefore).ids);
  });
});

describe('reasoning', () => {
  const turn = { template: input([question], thinking), text: `<think>\nthe old mill\n</think>\n\n${spaced}` };

  test('that the client leaves out comes back where the template writes it', () => {
    const tools = new TokenizerTools(harbour.files);
    const { ids, message } = generated(tools, harbour, turn);
    const { reasoning, reasoning_content: other, ...bare } = message;
    assert.deepEqual([reasoning, other], ['the old mill', 'the old mill']);
    const next = { ...turn.template, messages: [question, bare, result('id000000000000')] };
    assert(begins(tools, next, ids));
    const changed = {
      ...turn.template,
      messages: [question, { ...message, reasoning: 'no', reasoning_content: 'no' }],
    };
    assert(!begins(tools, changed, ids));
  });

  test('that the template turned off by an empty block stays as the template writes it', () => {
    const tools = new TokenizerTools(harbour.files);
    const { ids, message } = generated(tools, harbour, { template: input([question]), text: spaced });
    const next = input([question, message, result('id000000000000')]);
    assert(!begins(tools, next, ids));
    assert.deepEqual(promptOf(tools, next).ids, promptOf(new TokenizerTools(harbour.files), next).ids);
  });

  test('that the template leaves out stays out', () => {
    const tools = new TokenizerTools(harbour.files);
    const { ids, message } = generated(tools, harbour, { ...turn, text: '<think>\nit is late\n</think>\n\nAt 9:15.' });
    const next = { ...turn.template, messages: [question, message, { role: 'user', content: 'Thanks.' }] };
    assert(!begins(tools, next, ids));
    assert.deepEqual(promptOf(tools, next).ids, promptOf(new TokenizerTools(harbour.files), next).ids);
  });

  test('is kept where the router is told to, dropped by the template or turned off', () => {
    for (const [kwargs, text] of [
      [thinking, turn.text],
      [{}, spaced],
      [{}, 'The tide is high at noon.'],
    ] as const) {
      const tools = new TokenizerTools({ ...harbour.files, keepsReasoning: true });
      const { ids, message } = generated(tools, harbour, { template: input([question], kwargs), text });
      const bare = Object.fromEntries(Object.entries(message).filter(([key]) => !key.startsWith('reasoning')));
      const more = 'tool_calls' in message ? [result('id000000000000')] : [];
      const next = [{ role: 'user', content: 'Thanks.' }];
      for (const one of [message, bare]) assert(begins(tools, input([question, one, ...more, ...next], kwargs), ids));
      const other = { ...message, content: 'At noon.' };
      assert(!begins(tools, input([question, other, ...more, ...next], kwargs), ids));
    }
  });

  test('is none where it is not said which of several it was, or the client says that it was another', () => {
    for (const keepsReasoning of [false, true]) {
      const tools = new TokenizerTools({ ...harbour.files, keepsReasoning });
      const first = generated(tools, harbour, turn);
      const second = generated(tools, harbour, { ...turn, text: turn.text.replace('the old mill', 'the pier') });
      const bare = Object.fromEntries(Object.entries(first.message).filter(([key]) => !key.startsWith('reasoning')));
      const nextOf = (message: Message): TemplateInput =>
        input([question, message, result('id000000000000')], thinking);
      for (const { ids } of [first, second]) assert(!begins(tools, nextOf(bare), ids));
      for (const { ids, message } of [first, second]) assert(begins(tools, nextOf(message), ids));
      const edited = { ...bare, reasoning: 'no', reasoning_content: 'no' };
      for (const { ids } of [first, second]) assert(!begins(tools, nextOf(edited), ids));
    }
  });

  test('that was left out once is not brought back where the template drops it', () => {
    const tools = new TokenizerTools(harbour.files);
    const { message, ids } = generated(tools, harbour, turn);
    const bare = Object.fromEntries(Object.entries(message).filter(([key]) => !key.startsWith('reasoning')));
    const called = [question, bare, result('id000000000000')];
    assert(begins(tools, input(called, thinking), ids));
    const later = input([...called, { role: 'assistant', content: 'At 9:15.' }, question], thinking);
    assert.deepEqual(promptOf(tools, later).ids, promptOf(new TokenizerTools(harbour.files), later).ids);
  });

  test('that was cut is not remembered, nor a call that was', () => {
    const tools = new TokenizerTools(harbour.files);
    for (const text of ['<think>\nit is', '<tool_call>\n{"name": "tide", "arguments": {"pl'])
      assert.equal(generated(tools, harbour, { ...turn, text }).answer, undefined);
  });
});

describe('the end of a prompt', () => {
  const plain = new TokenizerTools(harbour.files);
  const own = (template: TemplateInput): number[] => [...promptOf(plain, template).ids];

  test.each([
    ['an answer of white space', {}, '\n'],
    ['an answer of white space, thinking', thinking, '\n\n'],
    ['an answer that only thinks', thinking, '<think>\nthe old mill\n</think>\n\n'],
  ])('is open: %s stays out of it', (_, kwargs, text) => {
    for (const keepsReasoning of [false, true]) {
      const tools = new TokenizerTools({ ...harbour.files, keepsReasoning });
      generated(tools, harbour, { template: input([question], kwargs), text });
      for (const one of [{}, thinking])
        assert.deepEqual([...promptOf(tools, input([question], one)).ids], own(input([question], one)));
    }
  });

  test('that the client has begun is as the client wrote it', () => {
    const tools = new TokenizerTools(harbour.files);
    const begun = [question, { role: 'assistant', content: 'Therefore:' }];
    const template = input(begun, { addGenerationPrompt: false, continueFinalMessage: true, ...thinking });
    generated(tools, harbour, { template, text: '\n\nAt noon.' });
    assert.deepEqual([...promptOf(tools, template).ids], own(template));
    const spelled = input([question, { role: 'assistant', content: 'Therefore: At noon.' }, question], thinking);
    assert.deepEqual([...promptOf(tools, spelled).ids], own(spelled));
  });
});

test('texts that no template rendered, and prompts under a salt, have no other text and no tokens of others', () => {
  const tools = new TokenizerTools(harbour.files);
  const encode = (text: string): number[] => [
    ...tools.encode({ text, addSpecialTokens: false, maxCharacters: 1e6, answerScope: 0n }),
  ];
  const plain = new TokenizerTools(harbour.files);
  const code = '<|im_start|>def f(x):\n';
  const prompt = Uint32Array.from(idsOf(plain, code));
  const found = generatedTokens(prompt, lettersOf(plain, '    return x + 1\n'), new Set(tools.delimiters()), 0n);
  assert(found && tools.remember(found));
  for (const text of ['def f(x):\n  return x + 1', 'def f(x): return x + 1', 'def f(x):\n    return x + 1'])
    for (const end of ['', '<|im_end|>'])
      assert.deepEqual(encode(`<|im_start|>${text}${end}`), idsOf(plain, `<|im_start|>${text}${end}`));
  const template = input([question], thinking);
  const { ids, message } = generated(tools, harbour, { template, text: spaced });
  const next = input([question, message, result('id000000000000')], thinking);
  assert(begins(tools, next, ids));
  const salted = tools.chatPrompt({ template: next, maxCharacters: 1e6 });
  assert.deepEqual(salted.ids, promptOf(plain, next).ids);
});

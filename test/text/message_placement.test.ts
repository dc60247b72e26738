/**
 * Messages placed for chat templates: every text of every message is in the prompt once, for all templates and orders of messages; what
 * renders whole as it is stays so; a prompt begins the next one. Budget: 10 s.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, expect, test, vi } from 'vitest';
import type { TemplateInput } from '../../shared/text/template_input.ts';
import type { ToolDefinition } from '../../shared/text/template_input.ts';
import { ChatRenderer } from '../../shared/text/chat_renderer.ts';
import { ChatTemplate } from '../../shared/text/template/chat_template.ts';
import { readTextFiles } from '../../shared/model/text_files.ts';
import { vocabularyFolder } from '../support/downloads.ts';
import { goldenFolder } from '../support/golden.ts';
import { projectPath } from '../support/project.ts';

type Messages = TemplateInput['messages'];

const config = (folder: string): Record<string, unknown> =>
  JSON.parse(readTextFiles(folder).config) as Record<string, unknown>;
const golden = (name: string): Record<string, unknown> => ({
  chat_template: readFileSync(`${goldenFolder('templates')}/${name}.jinja`, 'utf8'),
  bos_token: '<s>',
  eos_token: '</s>',
});
const small = (source: string): Record<string, unknown> => ({ chat_template: source });
/** Prints messages in a loop; `more` stands before each, `calls` in the place of calls. */
const looping = (more: string, calls: string): Record<string, unknown> =>
  small(
    `{% for m in messages %}${more}{% if m.tool_calls %}${calls}{% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}{% if false %}{{ tools }}{% endif %}`,
  );
const CALLS = '{% for c in m.tool_calls %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}';

/** Real templates, those of the golden files, and the habits of families that are not here. */
const templates: Readonly<Record<string, Record<string, unknown>>> = {
  harbour: config(projectPath('config/models/harbour')),
  'harbour-tools': config(projectPath('config/models/harbour-tools')),
  ...Object.fromEntries(['gemma3', 'llama3_2', 'mistral_nemo', 'qwen3'].map((n) => [n, config(vocabularyFolder(n))])),
  ...Object.fromEntries(['chatml', 'headers', 'inst', 'think', 'turns'].map((name) => [name, golden(name)])),
  'refuses a late system message (Qwen 3.5)': looping(
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system message must be first') }}{% endif %}",
    `{{ m.content }}${CALLS}`,
  ),
  'reads the first system message only (SmolLM3)': small(
    `{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% endif %}{% for m in messages %}{% if m.role == 'user' %}[user]{{ m.content }}{% elif m.role == 'assistant' %}[assistant]{{ m.content }}{% endif %}{% endfor %}`,
  ),
  'refuses system messages, and turns that do not alternate (Gemma 2)': looping(
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}",
    '[{{ m.role }}]{{ m.content }}',
  ),
  'joins arguments (DeepSeek)': looping(
    '',
    "{{ m.content or '' }}{% for c in m.tool_calls %}{{ '<call>' + c.function.name + '<sep>' + c.function.arguments }}{% endfor %}",
  ),
  'takes one call a message (Llama 3)': looping(
    '',
    `{% if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}${CALLS}`,
  ),
  'reads thinking, and not with text (gpt-oss)': looping(
    '',
    `{% if m.content and m.thinking %}{{ raise_exception('both content and thinking') }}{% endif %}<analysis>{{ m.thinking or m.content }}${CALLS}`,
  ),
};

const tool = (name: string): ToolDefinition => ({
  type: 'function',
  function: { name, description: 'Tells.', parameters: { type: 'object', properties: { place: { type: 'string' } } } },
});
const tools = [tool('tide'), tool('wind')];
const call = (id: string, name: string, place: string): object => ({
  id,
  type: 'function',
  function: { name, arguments: JSON.stringify({ place }) },
});
const calling = (content: string, calls: readonly object[], more: object = {}): Messages[number] => ({
  role: 'assistant',
  content,
  tool_calls: calls,
  ...more,
});
const of = (role: string, content: string): Messages[number] => ({ role, content });
const result = (id: string, content: string): Messages[number] => ({ role: 'tool', tool_call_id: id, content });

/** Chats, with the texts that have to be in the prompt. */
const orders: Readonly<Record<string, Messages>> = {
  'a question': [of('user', 'Where is Ada?')],
  'a brief and turns': [of('system', 'Be brief.'), of('user', 'one?'), of('assistant', 'Two.'), of('user', 'three?')],
  'a late system message after a question': [of('system', 'Be brief.'), of('user', 'one?'), of('system', 'Rules!')],
  'and before one': [of('user', 'one?'), of('assistant', 'Two.'), of('system', 'Rules!'), of('user', 'three?')],
  'two of them at the beginning': [of('system', 'Be brief.'), of('system', 'Rules!'), of('user', 'one?')],
  'of a developer': [of('developer', 'Be brief.'), of('user', 'one?'), of('developer', 'Rules!'), of('user', 'two?')],
  'two questions': [of('user', 'one?'), of('user', 'two?')],
  'two answers': [of('user', 'one?'), of('assistant', 'Two.'), of('assistant', 'Three.'), of('user', 'four?')],
  'a call and its result': [of('user', 'one?'), calling('', [call('c1', 'tide', 'mill')]), result('c1', 'at noon')],
  'calls of an earlier turn': [
    ...[of('user', 'one?'), calling('', [call('c1', 'tide', 'mill')]), result('c1', 'at noon')],
    ...[of('assistant', 'Noon.'), of('user', 'two?')],
  ],
  'two calls, results the other way round': [
    ...[of('user', 'one?'), calling('', [call('c1', 'tide', 'mill'), call('c2', 'wind', 'pier')])],
    ...[result('c2', 'from west'), result('c1', 'at noon')],
  ],
  'a reminder after a result': [
    ...[of('system', 'Be brief.'), of('user', 'one?'), calling('', [call('c1', 'tide', 'mill')])],
    ...[result('c1', 'at noon'), of('system', 'Rules!')],
  ],
};

const render = (renderer: ChatRenderer, messages: Messages, more: Partial<TemplateInput> = {}): string =>
  renderer.render({
    messages,
    addGenerationPrompt: true,
    continueFinalMessage: false,
    addSpecialTokens: false,
    kwargs: {},
    ...more,
  }).text;

const rendererOf = (own: Record<string, unknown>): ChatRenderer =>
  new ChatRenderer(own, undefined, { tools: 'auto', reasoning: 'auto' });

/** Texts of the messages, and of the arguments of their calls. */
function textsOf(messages: Messages): string[] {
  return messages.flatMap(({ content, tool_calls: calls }) => [
    ...(typeof content === 'string' && content !== '' ? [content] : []),
    ...((calls ?? []) as { function: { arguments: string } }[]).map(
      ({ function: called }) => (JSON.parse(called.arguments) as { place: string }).place,
    ),
  ]);
}

describe.each(Object.entries(templates))('%s', (family, own) => {
  test.each(Object.entries(orders))('keeps every text once: %s', (_name, messages) => {
    const renderer = rendererOf(own);
    const hasCalls = messages.some((message) => 'tool_calls' in message);
    for (const given of hasCalls ? [tools, []] : [[]]) {
      const text = render(renderer, messages, { tools: given });
      for (const one of textsOf(messages)) assert.equal(text.split(one).length, 2, `${one} in ${text}`);
    }
  });

  test('begins the next prompt with the last one', () => {
    const renderer = rendererOf(own);
    for (const [name, messages] of Object.entries(orders)) {
      // A chat that a template renders as it is stays so, also where the template refuses the next turn.
      if (plainOf(renderer, messages) !== undefined) continue;
      const next = [...messages, of('assistant', 'So be it.'), of('user', 'And then?')];
      const prompts = [messages, next].map((all) => render(renderer, all, { addGenerationPrompt: false }));
      const [text = '', longer = ''] = prompts;
      const isSame = (length: number): boolean => longer.startsWith(text.slice(0, length));
      let length = text.length;
      while (!isSame(length)) length--;
      // The end of a last turn may be another one, and Mistral's templates move the brief themselves.
      if (messages[0]?.['role'] !== 'user' && ['mistral_nemo', 'inst'].includes(family)) continue;
      for (const one of textsOf(messages))
        assert(text.slice(0, length).includes(one), `${name}: ${one} moves: ${text} and ${longer}`);
    }
  });
});

/** Returns what the template itself makes of messages without calls; undefined where it refuses them, or loses a text. */
function plainOf(renderer: ChatRenderer, messages: Messages): string | undefined {
  const names = ['bos_token', 'eos_token'].map((name) => [name, renderer.specialToken(name)] as const);
  const context = { ...Object.fromEntries(names), tools: null, messages, add_generation_prompt: true };
  try {
    const plain = new ChatTemplate(renderer.source ?? '', () => new Date(0)).render(context);
    return textsOf(messages).every((text) => plain.split(text).length === 2) ? plain : undefined;
  } catch {
    return undefined;
  }
}

test('reasoning reaches a template under its name, also where it takes it without text only', () => {
  const gptOss = rendererOf(templates['reads thinking, and not with text (gpt-oss)']!);
  const thinks = (content: string, key: string): string =>
    render(
      gptOss,
      [of('user', 'one?'), calling(content, [call('c1', 'tide', 'mill')], { [key]: 'Hm.' }), result('c1', 'noon')],
      { tools },
    );
  for (const key of ['reasoning', 'reasoning_content', 'thinking']) {
    expect(thinks('', key)).toContain('<analysis>Hm.<call>tide {"place": "mill"}');
    expect(thinks('I look.', key)).toMatch(/<analysis>Hm\.\n\nI look\.<call>tide|I look\.[^]*<analysis>Hm\.<call>tide/);
  }
});

test('what a template renders whole stays as it is', () => {
  const undated = (text: string): string => text.replace(/\d\d \w{3} \d{4}/, '');
  for (const own of Object.values(templates)) {
    const renderer = rendererOf(own);
    let numSame = 0;
    for (const messages of Object.values(orders)) {
      // Arguments and the role of a developer are spelled for every template.
      if (messages.some((message) => 'tool_calls' in message || message['role'] === 'developer')) continue;
      const plain = plainOf(renderer, messages);
      if (plain === undefined) continue;
      numSame++;
      assert.equal(undated(render(renderer, messages)), undated(plain));
    }
    assert(numSame > 0, 'some order is whole');
  }
});

test('a message that is in no spelling is refused by its number; a fixed prompt, and one that prints no text, are not', () => {
  const deaf = rendererOf(small('{% for m in messages[:2] %}[{{ m.role }}]{{ m.content }}{% endfor %}'));
  const three = [of('user', 'one?'), of('assistant', 'Two.'), of('user', 'three?')];
  assert.throws(
    () => render(deaf, three),
    /the chat template leaves out the message of the user that begins with "three\?"/,
  );
  assert.equal(render(rendererOf(small('fixed')), three), 'fixed');
  assert.equal(render(rendererOf(small('{{ messages | length }}')), three), '3');
});

test('a role or a key that looks like others is a shape of its own', () => {
  const passing = rendererOf(
    small(
      "{% for m in messages %}{% if m.role in ['user', 'assistant', 'system'] %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}",
    ),
  );
  const briefed = [of('system', 'a'), of('user', 'b')];
  assert.throws(() => render(passing, [...briefed, of('assistant content \nuser', 'lost')]), /leaves out the message/);
  assert.equal(
    render(passing, [...briefed, of('assistant', 'c'), of('user', 'd')]),
    '[system]a[user]b[assistant]c[user]d',
  );
});

test('texts of tools that look like marks keep nothing', () => {
  const deaf = rendererOf(
    small(
      "{{ tools | tojson }}{% for m in messages %}{% if m.role != 'system' %}[{{ m.content }}]{% endif %}{% endfor %}",
    ),
  );
  const marks = Array.from({ length: 9 }, (_, i) => `qz0000${i}w`).join(' ');
  const sly = { type: 'function', function: { name: 'tide', description: `Result of the search: ${marks}` } } as const;
  const chat = [of('user', 'one?'), of('assistant', 'Two.'), of('user', 'three?'), of('system', 'Rules!')];
  expect(render(deaf, chat, { tools: [sly] })).toContain('Rules!');
});

test('a shape is tried once, and so is one that is refused', () => {
  const counted = "{% if messages[0].role == 'count' %}{% endif %}";
  const renderer = rendererOf(
    looping(`${counted}{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}`, CALLS),
  );
  const renders = (run: () => unknown): number => {
    const watched = vi.spyOn(ChatTemplate.prototype, 'render');
    try {
      run();
    } catch {
      // Refused.
    }
    const { length } = watched.mock.calls;
    watched.mockRestore();
    return length;
  };
  const briefed = (text: string): Messages => [of('system', text), of('user', text)];
  expect(renders(() => render(renderer, briefed('a')))).toBeGreaterThan(2);
  assert.equal(
    renders(() => render(renderer, briefed('b'))),
    1,
  );
  const plain = (text: string): Messages => [of('user', text)];
  assert.equal(
    renders(() => render(renderer, plain('a'))),
    2,
  );
  assert.equal(
    renders(() => render(renderer, plain('b'))),
    1,
  );
  const odd = (text: string): Messages => [
    of('assistant', text),
    of('system', text),
    of('tool', text),
    of('user', text),
  ];
  const strict = rendererOf(small("{{ raise_exception('never') }}"));
  const first = renders(() => render(strict, odd('a')));
  expect(first).toBeLessThan(100);
  expect(renders(() => render(strict, odd('b')))).toBeLessThan(20);
});

/** Tools, calls and reasoning in chat templates: which template gets them, and what becomes of them where it reads none. Budget: 5 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import type { TemplateInput } from '../../shared/text/template_input.ts';
import type { ToolDefinition } from '../../shared/text/template_input.ts';
import { ChatRenderer, type RenderedChat } from '../../shared/text/chat_renderer.ts';

const tools: readonly ToolDefinition[] = [
  { type: 'function', function: { name: 'tide', description: 'The tide.', parameters: { type: 'object' } } },
];
const question = { role: 'user', content: 'Tide?' };
const called = {
  role: 'assistant',
  tool_calls: [
    {
      id: 'call_0123456789',
      type: 'function',
      function: { name: 'tide', arguments: '{"place": "x", "n": [1, null, true]}' },
    },
  ],
};
const result = { role: 'tool', tool_call_id: 'call_0123456789', content: '{"high": "9:15"}' };
const turns =
  '{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}';

function render(
  config: Readonly<Record<string, unknown>> | string,
  messages: TemplateInput['messages'],
  more: Partial<TemplateInput> & { readonly parser?: 'auto' | 'pythonic' | 'hermes' } = {},
): RenderedChat {
  const { parser = 'auto', ...input } = more;
  const all = typeof config === 'string' ? { chat_template: config } : config;
  const renderer = new ChatRenderer(all, undefined, { tools: parser, reasoning: 'auto' });
  return renderer.render({
    messages,
    addGenerationPrompt: true,
    continueFinalMessage: false,
    addSpecialTokens: false,
    kwargs: {},
    tools,
    ...input,
  });
}

test('a template named tool_use gets chats with tools, the default one all others', () => {
  const config = {
    chat_template: [
      { name: 'default', template: 'plain' },
      { name: 'tool_use', template: '{{ tools | length }} {{ tools[0].function.name }}' },
    ],
  };
  assert.equal(render(config, [question]).text, '1 tide');
  assert.equal(render(config, [question], { tools: [] }).text, 'plain');
});

test('without tools the variable is none', () => {
  assert.equal(render('{{ tools is none }}', [question], { tools: [] }).text, 'True');
});

describe('a template that reads no tools', () => {
  test('is told of them by a system message', () => {
    const { text } = render(turns, [question]);
    assert.match(text, /^\[system\]You can call these functions:\n\{"name":"tide","description":"The tide\."/);
    assert.match(
      text,
      /\n\{"name": "NAME", "arguments": \{"PARAMETER": VALUE, \.\.\.\}\}\n[^[]*\[user\]Tide\?\[assistant\]$/,
    );
  });

  test('is told after its own system message, in the format of the parser', () => {
    const { text } = render(turns, [{ role: 'system', content: 'Be brief.' }, question], { parser: 'pythonic' });
    assert.match(text, /^\[system\]Be brief\.\n\nYou can call/);
    assert.match(text, /\n\[NAME\(PARAMETER=VALUE, \.\.\.\), \.\.\.\]\n/);
    assert.match(render(turns, [question], { parser: 'hermes' }).text, /<tool_call>\n\{"name": "NAME"/);
  });

  test('has the system message in the first message of the user where it knows none', () => {
    const template = `{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}${turns}`;
    assert.match(render(template, [question]).text, /^\[user\]You can call [^[]*\n\nTide\?\[assistant\]$/);
    const brief = { role: 'system', content: 'Be brief.' };
    assert.equal(render(template, [brief, question], { tools: [] }).text, '[user]Be brief.\n\nTide?[assistant]');
  });

  test('gets calls and their results as text', () => {
    const { text } = render(turns, [question, called, result, { role: 'user', content: 'And?' }]);
    assert.match(
      text,
      /\[assistant\]\{"name": "tide", "arguments": \{"place": "x", "n": \[1, null, true\]\}\}\[user\]Result of tide: \{"high": "9:15"\}\n\nAnd\?\[assistant\]$/,
    );
    const pythonic = render(turns, [question, called], { parser: 'pythonic' }).text;
    assert.match(pythonic, /\[assistant\]\[tide\(place="x", n=\[1, None, True\]\)\]/);
  });
});

test('Phi-4-mini reads the tools from its system message', () => {
  const template =
    "{% for message in messages %}{% if message['tools'] %}<|tool|>{{ message['tools'] }}<|/tool|>{% endif %}{{ message['content'] }}{% endfor %}";
  assert.equal(
    render(template, [question]).text,
    '<|tool|>[{"name":"tide","description":"The tide.","parameters":{"type":"object"}}]<|/tool|>Tide?',
  );
});

test('SmolLM3 reads the tools under another name, and calls as text', () => {
  const template =
    "{% if xml_tools %}{{ 'in <tools></tools>: ' }}{{ xml_tools[0].name }} <tool_call>{% endif %}" +
    "{% for m in messages %}[{{ 'user' if m.role == 'tool' else m.role }}]{{ m.content }}{% endfor %}";
  assert.equal(
    render(template, [question, called, result]).text,
    'in <tools></tools>: tide <tool_call>[user]Tide?[assistant]<tool_call>\n{"name": "tide", "arguments": {"place": "x", "n": [1, null, true]}}\n</tool_call>[user]{"high": "9:15"}',
  );
  assert.equal(render(template, [question], { tools: [] }).text, '[user]Tide?');
});

test('ids of calls are shortened for templates that refuse others, and left alone for all others', () => {
  const ids =
    '{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }},{% endfor %}{{ m.tool_call_id }}{% endfor %}{{ tools }}';
  const strict = `{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('ids have 9 letters') }}{% endif %}{% endfor %}{% endfor %}${ids}`;
  assert.match(render(ids, [question, called, result]).text, /^call_0123456789,call_0123456789/);
  assert.match(render(strict, [question, called, result]).text, /^123456789,123456789/);
});

test('reasoning reaches a template under both of its names', () => {
  const template = '{{ tools }}{% for m in messages %}{{ m.reasoning }}/{{ m.reasoning_content }};{% endfor %}';
  const given = [{ reasoning: 'A' }, { reasoning_content: 'B' }].map((one) => ({
    role: 'assistant',
    content: 'x',
    ...one,
  }));
  assert.match(render(template, given, { tools: [] }).text, /A\/A;B\/B;$/);
});

test('the end of the prompt that belongs to the answer is known', () => {
  const open = `${turns}<think>\n`;
  assert.equal(render(open, [question], { tools: [] }).prefix, '<think>');
  assert.equal(render(`${open}\n</think>\n\n`, [question], { tools: [] }).prefix, '</think>');
  const continued = { addGenerationPrompt: false, continueFinalMessage: true, tools: [] };
  const begun = { role: 'assistant', content: '<think>\nA fact' };
  assert.equal(render("{{ '<think>' if false }}" + turns, [question, begun], continued).prefix, '<think>\nA fact');
});

test('a response template that cannot be used is left out, and the reason is known', () => {
  const options = { tools: 'auto', reasoning: 'auto' } as const;
  const broken = new ChatRenderer(
    { chat_template: '<tool_call>', response_template: { fields: 1 } },
    undefined,
    options,
  );
  assert.match(broken.formatError ?? '', /response_template/);
  assert.deepEqual(broken.format, {
    tools: 'hermes',
    reasoning: undefined,
    calls: 'hermes',
    responseTemplate: undefined,
  });
  const template = { fields: { content: {} } };
  const own = new ChatRenderer({ response_template: template }, undefined, options);
  assert.deepEqual([own.formatError, own.format.responseTemplate], [undefined, template]);
});

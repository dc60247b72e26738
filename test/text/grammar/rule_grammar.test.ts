/** Rules as grammars: what the matcher takes and refuses of each kind of rule, alone, after reasoning and as tool calls. */
import assert from 'node:assert/strict';
import { beforeAll, describe, expect, test } from 'vitest';
import { ruleEbnf } from '../../../shared/text/grammar/rule_grammar.ts';
import type { CallRule, TextRule } from '../../../shared/text/grammar/text_rule.ts';
import { GrammarError } from '../../../shared/grammar/grammar.ts';
import { LibraryMatcher } from '../../grammar/library_matcher.ts';

let matcher: LibraryMatcher;
beforeAll(async () => {
  matcher = await LibraryMatcher.load();
});

async function expectTexts(rule: TextRule, right: readonly string[], wrong: readonly string[]): Promise<void> {
  const ebnf = ruleEbnf(rule);
  for (const text of right) assert(await matcher.accepts(ebnf, text), `${text} is right`);
  for (const text of wrong) assert(!(await matcher.accepts(ebnf, text)), `${text} is wrong`);
}

const param = 'x';
const schema = JSON.stringify({ type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] });

const rules: readonly [TextRule, string[], string[]][] = [
  [{ kind: 'json_object', param }, ['{}', '{"a": [1, null, {"b":"é\\n"}]}'], ['[]', '1', '{"a":}', '{"a":1} ', '']],
  [{ kind: 'json_schema', param, schema }, ['{"a":1}', '{"a": -20}'], ['{}', '{"a":"1"}', '{"a":1,"b":2}']],
  [{ kind: 'json_schema', param, schema: 'true' }, ['1', '"x"', '{}'], ['x']],
  [{ kind: 'regex', param, pattern: '[a-c]+é?' }, ['abc', 'aé'], ['', 'é', 'abd']],
  [{ kind: 'choice', param, texts: ['yes', 'no', 'né', ''] }, ['yes', 'no', 'né', ''], ['y', 'yesno']],
  [{ kind: 'grammar', param, text: 'root ::= "a" b\nb ::= [0-9]+ | "x"' }, ['a12', 'ax'], ['a', 'b']],
];

test.each(rules)('%j', async (rule, right, wrong) => {
  await expectTexts(rule, right, wrong);
});

describe('reasoning before the answer', () => {
  const reasoning = { open: ['<think>'], close: ['</think>'] };
  test.each(rules)('may come, or be missing: %j', async (rule, right, wrong) => {
    const thought = '<think>\nA < b, </thin > and {"a": 1}\n</think>\n\n';
    await expectTexts(
      { ...rule, reasoning: { ...reasoning, isOpen: false } },
      right.flatMap((text) => [text, thought + text, `<think></think>${text}`]),
      [...wrong.flatMap((text) => [text, thought + text]), '<think>', thought.slice(0, 20)],
    );
  });

  test('that ends with a sentence does not begin it without its end', async () => {
    const sentence = { open: ['<think>'], close: ['Here is my response:', '</think>'], isOpen: true };
    await expectTexts(
      { kind: 'json_object', param, reasoning: sentence },
      ['Here is my plan. Here is my response:{}', 'Here is my plan.</think>{}'],
      ['Here is my rest.</think>{}', 'Here is my response: so</think>{}', 'Here is my response</think>{}'],
    );
  });

  test('ends first where the answer begins within it', async () => {
    const rule: TextRule = { kind: 'json_object', param, reasoning: { ...reasoning, isOpen: true } };
    await expectTexts(
      rule,
      ['so</think>{}', '</think>\n\n{"a":1}'],
      ['{}', 'so', 'so</think>so', '</think></think>{}'],
    );
  });
});

describe('tool calls', () => {
  const tools = [
    {
      name: 'tide',
      schema: JSON.stringify({ type: 'object', properties: { place: { type: 'string' } } }),
      isStrict: true,
      param,
    },
    { name: 'now', schema: undefined, isStrict: false, param },
  ];
  const rule = (more: Partial<CallRule>): TextRule => ({
    kind: 'calls',
    form: 'hermes',
    tools,
    mustCall: true,
    isParallel: true,
    param,
    ...more,
  });
  const tide = '{"name": "tide", "arguments": {"place": "old mill"}}';
  const now = '{"name":"now","arguments":{}}';
  const tagged = (call: string): string => `<tool_call>\n${call}\n</tool_call>`;

  test('must come, as the model writes them', async () => {
    await expectTexts(
      rule({}),
      [tagged(tide), tagged(now), `${tagged(tide)}\n${tagged(now)}`],
      [
        '',
        'No.',
        tide,
        `${tagged(tide)} so`,
        tagged('{"name": "tides", "arguments": {}}'),
        tagged('{"name":"now","arguments":{"a":1}}'),
      ],
    );
    await expectTexts(rule({ isParallel: false }), [tagged(now)], [`${tagged(tide)}\n${tagged(now)}`]);
    const llama = (call: string): string => call.replace('arguments', 'parameters');
    await expectTexts(
      rule({ form: 'llama3_json' }),
      [llama(tide), `${llama(tide)}; ${llama(now)}`],
      [tide, tagged(llama(tide)), ''],
    );
    await expectTexts(rule({ form: 'json' }), [`[${tide}, ${now}]`, `[${now}]`], [tide, '[]', `[${tide},]`]);
    await expectTexts(rule({ form: 'json', isParallel: false }), [tide], [`[${tide}]`]);
  });

  test('may come in a text, and then have their form', async () => {
    await expectTexts(
      rule({ mustCall: false }),
      ['', 'No < yes.', `I look. ${tagged(tide)}`, `${tagged(tide)}\n${tagged(now)} so`],
      ['<tool_call>', tagged('{"name": "tide", "arguments": {"place": 1}}'), `${tagged(tide)}<tool_call>`],
    );
    await expectTexts(
      rule({ mustCall: false, isParallel: false }),
      [`I look. ${tagged(tide)} so`],
      [`${tagged(tide)}${tagged(now)}`],
    );
    await expectTexts(
      rule({ mustCall: false, form: 'json' }),
      ['', 'a {b} [c]', `[${tide}]`],
      ['{', ' {"a": 1}', '[1]', 'so\n{"a": 1}', '```json\n{}'],
    );
    await expectTexts(
      rule({ mustCall: false, form: 'llama3_json' }),
      ['a {b}', '{"name": "now", "parameters": {}}'],
      ['{"a": 1}', 'a\n{"name": "now"}'],
    );
  });

  test('with a rule for the text', async () => {
    const content: TextRule = { kind: 'json_object', param };
    await expectTexts(rule({ mustCall: false, content }), [tagged(tide), '{"a": 1}'], ['', 'so', `{} ${tagged(tide)}`]);
  });

  test('a schema that cannot be enforced makes any object of the arguments, or is refused where they are strict', async () => {
    const odd = { ...tools[0]!, schema: JSON.stringify({ type: 'object', not: { required: ['a'] } }) };
    await expectTexts(
      rule({ tools: [{ ...odd, isStrict: false }] }),
      [tagged(tide)],
      [tagged('{"name":"tide","arguments":1}')],
    );
    expect(() => ruleEbnf(rule({ tools: [odd] }))).toThrow(/^x: .*not/s);
  });
});

describe('what is refused', () => {
  test.each<[TextRule, RegExp]>([
    [{ kind: 'json_schema', param, schema: '{' }, /is no JSON/],
    [
      { kind: 'json_schema', param, schema: '{"properties":{"a":{"not":{"type":"null"}}}}' },
      /^at \/properties\/a\/not: not/,
    ],
    [{ kind: 'json_schema', param, schema: '{"type":"strin"}' }, /./],
    [{ kind: 'regex', param, pattern: '(' }, /./],
    [{ kind: 'regex', param, pattern: 'a'.repeat(1 << 20) }, /at most/],
    [{ kind: 'grammar', param, text: 'root ::= root "a" | "b"' }, /"root" begins with itself/],
    [{ kind: 'grammar', param, text: 'root ::= "a" | b' }, /"b", which is not defined/],
    [{ kind: 'grammar', param, text: 'start: "a"' }, /./],
    [{ kind: 'choice', param, texts: ['\ud800'] }, /surrogate/],
  ])('%j', (rule, message) => {
    expect(() => ruleEbnf(rule)).toThrow(GrammarError);
    expect(() => ruleEbnf(rule)).toThrow(message);
  });
});

/**
 * Special tokens in grammars: each family's own syntax, by the ids of its special tokens alone, and read by the family's parser; and no
 * special token in any text. One token per byte. Budget: 10 s.
 */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { ruleEbnf } from '../../../shared/text/grammar/rule_grammar.ts';
import type { TextRule } from '../../../shared/text/grammar/text_rule.ts';
import { toolRule } from '../../../services/router/surfaces/openai/tool_grammar.ts';
import type { ToolWish } from '../../../services/router/surfaces/openai/tools.ts';
import { chooseFormat, OutputFormat, type FormatChoice } from '../../../shared/text/output/output_format.ts';
import { specialNames } from '../../../shared/text/output/rule_format.ts';
import { isSpecialToken, tokenTable } from '../../../shared/grammar/matcher/token_table.ts';
import { XGrammar, type Matcher } from '../../../shared/grammar/matcher/xgrammar.ts';
import { joined } from '../output/support.ts';

const NAMES = [
  ...['<tool_call>', '</tool_call>', '<|python_tag|>', '[TOOL_CALLS]', '[ARGS]', '[CALL_ID]'],
  ...['<|tool_call|>', '<|/tool_call|>', '<think>', '</think>', '[THINK]', '[/THINK]', '<|channel>', '<channel|>'],
  ...['<|start|>', '<|end|>', '<|message|>', '<|channel|>', '<|constrain|>', '<|call|>', '<|return|>', '<|im_end|>'],
];
const FIRST = 256;
const added = NAMES.map((content, i) => ({ id: FIRST + i, content, special: true }));
const ENDS = ['<|call|>', '<|return|>', '<|im_end|>'].map((name) => FIRST + NAMES.indexOf(name));
const VOCAB_SIZE = FIRST + NAMES.length;

const hex = (byte: number): string => byte.toString(16).toUpperCase().padStart(2, '0');

/** Text files of a vocabulary of bytes and of these added tokens. */
function texts(isSpecial: boolean): { tokenizer: string; config: string } {
  const vocab = Object.fromEntries(Array.from({ length: FIRST }, (_, byte) => [`<0x${hex(byte)}>`, byte]));
  return {
    tokenizer: JSON.stringify({
      normalizer: null,
      decoder: { type: 'ByteFallback' },
      model: { type: 'BPE', vocab },
      added_tokens: added.map((token) => ({ ...token, special: isSpecial })),
    }),
    config: '{}',
  };
}

/** Tokens of a text in which the names of special tokens are those. */
function tokensOf(text: string): number[] {
  const pattern = new RegExp(NAMES.map((name) => name.replace(/[\\[\]|]/g, '\\$&')).join('|'), 'g');
  const tokens: number[] = [];
  let at = 0;
  for (const { index, 0: name } of text.matchAll(pattern)) {
    tokens.push(...new TextEncoder().encode(text.slice(at, index)), FIRST + NAMES.indexOf(name));
    at = index + name.length;
  }
  return [...tokens, ...new TextEncoder().encode(text.slice(at))];
}

const library = { special: XGrammar.load(tokenTable(texts(true), VOCAB_SIZE)) };

async function open(ebnf: string): Promise<Matcher> {
  const loaded = await library.special;
  return loaded.start(await loaded.compile(ebnf));
}

/** Whether the grammar takes these tokens and may end after them. */
async function accepts(ebnf: string, tokens: readonly number[]): Promise<boolean> {
  const matcher = await open(ebnf);
  const isWhole = tokens.every((token) => matcher.accept(token)) && matcher.end();
  matcher.close();
  return isWhole;
}

const names = specialNames(added, ENDS);
const wish = (more: Partial<ToolWish> = {}): ToolWish => ({
  tools: [
    {
      type: 'function',
      function: { name: 'tide', parameters: { type: 'object', properties: { a: { type: 'integer' } } } },
    },
    { type: 'function', function: { name: 'now' } },
  ],
  choice: 'required',
  isParallel: true,
  ...more,
});

function formatOf(template: string): OutputFormat {
  return new OutputFormat(chooseFormat(template, undefined, { tools: 'auto', reasoning: 'auto' }), added, names);
}

function ebnfOf(format: OutputFormat, rule: TextRule | undefined, prefix = ''): string {
  assert(rule);
  return ruleEbnf({ ...rule, ...format.rules.frame(prefix) });
}

const tide = '{"name": "tide", "arguments": {"a": 1}}';
const now = '{"name": "now", "arguments": {}}';

/** Each family with a text of its template, an answer with calls, and whether there can be two of them. */
const families: readonly (readonly [name: string, template: string, answer: string, isParallel: boolean])[] = [
  ['hermes', '<tool_call>', `<tool_call>\n${tide}\n</tool_call>\n<tool_call>\n${now}\n</tool_call>`, true],
  ['llama3_json', '<|python_tag|>', `<|python_tag|>${tide.replace('arguments', 'parameters')}`, false],
  ['mistral', '[TOOL_CALLS]', `[TOOL_CALLS][${tide}, ${now}]`, true],
  ['mistral_args', '[TOOL_CALLS][ARGS]', '[TOOL_CALLS]tide[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}', true],
  ['phi4', '<|/tool_call|>', `<|tool_call|>[${tide}, ${now}]<|/tool_call|>`, true],
  ['granite', '<|tool_call|>', `<|tool_call|>[${tide}, ${now}]`, true],
  [
    'harmony',
    '<|channel|><|message|>',
    '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"a": 1}',
    false,
  ],
];

describe.each(families)('calls of %s', (form, template, answer, isParallel) => {
  const format = formatOf(template);
  const rule = toolRule(wish(), format.rules.callForm, undefined);

  test('come in the syntax of the family, whose markers are its special tokens and no text', async () => {
    assert.equal(rule?.form, form);
    const ebnf = ebnfOf(format, rule);
    assert(await accepts(ebnf, tokensOf(answer)));
    assert(!(await accepts(ebnf, [...new TextEncoder().encode(answer)])), 'the names written out');
    const [first = 0] = tokensOf(answer);
    if (first < FIRST) return;
    const words = new Uint32Array(Math.ceil(VOCAB_SIZE / 32));
    const matcher = await open(ebnf);
    await matcher.fill(words);
    const allowed = Array.from({ length: VOCAB_SIZE }, (_, id) => id).filter(
      (id) => (((words[id >> 5] ?? 0) >>> (id & 31)) & 1) === 1,
    );
    assert.deepEqual(allowed, form === 'llama3_json' ? ['{'.charCodeAt(0), first] : [first]);
  });

  test('are read by the parser', () => {
    const parser = format.parser({
      enforced: rule?.form,
      tools: new Map([
        ['tide', {}],
        ['now', {}],
      ]),
      hasTools: true,
      isParallel: true,
      prefix: '',
      newId: () => 'x'.repeat(16),
    });
    const { calls, content } = joined([...parser!.push(answer), ...parser!.end()]);
    assert.deepEqual(
      calls.map(([name, json]): unknown[] => [name, JSON.parse(json)]),
      [['tide', { a: 1 }], ...(isParallel ? [['now', {}]] : [])],
    );
    assert.equal(content, '');
  });

  test('come alone, or in a text, or with one that follows a rule', async () => {
    const strict = toolRule(
      wish({
        choice: 'auto',
        tools: wish().tools.map((one) => ({ ...one, function: { ...one.function, strict: true } })),
      }),
      format.rules.callForm,
      undefined,
    );
    const final = form === 'harmony' ? '<|channel|>final<|message|>' : '';
    const free = ebnfOf(format, strict);
    for (const text of [answer, `${final}No < yes é.`]) assert(await accepts(free, tokensOf(text)), text);
    assert(!(await accepts(free, tokensOf(answer.replace('1', '"1"')))), 'arguments of another type');
    const stated = { kind: 'json_object', param: 'response_format' } as const;
    const either = ebnfOf(format, toolRule(wish({ choice: 'auto' }), format.rules.callForm, stated));
    for (const text of [answer, `${final}{"b": 2}`]) assert(await accepts(either, tokensOf(text)), text);
    assert(!(await accepts(either, tokensOf(`${final}No`))));
  });

  test('are text where their markers are no special tokens', async () => {
    const plain = new OutputFormat(format.choice);
    const loaded = await XGrammar.load(tokenTable(texts(false), VOCAB_SIZE));
    const written = form === 'llama3_json' ? answer.replace('<|python_tag|>', '') : answer;
    const matcher = await loaded.start(
      await loaded.compile(ebnfOf(plain, toolRule(wish(), plain.rules.callForm, undefined))),
    );
    assert(tokensOf(written).every((token) => matcher.accept(token)) && matcher.end());
  });
});

describe.each<readonly [FormatChoice['reasoning'], string, string, string]>([
  ['think', '<think>', '</think>', ''],
  ['mistral', '[THINK]', '[/THINK]', ''],
  ['granite', '<think>', 'Here is my response:', ''],
  ['granite', "Here's my thought process:", '</think>', ''],
  ['gemma4', '<|channel>thought\n', '<channel|>', ''],
  ['harmony', '<|channel|>analysis<|message|>', '<|end|><|start|>assistant', '<|channel|>final<|message|>'],
])('reasoning of %s between %s and %s', (reasoning, begin, end, final) => {
  const tools = reasoning === 'harmony' ? reasoning : undefined;
  const format = new OutputFormat({ tools, reasoning, responseTemplate: undefined }, added, names);
  const rule = { kind: 'json_object', param: 'x' } as const;

  test('comes before an answer, or not', async () => {
    const ebnf = ebnfOf(format, rule);
    for (const text of [`${begin}A < b\n${end}\n${final}{"a": 1}`, `${begin}${end}${final}{}`, `${final}{}`])
      assert(await accepts(ebnf, tokensOf(text)), text);
    for (const text of [
      '',
      `${begin}{}`,
      `${begin}a${end}`,
      `${begin}a${end}${begin}${end}${final}{}`,
      `a${end}${final}{}`,
    ])
      assert(!(await accepts(ebnf, tokensOf(text))), text);
  });

  test.runIf(reasoning !== 'harmony')(
    'ends first where the answer begins within it, and is over where the prompt closes it',
    async () => {
      const opened = ebnfOf(format, rule, begin);
      assert(await accepts(opened, tokensOf(`so${end}\n\n{}`)));
      assert(!(await accepts(opened, tokensOf('{}'))));
      for (const prefix of [end, `${begin}\n\n${end}\n\n`, `${begin}${end}The`, 'The']) {
        const closed = ebnfOf(format, rule, prefix);
        assert(await accepts(closed, tokensOf('{}')), prefix);
        assert(!(await accepts(closed, tokensOf(`${begin}a${end}{}`))), prefix);
      }
    },
  );
});

test('reasoning that an end token closes comes before no rule, and refuses one where it is open', async () => {
  const ends = { all: NAMES, ends: ['</think>'] };
  const format = new OutputFormat({ tools: undefined, reasoning: 'think', responseTemplate: undefined }, added, ends);
  const rule = { kind: 'json_object', param: 'x' } as const;
  assert(!(await accepts(ebnfOf(format, rule), tokensOf('<think></think>{}'))));
  expect(() => format.rules.frame('<think>')).toThrow(/turn the reasoning off/);
});

test('a form that has an end token is not used', () => {
  const ended = new OutputFormat(
    chooseFormat('<|channel|><|message|>', undefined, { tools: 'auto', reasoning: 'auto' }),
    added,
    { all: NAMES, ends: ['<|message|>'] },
  );
  assert.equal(ended.rules.callForm, undefined);
});

test('the special tokens of a grammar are those of the vocabulary of its matcher', () => {
  const config = {
    eos_token: '<e>',
    additional_special_tokens: ['<f>'],
    added_tokens_decoder: { 4: { special: true } },
  };
  const tokens = ['<a>', '<e>', '<f>', '<b>', '<g>', '<h>'].map((content, id) => ({ id, content, special: id === 5 }));
  assert.deepEqual(
    tokens.filter(isSpecialToken(config)).map(({ content }) => content),
    ['<e>', '<f>', '<g>', '<h>'],
  );
});

/** Rules that allow as much as rules can. */
const plainRules: readonly (readonly [TextRule, string])[] = [
  [{ kind: 'regex', param: 'x', pattern: '[\\s\\S]*' }, 'a <think> \u{10ffff}\u{f8}\u{f9} é [TOOL_CALLS]'],
  [{ kind: 'regex', param: 'x', pattern: '[^a]{0,4000}' }, '<|im_end|> \u{f8}<think>\u{f9}'],
  [
    { kind: 'grammar', param: 'x', text: 'root ::= [^\\n]* "\\u00f8" [\\u0080-\\u00ff]*' },
    'é<think>\u{f8}\u{f8}\u{f9}',
  ],
  [{ kind: 'json_object', param: 'x' }, '{"<think>": ["\u{f8}[ARGS]\u{f9}", "<|end|>", {"é\\u00f8": -1.5e3}]}'],
  [
    {
      kind: 'json_schema',
      param: 'x',
      schema: '{"type":"object","properties":{"a":{"type":"string","maxLength":900}}}',
    },
    '{"a": "\u{f8}</think>\u{f9} <|call|>"}',
  ],
  [{ kind: 'choice', param: 'x', texts: ['[THINK]', '\u{f8}<think>\u{f9}', '日本'] }, '\u{f8}<think>\u{f9}'],
];

test.each(plainRules)('no text of a rule has a special token anywhere: %j', async (rule, text) => {
  const matcher = await open(ruleEbnf(rule));
  const words = new Uint32Array(Math.ceil(VOCAB_SIZE / 32));
  for (const byte of [undefined, ...new TextEncoder().encode(text)]) {
    if (byte !== undefined) assert(matcher.accept(byte), `byte ${byte}`);
    await matcher.fill(words);
    for (let id = 0xf8; id < VOCAB_SIZE; id++)
      assert.equal(((words[id >> 5] ?? 0) >>> (id & 31)) & 1, 0, `token ${id} in ${JSON.stringify(text)}`);
    for (const { id } of added) assert(!matcher.accept(id));
  }
  assert(matcher.end(), 'the text is whole');
});

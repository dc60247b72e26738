/**
 * Tokenizers and chat templates of the families that are served, against the reference's own: ids, text, streams of it, renders.
 * Budget: 30 s.
 */
import assert from 'node:assert/strict';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { DecodedStream } from './decoded_stream.ts';
import { readTextFiles } from '../../shared/model/text_files.ts';
import { ChatRenderer } from '../../shared/text/chat_renderer.ts';
import { ChatTemplate } from '../../shared/text/template/chat_template.ts';
import { TokenTexts } from '../../shared/text/token_texts.ts';
import { TokenizerTools } from '../../shared/text/tokenizer_tools.ts';
import { goldenFolder } from '../support/golden.ts';

interface TextCase {
  readonly text: string;
  readonly ids: number[];
  readonly ids_special: number[];
  readonly decoded: string;
  readonly decoded_skip: string;
}

const ENOUGH = 1e6;
const kinds = readdirSync(goldenFolder('tokenizers'));
/** Tokenizers whose library renders byte runs that form no character differently from the reference. */
const byteFallback = ['llama2', 'phi3', 'gemma'];

describe.each(kinds)('%s', (kind) => {
  const folder = goldenFolder(`tokenizers/${kind}`);
  const tools = new TokenizerTools(readTextFiles(folder));
  const golden = JSON.parse(readFileSync(join(folder, 'golden.json'), 'utf8')) as {
    cases: TextCase[];
    decode: Omit<TextCase, 'text'>[];
  };
  const decode = (ids: readonly number[], skipSpecialTokens: boolean): string =>
    tools.decode({ lists: [ids], skipSpecialTokens })[0]!;

  test('ids are those of the reference', () => {
    for (const { text, ids, ids_special: withSpecial } of golden.cases) {
      const encode = (addSpecialTokens: boolean): number[] => [
        ...tools.encode({ text, addSpecialTokens, maxCharacters: ENOUGH }),
      ];
      // A model is always given a token to go on from.
      if (ids.length > 0) assert.deepEqual(encode(false), ids, JSON.stringify(text));
      if (withSpecial.length > 0) assert.deepEqual(encode(true), withSpecial, JSON.stringify(text));
    }
  });

  test('text is that of the reference', () => {
    const known: string[] = [];
    for (const { ids, decoded, decoded_skip: skipped } of [...golden.cases, ...golden.decode]) {
      if (decode(ids, false) !== decoded || decode(ids, true) !== skipped) known.push(JSON.stringify(decoded));
    }
    const isKnown = byteFallback.includes(kind) && known.every((text) => text.includes('\uFFFD'));
    assert(known.length === 0 || isKnown, known.join('\n'));
  });

  test('the table of the vocabulary has the texts that decoding has, and leaves only added tokens and the like open', () => {
    const asked: number[] = [];
    const { texts, numTokens } = tableOf(tools, (id) => void asked.push(id));
    let numPlain = 0;
    for (let id = 0; id < numTokens; id++) {
      const [plain, own] = [texts.plainText(id), tools.plainText(id)];
      if (plain !== undefined) assert.equal(plain, own, `token ${id}`);
      else if (texts.partOf(id) !== undefined) assert.equal(own, undefined, `token ${id}`);
      if (plain !== undefined) numPlain++;
    }
    const isAdded = (id: number): boolean => tools.tokenBytes([id])[0]?.isAdded === true;
    assert.deepEqual(
      asked.filter((id) => tools.plainText(id) !== undefined && !isAdded(id)),
      [],
      'left open',
    );
    assert(numPlain > numTokens / 2, `${numPlain} of ${numTokens}`);
  });

  test.each(['the tokenizer', 'a table'])(
    'a stream has the text that its tokens have together, whatever they begin after, with texts of %s',
    async (of) => {
      const { texts: table } = tableOf(tools, () => undefined);
      const codec = {
        decode: (lists: readonly (readonly number[])[], skipSpecialTokens: boolean) =>
          Promise.resolve(tools.decode({ lists, skipSpecialTokens })),
        plainText: (id: number) => (of === 'a table' ? table : tools).plainText(id),
        partOf: (id: number) => (of === 'a table' ? table.partOf(id) : undefined),
      };
      for (const { ids } of golden.cases) {
        for (const numPrompt of [0, 1, Math.floor(ids.length / 2)]) {
          const prompt = ids.slice(0, numPrompt);
          const options = { stops: [], isStopIncluded: false, isSkippingSpecial: true };
          const stream = new DecodedStream(codec, Uint32Array.from(prompt), options);
          let text = '';
          for (const id of ids.slice(numPrompt)) text += await stream.push(id, false);
          text += await stream.flush(false);
          const before = numPrompt > 0 ? decode(prompt, true) : '';
          // A character that is cut by the prompt's end is nobody's.
          if (before.endsWith('\uFFFD')) continue;
          assert.equal(text, decode(ids, true).slice(before.length), `${numPrompt} of ${JSON.stringify(ids)}`);
        }
      }
    },
  );
});

/** The table of a tokenizer's texts, and the tokens in it; `asked` is told of tokens that it leaves open. */
function tableOf(tools: TokenizerTools, asked: (id: number) => void): { texts: TokenTexts; numTokens: number } {
  const texts = new TokenTexts((id) => {
    asked(id);
    return undefined;
  });
  let numTokens = 0;
  for (let isLast = false; !isLast;) {
    const slice = tools.textsOf(numTokens);
    texts.add(slice);
    numTokens += slice.kinds.length;
    ({ isLast } = slice);
  }
  return { texts, numTokens };
}

interface Render {
  readonly template: string;
  readonly messages: readonly {
    readonly content?: string;
    readonly tool_calls?: readonly { readonly function: { readonly name: string } }[];
  }[];
  readonly add_generation_prompt: boolean;
  readonly rendered?: string;
  readonly error?: string;
}

const folders: string[] = [];
afterEach(() => {
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true });
});

/** A tokenizer with a template. */
function folderWith(config: Readonly<Record<string, unknown>>, files: Readonly<Record<string, string>> = {}): string {
  const folder = mkdtempSync(join(tmpdir(), 'template-'));
  folders.push(folder);
  cpSync(goldenFolder('tokenizers/gpt2'), folder, { recursive: true });
  writeFileSync(join(folder, 'tokenizer_config.json'), JSON.stringify({ tokenizer_class: 'GPT2Tokenizer', ...config }));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
  return folder;
}

/** Ids of what the template makes. */
function rendered(
  tools: TokenizerTools,
  { messages, add_generation_prompt, ...kwargs }: Omit<Render, 'template'>,
): Uint32Array {
  const template = {
    messages: messages as Record<string, unknown>[],
    addGenerationPrompt: add_generation_prompt,
    continueFinalMessage: false,
    addSpecialTokens: false,
    kwargs,
  };
  return tools.chatPrompt({ template, maxCharacters: ENOUGH }).ids;
}

function idsOf(tools: TokenizerTools, text: string): Uint32Array {
  return tools.encode({ text, addSpecialTokens: false, maxCharacters: ENOUGH });
}

/** Whether a prompt has the texts of all messages; reasoning of turns that are over may be left out. */
function hasAll(prompt: string, messages: Render['messages']): boolean {
  return messages.every(({ content = '', tool_calls: calls = [] }) => {
    const said = content.replace(/<think>[^]*<\/think>/, '').trim();
    return prompt.includes(said) && calls.every(({ function: { name } }) => prompt.includes(`"${name}"`));
  });
}

test('chat templates render as the reference does, with tools and variables, and no message is lost', () => {
  const golden = JSON.parse(readFileSync(join(goldenFolder('templates'), 'golden.json'), 'utf8')) as Render[];
  const tools = new Map<string, TokenizerTools>();
  let numSpelled = 0;
  for (const { template, rendered: want, error, ...input } of golden) {
    const source = readFileSync(join(goldenFolder('templates'), `${template}.jinja`), 'utf8');
    const own = tools.get(template) ?? new TokenizerTools(readTextFiles(folderWith({ chat_template: source })));
    tools.set(template, own);
    if (template === 'controls') {
      // It shows statements, leaves messages out by number, and is nobody's chat template.
      const text = new ChatTemplate(source, () => new Date()).render({ ...input });
      assert.equal(text, want);
      continue;
    }
    if (want !== undefined && hasAll(want, input.messages)) {
      assert.deepEqual(rendered(own, input), idsOf(own, want));
      continue;
    }
    // Messages that the template refuses, or leaves out, are spelled so that it takes them, or are refused.
    numSpelled++;
    let text: string;
    try {
      text = own.detokenize(rendered(own, input));
    } catch (failure) {
      expect(String(failure)).toContain(error);
      continue;
    }
    assert(hasAll(text, input.messages), `${template}: ${text} lacks a text of ${JSON.stringify(input.messages)}`);
  }
  expect(golden).toHaveLength(144);
  expect(numSpelled).toBeGreaterThan(10);
});

const messages = [{ role: 'user', content: 'x' }];
const NO_PARSERS = { tools: 'auto', reasoning: 'auto' } as const;

test('a template lies in the configuration, in a list of named ones, or in a file of its own', () => {
  const named = [
    { name: 'tool_use', template: 'tools' },
    { name: 'default', template: 'by name' },
  ];
  for (const [config, files, want] of [
    [{ chat_template: 'by itself' }, {}, 'by itself'],
    [{ chat_template: named }, {}, 'by name'],
    [{}, { 'chat_template.jinja': 'in a file' }, 'in a file'],
  ] as const) {
    const tools = new TokenizerTools(readTextFiles(folderWith(config, files)));
    assert.deepEqual(rendered(tools, { messages, add_generation_prompt: true }), idsOf(tools, want));
  }
  // Files by name, next to a usual one that is in its own file, in the configuration, or in a list there.
  for (const [config, files] of [
    [{}, { 'chat_template.jinja': 'usual' }],
    [{ chat_template: 'usual' }, {}],
    [
      {
        chat_template: [
          { name: 'default', template: 'usual' },
          { name: 'tool_use', template: 'old' },
        ],
      },
      {},
    ],
  ] as const) {
    const folder = folderWith(config, files);
    mkdirSync(join(folder, 'additional_chat_templates'));
    writeFileSync(join(folder, 'additional_chat_templates', 'tool_use.jinja'), 'for tools');
    const own = new ChatRenderer(
      JSON.parse(readTextFiles(folder).config) as Record<string, unknown>,
      undefined,
      NO_PARSERS,
    );
    const input = { messages, addGenerationPrompt: true, continueFinalMessage: false, addSpecialTokens: false };
    assert.equal(own.render({ ...input, kwargs: {} }).text, 'usual');
    const tool = { type: 'function', function: { name: 'tide' } } as const;
    assert.equal(own.render({ ...input, kwargs: {}, tools: [tool] }).text, 'for tools');
  }
  const none = new TokenizerTools(readTextFiles(folderWith({})));
  expect(() => rendered(none, { messages, add_generation_prompt: true })).toThrow(/this model has no chat template/);
});

test('a template that loops is stopped, and the next request is served', () => {
  const loop = '{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}';
  const source = `{% if messages[0].content == 'loop' %}${loop}{% endif %}done`;
  const tools = new TokenizerTools(readTextFiles(folderWith({ chat_template: source })));
  const input = { messages: [{ role: 'user', content: 'loop' }], add_generation_prompt: true };
  expect(() => rendered(tools, input)).toThrow(/the chat template loops: it is not done after 8,000,000 steps/);
  assert.deepEqual(rendered(tools, { messages, add_generation_prompt: true }), idsOf(tools, 'done'));
});

/** Tokens to text, delta by delta. Runs the real tokenizer thread of the harbour model. Budget: 5 s. */
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, test } from 'vitest';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { readTextFiles } from '../../shared/model/text_files.ts';
import { answerEnds } from '../../shared/text/output/end_tokens.ts';
import { chooseFormat } from '../../shared/text/output/output_format.ts';
import { endOfTurn } from '../../shared/text/end_of_turn.ts';
import { SLICE_TOKENS } from '../../shared/text/token_texts.ts';
import { TextCodec } from '../../shared/text/text.ts';
import { until } from '../support/until.ts';
import { DecodedStream, unknownTexts, type StreamCodec } from './decoded_stream.ts';
import { TokenizerTools } from '../../shared/text/tokenizer_tools.ts';
import { goldenFolder } from '../support/golden.ts';
import { harbour } from '../support/cluster.ts';

const never = new AbortController();
const NO_PROMPT = new Uint32Array(0);
let codec: TextCodec;
beforeAll(async () => {
  codec = await TextCodec.open(await openModel(harbour), 2_048, workerThreads, assert.fail);
});
afterAll(async () => {
  await codec.close();
});

async function deltas(text: string, stops: string[]): Promise<{ deltas: string[]; isStopped: boolean }> {
  const stream = new DecodedStream(codec, NO_PROMPT, { stops, isStopIncluded: false, isSkippingSpecial: true });
  const out: string[] = [];
  for (const token of await codec.encode(text, false, never)) out.push(await stream.push(token, true));
  out.push(await stream.flush(true));
  return { deltas: out, isStopped: stream.stop !== undefined };
}

test('deltas join to the text, and none is half a character', async () => {
  for (const text of ['The Heron came in at 5:07.', 'Zoë’s naïve café 東京 🚢⚓ done', '  spaces   and\n\nlines ']) {
    const { deltas: out } = await deltas(text, []);
    assert.equal(out.join(''), text);
    assert(out.every((delta) => !delta.includes('\uFFFD')));
  }
});

test('a stop string cuts the text before it, wherever tokens split it', async () => {
  const text = 'one two three four five';
  for (let start = 1; start < text.length - 1; start++) {
    for (const length of [1, 3, 6]) {
      const stop = text.slice(start, start + length);
      const { deltas: out, isStopped } = await deltas(text, [stop, 'never there']);
      assert.equal(out.join(''), text.slice(0, text.indexOf(stop)), `stop ${JSON.stringify(stop)}`);
      assert(isStopped);
    }
  }
});

test('what could still become a stop string is held back until it cannot', async () => {
  const { deltas: out } = await deltas('ends with thr', ['three']);
  assert.equal(out.join(''), 'ends with thr');
  assert(out.at(-1)?.endsWith('thr'), 'the last delta brings what was held');
});

test('of special tokens, those that a parser looks for are visible, and the others are not', async () => {
  const [begin = 0, turn = 0] = await codec.encode('<|endoftext|><|im_start|>', false, never);
  const ids = [
    begin,
    ...(await codec.encode('one', false, never)),
    turn,
    ...(await codec.encode(' two', false, never)),
  ];
  const play = async (hiddenTokens: ReadonlySet<number> | undefined): Promise<string> => {
    const options = { stops: [], isStopIncluded: false, isSkippingSpecial: true, hiddenTokens };
    const stream = new DecodedStream(codec, Uint32Array.of(begin), options);
    let text = '';
    for (const id of ids) text += await stream.push(id, true);
    return text + (await stream.flush(true));
  };
  assert.equal(await play(undefined), 'one two');
  assert.equal(await play(new Set([begin])), 'one<|im_start|> two');
  assert.equal(await play(new Set([begin, turn])), 'one two');
});

test('a folder without a tokenizer serves token ids only, and says so', async () => {
  const none = await TextCodec.open(await openModel(goldenFolder('llama-tied')), 512, workerThreads, assert.fail);
  assert.equal(none.hasTokenizer, false);
  assert.deepEqual(await none.decode([[1, 2]], true), ['']);
  await assert.rejects(none.encode('x', true, never), /no tokenizer/);
});

test('text that cannot fit the context is refused before it is tokenised', async () => {
  await assert.rejects(codec.encode('x'.repeat(30_000), true, never), /30000 characters; no more than 26624 can fit/);
});

test('tokens without text cost no more the more there are, and what comes after them is right', async () => {
  const [special = 0] = await codec.encode('', true, never);
  const counted = { numIds: 0, numCalls: 0 };
  const counting: StreamCodec = {
    ...unknownTexts,
    decode: (lists: readonly (readonly number[])[], skip: boolean) => {
      counted.numCalls++;
      for (const list of lists) counted.numIds += list.length;
      return codec.decode(lists, skip);
    },
  };
  const stream = new DecodedStream(counting, NO_PROMPT, { stops: [], isStopIncluded: false, isSkippingSpecial: true });
  for (let i = 0; i < 500; i++) assert.equal(await stream.push(special, true), '');
  assert(counted.numIds < 500 * 40, `${counted.numIds} ids were decoded for 500 tokens`);
  let text = '';
  for (const token of await codec.encode('after them', false, never)) text += await stream.push(token, true);
  assert.equal(text + (await stream.flush(true)), 'after them');
});

test('a stop string may stay in the text; one in the first min_tokens does not count; which one it was is known', async () => {
  const ids = await codec.encode('one two one three', false, never);
  const play = async (isStopIncluded: boolean, minTokens: number): Promise<[string, string | undefined]> => {
    const stream = new DecodedStream(codec, NO_PROMPT, {
      stops: ['three', 'one'],
      isStopIncluded,
      isSkippingSpecial: true,
    });
    let text = '';
    for (const [i, id] of ids.entries()) text += await stream.push(id, i + 1 > minTokens);
    return [text + (await stream.flush(true)), stream.stop];
  };
  assert.deepEqual(await play(false, 0), ['', 'one']);
  assert.deepEqual(await play(true, 0), ['one', 'one']);
  const first = (await codec.encode('one', false, never)).length;
  assert.deepEqual(await play(false, first), ['one two ', 'one']);
});

test('calls of a client that left are not begun', async () => {
  const client = new AbortController();
  const long = 'ab'.repeat(13_000);
  const calls = Array.from({ length: 40 }, () =>
    codec.tokenize({ text: long, template: undefined, hasSpecialTokens: false, hasStrings: false }, client).then(
      () => 'done',
      () => 'dropped',
    ),
  );
  client.abort();
  const outcomes = await Promise.all(calls);
  assert(outcomes.filter((outcome) => outcome === 'dropped').length >= 30, outcomes.join());
});

test('of 5,000 different stop strings each still ends its text (P1: the oldest tables go)', async () => {
  const spelling = {
    ...unknownTexts,
    decode: (lists: readonly (readonly number[])[]) =>
      Promise.resolve(lists.map((ids) => String.fromCharCode(...ids.map((id) => 97 + id)))),
  };
  for (let i = 0; i < 5_000; i++) {
    const digits = Array.from(String(i), Number);
    const stop = String.fromCharCode(...digits.map((digit) => 97 + digit));
    const stream = new DecodedStream(spelling, NO_PROMPT, {
      stops: [stop],
      isStopIncluded: false,
      isSkippingSpecial: true,
    });
    let text = '';
    for (const digit of digits) text += await stream.push(digit, true);
    assert.deepEqual([text, stream.stop], ['', stop]);
  }
});

test('tokens whose text is plain ask the tokenizer once, and the text is the same', async () => {
  const streamed = async (ids: Uint32Array, isPlain: boolean): Promise<{ text: string; numCalls: number }> => {
    let numCalls = 0;
    const counting: StreamCodec = {
      plainText: (id) => (isPlain ? codec.plainText(id) : undefined),
      partOf: (id) => (isPlain ? codec.partOf(id) : undefined),
      decode: (lists, skip) => {
        numCalls++;
        return codec.decode(lists, skip);
      },
    };
    const stream = new DecodedStream(counting, NO_PROMPT, {
      stops: [],
      isStopIncluded: false,
      isSkippingSpecial: true,
    });
    let text = '';
    for (const id of ids) text += await stream.push(id, true);
    return { text: text + (await stream.flush(true)), numCalls };
  };
  const plain = 'the heron keeps the code of the locker. ';
  for (const words of [plain, `${plain}Zoë’s naïve café 🚢 it's done, isn't it? `]) {
    const text = words.repeat(12);
    const ids = await codec.encode(text, false, never);
    assert.equal((await streamed(ids, true)).text, text);
    const again = await streamed(ids, true);
    assert.equal(again.text, text);
    assert(again.numCalls < (words === plain ? 3 : ids.length / 2), `${again.numCalls} calls for ${ids.length} tokens`);
    assert.deepEqual(await streamed(ids, false), { text, numCalls: ids.length });
  }
});

test('a token that only the configuration calls special is left out, also where the table has its bytes', () => {
  const { tokenizer, config } = readTextFiles(harbour);
  const { model } = JSON.parse(tokenizer) as { model: { vocab: Record<string, number> } };
  const [name, id] = Object.entries(model.vocab).find(([token]) => /^[a-z]{3,}$/.test(token)) ?? ['', 0];
  const kindOf = (special: unknown): number | undefined => {
    const asked = JSON.stringify({ ...(JSON.parse(config) as object), additional_special_tokens: special });
    const from = SLICE_TOKENS * Math.floor(id / SLICE_TOKENS);
    return new TokenizerTools({ tokenizer, config: asked, template: undefined }).textsOf(from).kinds[id - from];
  };
  assert.deepEqual([kindOf([]), kindOf(null), kindOf([name])], [1, 1, 0]);
});

test('after a whole word no text takes the tokenizer, half characters neither, but the last one that stays half', async () => {
  const [prompt, text] = ['what the heron keeps', ' is Zoë’s café 🚢, 中文 and 👩‍👩‍👧: '];
  const before = await codec.encode(prompt, false, never);
  const ids = await codec.encode(text.repeat(20), false, never);
  const flag = await codec.encode('🚢', false, never);
  await until('the table is there', () => codec.partOf(flag.at(-1) ?? 0) !== undefined);
  const numCalls = { decode: 0 };
  const counting: StreamCodec = {
    plainText: (id) => codec.plainText(id),
    partOf: (id) => codec.partOf(id),
    decode: (lists, skip) => {
      numCalls.decode++;
      return codec.decode(lists, skip);
    },
  };
  const options = { stops: [], isStopIncluded: false, isSkippingSpecial: true };
  const stream = new DecodedStream(counting, before, options);
  let streamed = '';
  for (const id of ids) streamed += await stream.push(id, true);
  assert.equal(streamed, text.repeat(20));
  assert.equal(numCalls.decode, 0);
  assert.equal(await stream.push(flag[0] ?? 0, true), '');
  assert.deepEqual([await stream.flush(true), numCalls.decode], ['\uFFFD', 1]);
});

/** The shipped tokenizer with another configuration and template. */
function toolsWith(config: object, template?: string): TokenizerTools {
  const { tokenizer } = readTextFiles(harbour);
  return new TokenizerTools({ tokenizer, config: JSON.stringify(config), template });
}

test('tokens that end an answer: the tokenizer’s, as a text or an object, and the one that ends a turn of the template', () => {
  const ends = (config: object, template?: string): string[] => {
    const tools = toolsWith(config, template);
    return tools.endTokens().map((id) => tools.detokenize(Uint32Array.of(id)));
  };
  assert.deepEqual(ends({}), []);
  assert.deepEqual(ends({ eos_token: '<|im_end|>' }), ['<|im_end|>']);
  assert.deepEqual(ends({ eos_token: { content: '<|endoftext|>', lstrip: false } }), ['<|endoftext|>']);
  const turns = (end: string): string =>
    `{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}${end}{% endfor %}`;
  assert.deepEqual(ends({ eos_token: '<|endoftext|>' }, turns('<|im_end|>\n')), ['<|endoftext|>', '<|im_end|>']);
  assert.deepEqual(ends({ eos_token: '<|im_end|>' }, turns(' <|im_end|>')), ['<|im_end|>'], 'once');
  assert.deepEqual(ends({}, turns('</s>')), [], 'a text that is no special token');
  assert.deepEqual(ends({}, turns('')), []);
  assert.deepEqual(ends({}, "{{ raise_exception('no chats') }}"), []);
  const open = turns('{% if not loop.last %}<|im_end|>{% endif %}');
  assert.deepEqual(ends({}, open), ['<|im_end|>'], 'a last answer is left open');
  const asked = "{% if messages[-1].role != 'user' %}{{ raise_exception('ask') }}{% endif %}";
  assert.deepEqual(ends({}, asked + turns('<|im_end|>\n')), ['<|im_end|>'], 'a question comes last');
  const told = "{% if messages[0].role != 'system' %}{{ raise_exception('tell') }}{% endif %}";
  assert.deepEqual(ends({}, told + turns('<|im_end|>\n')), ['<|im_end|>'], 'a system message comes first');
});

test('an answer of gpt-oss ends with its last message, not with each', () => {
  const contents = ['<|return|>', '<|end|>', '<|call|>', '<|endoftext|>'];
  const tokens = contents.map((content, i) => ({ id: 10 + i, content }));
  // Its published template ends the last answer with <|return|> and earlier ones with <|end|>; others have <|end|> everywhere.
  const render =
    (last: string) =>
    (chat: readonly Readonly<Record<string, unknown>>[]): string =>
      chat
        .map(({ role, content }, i) =>
          role === 'assistant'
            ? `<|start|>assistant<|channel|>final<|message|>${String(content)}${i === chat.length - 1 ? last : '<|end|>'}`
            : `<|start|>${String(role)}<|message|>${String(content)}<|end|>`,
        )
        .join('');
  const ends = (last: string, template: string): (string | undefined)[] => {
    const found = endOfTurn(tokens, render(last) as never);
    const choice = chooseFormat(template, undefined, { tools: 'auto', reasoning: 'auto' });
    const ids = answerEnds([10, 13, 12, ...(found ? [found.id] : [])], choice, tokens);
    return ids.map((id) => tokens.find((one) => one.id === id)?.content);
  };
  const harmony = '<|start|>assistant<|channel|>analysis<|message|>';
  assert.deepEqual(ends('<|return|>', harmony), ['<|return|>', '<|endoftext|>', '<|call|>']);
  assert.deepEqual(ends('<|end|>', harmony), ['<|return|>', '<|endoftext|>', '<|call|>']);
  assert.deepEqual(ends('<|end|>', '<|assistant|>'), ['<|return|>', '<|endoftext|>', '<|call|>', '<|end|>']);
});

test('a template that cannot be read refuses chats with its error, and nothing else', () => {
  const tools = toolsWith({}, '{% for %}');
  assert.match(tools.templateError() ?? '', /./);
  const chat = (): Uint32Array => encodeChat(tools, [{ role: 'user', content: 'x' }]);
  assert.throws(chat, /the chat template of this model cannot be read \(.+\): use \/v1\/completions/);
  assert(tools.encode({ text: 'Locker', addSpecialTokens: true, maxCharacters: 100 }).length > 0);
});

function encodeChat(tools: TokenizerTools, messages: readonly Record<string, unknown>[]): Uint32Array {
  const input = {
    messages,
    addGenerationPrompt: false,
    continueFinalMessage: false,
    addSpecialTokens: false,
    kwargs: {},
  };
  return tools.chatPrompt({ template: input, maxCharacters: 10_000 }).ids;
}

test('arguments of calls reach a template as Python reads them: exact integers, floats, keys in their order', () => {
  const tools = toolsWith({}, '{{ messages[0].tool_calls[0].function.arguments|tojson }}');
  const printed = (given: unknown): string =>
    tools.detokenize(
      encodeChat(tools, [
        { role: 'assistant', tool_calls: [{ type: 'function', function: { name: 'f', arguments: given } }] },
      ]),
    );
  assert.equal(printed('{"id": 1234567890123456789, "x": 1.0}'), '{"id": 1234567890123456789, "x": 1.0}');
  assert.equal(
    printed(' {"b":1e2,"2":[-0,{"a\\n\\"":null}],"1":true,"b":-2.50} '),
    '{"b": -2.5, "2": [0, {"a\\n\\"": null}], "1": true}',
  );
  assert.equal(printed('[]'), '[]');
  assert.equal(printed('not json'), '"not json"');
  const deep = `${'['.repeat(65)}${']'.repeat(65)}`;
  assert.equal(printed(deep), JSON.stringify(deep));
  assert.equal(printed({ b: 1 }), '{"b": 1}');
  // Spellings that clients use for no arguments.
  for (const none of ['', 'null', '  \n', null, undefined, {}, '{}']) assert.equal(printed(none), '{}');
});

test('`developer` reaches a template that names it; others get `system`', () => {
  const renders = (template: string): string => {
    const tools = toolsWith({}, template);
    return tools.detokenize(encodeChat(tools, [{ role: 'developer', content: 'x' }]));
  };
  assert.equal(renders('{{ messages[0].role }}'), 'system');
  assert.equal(renders("{% if messages[0].role == 'developer' %}known{% endif %}"), 'known');
  assert.equal(
    renders("{# for 'developer's #}{% if true %}a 'developer' is {% endif %}{{ messages[0].role }}"),
    "a 'developer' is system",
  );
});

test('no letter and no space of an answer is lost, whatever clean_up_tokenization_spaces says', () => {
  for (const cleans of [true, false, undefined]) {
    const tools = toolsWith({ clean_up_tokenization_spaces: cleans });
    for (const text of ["say 'seven' now", 'git add . && ls', 'x = .5', 'a != b', " do not n't 's ' m ?"]) {
      const ids = tools.encode({ text, addSpecialTokens: false, maxCharacters: 100 });
      assert.equal(tools.detokenize(ids), text);
      assert.deepEqual(tools.decode({ lists: [[...ids]], skipSpecialTokens: true }), [text]);
    }
  }
});

test('a model folder without tokenizer_config.json has a tokenizer', () => {
  const folder = mkdtempSync(join(tmpdir(), 'texts-'));
  try {
    cpSync(join(harbour, 'tokenizer.json'), join(folder, 'tokenizer.json'));
    assert(new TokenizerTools(readTextFiles(folder)).longestToken() > 1);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('where a token begins is counted in characters, those that are not whole yet left out', async () => {
  const stream = new DecodedStream(codec, NO_PROMPT, { stops: ['zz'], isStopIncluded: false, isSkippingSpecial: true });
  const begins: number[] = [];
  const text = 'a 🙂 b';
  for (const token of await codec.encode(text, false, never)) {
    begins.push(stream.numCharacters);
    await stream.push(token, true);
  }
  assert.equal(stream.numCharacters, Array.from(text).length);
  assert.deepEqual(
    begins,
    [...begins].sort((a, b) => a - b),
  );
  assert(begins.includes(2), 'the first part of the character');
});

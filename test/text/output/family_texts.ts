/** Texts of each family of tool calls: how it writes calls, and what is none. */
import type { ToolFamily } from '../../../shared/text/output/tool_families.ts';
import type { Parsed } from './support.ts';

type Arguments = Readonly<Record<string, unknown>>;
/** A call: a tool's name and its arguments. */
export type Call = readonly [name: string, values: Arguments];

/** How a family writes calls, and texts of its own. */
export interface Family {
  readonly write: (calls: readonly Call[]) => string;
  /** Text before calls, where the format lets them begin anywhere or at a line only. */
  readonly before: string;
  readonly after: string;
  /** Texts that are no calls, or not wholly. */
  readonly malformed: readonly string[];
  /** Texts of the family alone, with what they are. */
  readonly own?: readonly (readonly [text: string, expected: Partial<Parsed>])[];
  /** Strings that the format cannot have in a text. */
  readonly impossible?: RegExp;
}

const json = (value: unknown): string => JSON.stringify(value);
const object = (name: string, values: Arguments, key = 'arguments'): string =>
  `{"name": ${json(name)}, ${json(key)}: ${json(values)}}`;
const objects = (calls: readonly Call[]): string => calls.map(([name, values]) => object(name, values)).join(', ');

function python(value: unknown): string {
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (Array.isArray(value)) return `[${value.map(python).join(', ')}]`;
  if (typeof value === 'string') return `'${value.replace(/[\\']/g, '\\$&').replaceAll('\n', '\\n')}'`;
  if (typeof value !== 'object') return json(value);
  return `{${Object.entries(value)
    .map(([key, one]) => `${json(key)}: ${python(one)}`)
    .join(', ')}}`;
}
const pythonCall = ([name, values]: Call): string =>
  `${name}(${Object.entries(values)
    .map(([key, value]) => `${key}=${python(value)}`)
    .join(', ')})`;

function gemma(value: unknown): string {
  if (typeof value === 'string') return `<|"|>${value}<|"|>`;
  if (Array.isArray(value)) return `[${value.map(gemma).join(',')}]`;
  if (typeof value !== 'object' || value === null) return json(value);
  return `{${Object.entries(value)
    .map(([key, one]) => `${key}:${gemma(one)}`)
    .join(',')}}`;
}

const plain = (value: unknown): string => (typeof value === 'string' ? value : json(value));

const deepseekMalformed = [
  '<｜tool▁calls▁begin｜>',
  '<｜tool▁calls▁begin｜>no',
  '<｜tool▁call▁begin｜>tide',
  '<｜tool▁call▁begin｜>a b<｜tool▁sep｜>{}',
  '<｜tool▁call▁begin｜>tide<｜tool▁sep｜>[]',
];

/** Calls with tags, as MiniMax and DeepSeek V3.2 write them. */
function tagged(
  calls: readonly Call[],
  around: string,
  prefix = '',
  type: (isText: boolean) => string = () => '',
): string {
  const parameter = ([key, value]: [string, unknown]): string =>
    `<${prefix}parameter name="${key}"${type(typeof value === 'string')}>${plain(value)}</${prefix}parameter>\n`;
  const call = ([name, values]: Call): string =>
    `<${prefix}invoke name="${name}">\n${Object.entries(values).map(parameter).join('')}</${prefix}invoke>\n`;
  return `<${around}>\n${calls.map(call).join('')}</${around}>`;
}

/** Texts of each family. */
export const families: Readonly<Record<ToolFamily, Family>> = {
  hermes: {
    write: (calls) => calls.map((call) => `<tool_call>\n${object(...call)}\n</tool_call>`).join('\n'),
    before: 'Let me look.\n',
    after: '\nDone.',
    malformed: [
      '<tool_call>',
      '<tool_call>no JSON</tool_call>',
      '<tool_call>\n{"name": "tide", "arguments": \n</tool_call>',
      '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
      '<tool_call>{"arguments": {"a": 1}}</tool_call>',
      '<tool_call>{"name": "a b", "arguments": {}}</tool_call>',
      '<tool_call>{"name": "tide", "arguments": [1]}</tool_call>',
      '<tool_call>{"name": "tide", "arguments": {a: 1}}</tool_call>',
      '<tool_call>{"name": "tide"',
      'the tag <tool_call> opens, </tool_call> closes',
    ],
    own: [
      ['<tool_call>{"name": "tide", "arguments": {"a": 1}}', { calls: [['tide', '{"a": 1}']] }],
      ['<tool_call>{"arguments": {"a": {}}, "name": "tide"}</tool_call>', { calls: [['tide', '{"a": {}}']] }],
      ['<tool_call>{"name": "tide", "arguments": "{\\"a\\": 1}"}</tool_call>', { calls: [['tide', '{"a": 1}']] }],
      ['<tool_call>{"name": "tide", "arguments": null}</tool_call>', { calls: [['tide', '{}']] }],
      ['<tool_call>{"name": "tide"}</tool_call>', { calls: [['tide', '{}']] }],
      [
        '<tool_call>{"id": [1, {"x": "}"}], "name": "tide", "arguments": {}, "more": -1.5e3}</tool_call>!',
        { content: '!', calls: [['tide', '{}']] },
      ],
      ['<tool_call>{"name": "tide", "arguments": {"a": "cut o', { calls: [['tide', '{"a": "cut o"}']] }],
      [
        '<tool_call>{"name": "tide", "arguments": {"a": 1}\n</tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>',
        {
          calls: [
            ['tide', '{"a": 1}'],
            ['f', '{}'],
          ],
        },
      ],
      [
        '<tool_call>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        { content: '<tool_call>\n', calls: [['f', '{}']] },
      ],
    ],
  },
  llama3_json: {
    write: (calls) => calls.map(([name, values]) => object(name, values, 'parameters')).join('; '),
    before: 'Let me look.\n',
    after: '\nDone.',
    malformed: [
      '{"name": "Mira", "parameters": {"a": 1}}',
      '{"name": "tide"}',
      '{"name": "tide", "parameters": ',
      '{"code": 9071, "locker": 42}',
      '{"name": "tide", "other": 1, "parameters": {}}',
      'see {"name": "tide", "parameters": {}} there',
      '<|python_tag|>print(1)',
      '[{"a": 1}]',
      '{}',
    ],
    own: [
      ['<|python_tag|>{"name": "other", "parameters": {"a": 1}}', { calls: [['other', '{"a": 1}']] }],
      ['{"type": "function", "name": "tide", "parameters": {}}', { calls: [['tide', '{}']] }],
      [
        '{"name": "tide", "parameters": {}}\n{"name": "tide", "parameters": {}}',
        {
          calls: [
            ['tide', '{}'],
            ['tide', '{}'],
          ],
        },
      ],
    ],
  },
  pythonic: {
    write: (calls) => `[${calls.map(pythonCall).join(', ')}]`,
    before: 'Let me look.\n',
    after: '\nDone.',
    malformed: [
      '[tide(place=old mill)]',
      '[tide("old mill")]',
      '[other(a=1)]',
      '[tide(a=1',
      '[1, 2, 3]',
      'as in [tide(a=1)] here',
      '[tide]',
      '[tide(a=f(1))]',
      '[]',
    ],
    own: [
      ['<|python_start|>[other(a=1)]<|python_end|>', { calls: [['other', '{"a": 1}']] }],
      ['<|tool_call_start|>[other(a="b")]<|tool_call_end|>So.', { content: 'So.', calls: [['other', '{"a": "b"}']] }],
      [
        '<function_calls>\nf(a=1)\ng()\n</function_calls>',
        {
          calls: [
            ['f', '{"a": 1}'],
            ['g', '{}'],
          ],
        },
      ],
      [
        '[tide(a=.5, b=-7, c=1e3, d=12345678901234567890,)]',
        { calls: [['tide', '{"a": 0.5, "b": -7, "c": 1e3, "d": 12345678901234567890}']] },
      ],
      [
        "[tide(a='it\\'s', b=\"\\u00e9\\x21\", c='x' 'y', d=(1, 2))]",
        { calls: [['tide', '{"a": "it\'s", "b": "é!", "c": "xy", "d": [1, 2]}']] },
      ],
    ],
  },
  mistral: {
    write: (calls) => `[TOOL_CALLS][${objects(calls)}]`,
    before: 'Let me look.\n',
    after: '\nDone.',
    malformed: [
      '[TOOL_CALLS]',
      '[TOOL_CALLS][]',
      '[TOOL_CALLS][{"a": 1}]',
      '[TOOL_CALLS]f[ARGS]no',
      '[TOOL_CALLS]f g[ARGS]{}',
      '[TOOL]',
    ],
    own: [
      [
        '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}',
        {
          calls: [
            ['f', '{"a": 1}'],
            ['g', '{}'],
          ],
        },
      ],
      ['[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": [1]}', { calls: [['f', '{"a": [1]}']] }],
      ['[TOOL_CALLS]f{"a": 1}', { calls: [['f', '{"a": 1}']] }],
      ['[TOOL_CALLS] {"name": "f", "arguments": {}}', { calls: [['f', '{}']] }],
    ],
  },
  phi4: {
    write: (calls) => `<|tool_call|>[${objects(calls)}]<|/tool_call|>`,
    before: 'Let me look.\n',
    after: '\nDone.',
    malformed: [
      '<|tool_call|>',
      '<|tool_call|>no',
      '<|tool_call|>[]<|/tool_call|>',
      'functools',
      'functools[1]',
      'functools[{"name": 1}]',
    ],
    own: [
      [
        'functools[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        {
          calls: [
            ['f', '{"a": 1}'],
            ['g', '{}'],
          ],
        },
      ],
      ['<|tool_call|>{"name": "f", "parameters": {"a": 1}}<|/tool_call|>', { calls: [['f', '{"a": 1}']] }],
    ],
  },
  granite: {
    write: (calls) => `<|tool_call|> [${objects(calls)}]`,
    before: 'Let me look.\n',
    after: '\nDone.',
    malformed: [
      '<|tool_call|>',
      '<|tool_call|> none',
      '<tool_call>[{"name": "f g", "arguments": {}}]',
      '<tool_call>{"arguments": 1}',
    ],
    own: [
      ['<tool_call>[{"name": "f", "arguments": {"a": 1}}]', { calls: [['f', '{"a": 1}']] }],
      ['<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', { calls: [['f', '{"a": 1}']] }],
    ],
  },
  json: {
    write: (calls) => calls.map((call) => object(...call)).join('\n'),
    before: 'Let me look.\n',
    after: '\nDone.',
    malformed: [
      '{"name": "Mira", "arguments": {}}',
      '{"a": 1}',
      '[1, 2]',
      '[{"name": 1}]',
      '```json\n{"a": 1}\n```',
      '{"name": "tide"',
      '{',
    ],
    own: [
      ['```json\n{"name": "tide", "arguments": {"a": 1}}\n```', { calls: [['tide', '{"a": 1}']] }],
      [
        '[{"name": "tide", "arguments": {}}, {"name": "tide", "arguments": {}}]',
        {
          calls: [
            ['tide', '{}'],
            ['tide', '{}'],
          ],
        },
      ],
    ],
  },
  qwen3_xml: {
    write: (calls) =>
      calls
        .map(
          ([name, values]) =>
            `<tool_call>\n<function=${name}>\n${Object.entries(values)
              .map(([key, value]) => `<parameter=${key}>\n${plain(value)}\n</parameter>\n`)
              .join('')}</function>\n</tool_call>`,
        )
        .join('\n'),
    before: 'Let me look.\n',
    after: '\nDone.',
    malformed: [
      '<tool_call>',
      '<tool_call>no',
      '<tool_call>\n<function=f g>\n</function>',
      '<function=f',
      '<tool_call>{"name": "f"}</tool_call>',
      '<tool_call><function=>',
    ],
    impossible: /<\/parameter>/,
    own: [
      ['<function=tide>\n<parameter=place>\nx\n</parameter>\n</function>', { calls: [['tide', '{"place": "x"}']] }],
      [
        '<tool_call><function=f><parameter=a>1</parameter><parameter=b>x y</parameter></function></tool_call>',
        { calls: [['f', '{"a": 1, "b": "x y"}']] },
      ],
      ['<tool_call>\n<function=tide>\n<parameter=place>\nold mi', { calls: [['tide', '{"place": "old mi"}']] }],
      ['<tool_call><function=tide><parameter=place>x</parameter>', { calls: [['tide', '{"place": "x"}']] }],
    ],
  },
  gemma4: {
    write: (calls) => calls.map(([name, values]) => `<|tool_call>call:${name}${gemma(values)}<tool_call|>`).join(''),
    before: 'Let me look.\n',
    after: '\nDone.',
    malformed: ['<|tool_call>', '<|tool_call>f{}', '<|tool_call>call:f g{}', '<|tool_call>call:f', 'call:f{a:1}'],
    impossible: /<\|"\|>/,
    own: [
      ['<start_function_call>call:f{a:<escape>b<escape>}<end_function_call>', { calls: [['f', '{"a": "b"}']] }],
      [
        '<|tool_call>call:f{a:True,b:None,c:at 9:15,d:[],}<tool_call|>',
        { calls: [['f', '{"a": true, "b": null, "c": "at 9:15", "d": []}']] },
      ],
    ],
  },
  harmony: {
    write: (calls) =>
      calls
        .map(
          ([name, values]) =>
            `<|channel|>commentary to=functions.${name} <|constrain|>json<|message|>${json(values)}<|call|>`,
        )
        .join('<|start|>assistant'),
    before: '<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant',
    after: '<|start|>assistant<|channel|>final<|message|>Done.<|return|>',
    malformed: ['no channel', 'to=functions.f {}', '<|channel|>', '<|channel|>final', 'a<|message|>b'],
    impossible: /<\|(message|end|call|start|channel)\|>/,
    own: [
      [' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"a": 1}', { calls: [['f', '{"a": 1}']] }],
      ['<|channel|>commentary to=functions.f<|message|><|call|>', { calls: [['f', '{}']] }],
      ['<|channel|>final<|message|>Hello.', { content: 'Hello.' }],
    ],
  },
  glm: {
    write: (calls) =>
      calls
        .map(
          ([name, values]) =>
            `<tool_call>${name}\n${Object.entries(values)
              .map(([key, value]) => `<arg_key>${key}</arg_key>\n<arg_value>${plain(value)}</arg_value>\n`)
              .join('')}</tool_call>`,
        )
        .join('\n'),
    before: 'Let me look.\n',
    after: '\nDone.',
    malformed: [
      '<tool_call>',
      '<tool_call>f g</tool_call>',
      '<tool_call>{"name": "f"}</tool_call>',
      '<tool_call></tool_call>',
      '<tool_call>f',
    ],
    impossible: /<\/arg_value>/,
    own: [
      ['<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>', { calls: [['f', '{"a": 1}']] }],
      [
        '<tool_call>f<arg_key>a</arg_key>x<arg_value>1</arg_value></tool_call>',
        { content: 'x', calls: [['f', '{"a": 1}']] },
      ],
    ],
  },
  kimi_k2: {
    write: (calls) =>
      `<|tool_calls_section_begin|>${calls
        .map(
          ([name, values], i) =>
            `<|tool_call_begin|>functions.${name}:${i}<|tool_call_argument_begin|>${json(values)}<|tool_call_end|>`,
        )
        .join('')}<|tool_calls_section_end|>`,
    before: 'Let me look.',
    after: 'Done.',
    malformed: [
      '<|tool_calls_section_begin|>',
      '<|tool_calls_section_begin|>no',
      '<|tool_call_begin|>functions.tide:0',
      '<|tool_call_begin|>a b<|tool_call_argument_begin|>{}',
      '<|tool_call_begin|>tide<|tool_call_argument_begin|>5',
    ],
    own: [
      [
        '<|tool_call_begin|>tide<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>',
        { calls: [['tide', '{"a": 1}']] },
      ],
      [
        '<|tool_call_begin|>functions.tide:0<|tool_call_argument_begin|>{"a": [1, {"b": "c',
        { calls: [['tide', '{"a": [1, {"b": "c"}]}']] },
      ],
    ],
  },
  deepseek_v31: {
    write: (calls) =>
      `<｜tool▁calls▁begin｜>${calls
        .map(([name, values]) => `<｜tool▁call▁begin｜>${name}<｜tool▁sep｜>${json(values)}<｜tool▁call▁end｜>`)
        .join('')}<｜tool▁calls▁end｜>`,
    before: 'Let me look.',
    after: 'Done.',
    malformed: deepseekMalformed,
    own: [
      [
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tide<｜tool▁sep｜>{"a": 1,}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        { calls: [['tide', '{"a": 1}']] },
      ],
    ],
  },
  deepseek_v3: {
    write: (calls) =>
      `<｜tool▁calls▁begin｜>${calls
        .map(
          ([name, values]) =>
            `<｜tool▁call▁begin｜>function<｜tool▁sep｜>${name}\n\`\`\`json\n${json(values)}\n\`\`\`<｜tool▁call▁end｜>`,
        )
        .join('\n')}<｜tool▁calls▁end｜>`,
    before: 'Let me look.',
    after: 'Done.',
    malformed: deepseekMalformed,
    own: [
      [
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>tide\n{"a": True, "b": "x\ny"}',
        { calls: [['tide', '{"a": true, "b": "x\\ny"}']] },
      ],
    ],
  },
  deepseek_v32: {
    write: (calls) => tagged(calls, '｜DSML｜function_calls', '｜DSML｜', (text) => ` string="${text}"`),
    before: 'Let me look.\n\n',
    after: '\nDone.',
    malformed: [
      '<｜DSML｜function_calls>',
      '<｜DSML｜function_calls>no',
      '<｜DSML｜function_calls><｜DSML｜invoke name="f g">',
    ],
    own: [
      [
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">42</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        { calls: [['f', '{"a": "42"}']] },
      ],
    ],
  },
  minimax_m2: {
    write: (calls) => tagged(calls, 'minimax:tool_call'),
    before: 'Let me look.\n',
    after: '\nDone.',
    malformed: [
      '<minimax:tool_call>',
      '<minimax:tool_call>no',
      '<minimax:tool_call>\n<invoke name="f g">\n</invoke>',
      '<invoke name="tide">',
    ],
    own: [
      [
        '<minimax:tool_call><invoke name="tide"><parameter name="place">x\n<parameter name="more">1</invoke>',
        { calls: [['tide', '{"place": "x\\n<parameter name=\\"more\\">1"}']] },
      ],
    ],
  },
};

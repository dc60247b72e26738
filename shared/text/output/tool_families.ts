/**
 * Families of models by the format in which they write tool calls. Each description has all that is particular to a family: how a model of it is
 * known, the table of its format, and the form in which calls are enforced or shown to a model whose template reads no tools.
 */
import type { CallForm } from '../grammar/text_rule.ts';
import { isJson } from './argument_types.ts';
import { harmonyStates } from './harmony_states.ts';
import type { ToolStates } from './output_table.ts';
import { deepseekV32, glm, minimaxM2, qwen3Xml } from './parameter_tables.ts';
import * as tables from './tool_tables.ts';

/** One family. */
export interface FamilyDescription {
  /** Texts that a chat template of the family has: all patterns of one of the lists. */
  readonly signs: readonly (readonly RegExp[])[];
  /** Special tokens of its vocabulary, for templates that say nothing of calls. */
  readonly tokens?: readonly string[];
  readonly states: ToolStates;
  /** Returns the form in which calls can be enforced, which a template may tell; undefined: they are enforced as JSON. */
  readonly form?: (template: string) => CallForm;
  /** Returns a call as the model is to write it, with arguments as JSON text; undefined: as plain JSON. */
  readonly write?: (name: string, json: string) => string;
  /** Returns the id of a call that has none; undefined: one that any client takes. */
  readonly newId?: (random: string, name: string, index: number) => string;
}

/** Characters of a call's id, by Mistral's templates, which refuse any other length. */
const MISTRAL_ID = 9;

const object = (name: string, json: string): string => `{"name": "${name}", "arguments": ${json}}`;

/** Returns the parameters of arguments as JSON text, each as `write` has it; those of an example where it is no JSON. */
function parametersOf(json: string, write: (key: string, value: string, isText: boolean) => string): string[] {
  const values: unknown = isJson(json) ? JSON.parse(json) : { PARAMETER: 'VALUE' };
  if (typeof values !== 'object' || values === null) return [];
  return Object.entries(values).map(([key, value]) =>
    typeof value === 'string' ? write(key, value, true) : write(key, JSON.stringify(value), false),
  );
}

type Write = NonNullable<FamilyDescription['write']>;

/**
 * Returns how a call is written that has a line for each part: what stands before the parameters, each parameter, and what stands after
 * them.
 */
function inParts(
  before: (name: string) => readonly string[],
  parameter: (key: string, value: string, isText: boolean) => string,
  behind: readonly string[],
): Write {
  return (name, json) => [...before(name), ...parametersOf(json, parameter), ...behind].join('\n');
}

const deepseekCalls = (call: string): string =>
  `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>${call}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`;
const DEEPSEEK = /<｜tool▁calls?▁begin｜>/;

/** Families by name. A template is of the first one whose signs it has. */
const families = {
  harmony: { signs: [[/<\|channel\|>/, /<\|message\|>/]], states: harmonyStates, form: () => 'harmony' },
  gemma4: { signs: [[/<\|tool_call>|<start_function_call>/]], states: tables.gemma4 },
  kimi_k2: {
    signs: [[/<\|tool_calls_section_begin\|>|<\|tool_call_argument_begin\|>/]],
    tokens: ['<|tool_calls_section_begin|>'],
    states: tables.kimiK2,
    write: (name, json) =>
      `<|tool_calls_section_begin|><|tool_call_begin|>functions.${name}:0<|tool_call_argument_begin|>${json}<|tool_call_end|><|tool_calls_section_end|>`,
    newId: (_, name, index) => `functions.${name}:${index}`,
  },
  deepseek_v32: {
    signs: [[/｜DSML｜/]],
    tokens: ['｜DSML｜'],
    states: deepseekV32,
    write: inParts(
      (name) => ['<｜DSML｜function_calls>', `<｜DSML｜invoke name="${name}">`],
      (key, value, isText) => `<｜DSML｜parameter name="${key}" string="${isText}">${value}</｜DSML｜parameter>`,
      ['</｜DSML｜invoke>', '</｜DSML｜function_calls>'],
    ),
  },
  deepseek_v3: {
    signs: [[DEEPSEEK, /```json/]],
    states: tables.deepseek,
    write: (name, json) => deepseekCalls(`function<｜tool▁sep｜>${name}\n\`\`\`json\n${json}\n\`\`\``),
  },
  deepseek_v31: {
    signs: [[DEEPSEEK]],
    tokens: ['<｜tool▁calls▁begin｜>'],
    states: tables.deepseek,
    write: (name, json) => deepseekCalls(`${name}<｜tool▁sep｜>${json}`),
  },
  minimax_m2: {
    signs: [[/<minimax:tool_call>/], [/<invoke name=/, /<parameter name=/]],
    tokens: ['<minimax:tool_call>'],
    states: minimaxM2,
    write: inParts(
      (name) => ['<minimax:tool_call>', `<invoke name="${name}">`],
      (key, value) => `<parameter name="${key}">${value}</parameter>`,
      ['</invoke>', '</minimax:tool_call>'],
    ),
  },
  glm: {
    signs: [[/<arg_key>/]],
    states: glm,
    write: inParts(
      (name) => [`<tool_call>${name}`],
      (key, value) => `<arg_key>${key}</arg_key>\n<arg_value>${value}</arg_value>`,
      ['</tool_call>'],
    ),
  },
  qwen3_xml: {
    signs: [[/<function=/, /<parameter=/]],
    states: qwen3Xml,
    write: inParts(
      (name) => ['<tool_call>', `<function=${name}>`],
      (key, value) => `<parameter=${key}>\n${value}\n</parameter>`,
      ['</function>', '</tool_call>'],
    ),
  },
  mistral: {
    signs: [[/\[TOOL_CALLS\]/]],
    states: tables.mistral,
    form: (template) => (template.includes('[ARGS]') ? 'mistral_args' : 'mistral'),
    write: (name, json) => `[TOOL_CALLS][${object(name, json)}]`,
    newId: (random) => random.slice(0, MISTRAL_ID),
  },
  phi4: {
    signs: [[/functools|<\|\/tool_call\|>|<\|\/tool\|>/]],
    states: tables.phi4,
    form: (template) => (template.includes('functools') ? 'phi4_functools' : 'phi4'),
    write: (name, json) => `<|tool_call|>[${object(name, json)}]<|/tool_call|>`,
  },
  pythonic: {
    signs: [
      [/<\|python_start\|>|<\|tool_call_start\|>|<\|tool_list_start\|>|<function_calls>|\[func_name1?\(|\[func1\(/],
    ],
    tokens: ['<|tool_call_start|>'],
    states: tables.pythonic,
  },
  granite: {
    signs: [[/<\|tool_call\|>/]],
    states: tables.granite,
    form: () => 'granite',
    write: (name, json) => `<|tool_call|>[${object(name, json)}]`,
  },
  hermes: {
    signs: [[/<tool_call>/]],
    states: tables.hermes,
    form: () => 'hermes',
    write: (name, json) => `<tool_call>\n${object(name, json)}\n</tool_call>`,
  },
  llama3_json: {
    signs: [[/<\|python_tag\|>|"parameters": dictionary/]],
    states: tables.llama3Json,
    form: () => 'llama3_json',
  },
  json: { signs: [], states: tables.json, form: () => 'json' },
} as const satisfies Readonly<Record<string, FamilyDescription>>;

/** Family of a tool format. */
export type ToolFamily = keyof typeof families;
/** Families by name. */
export const toolFamilies: Readonly<Record<ToolFamily, FamilyDescription>> = families;
/** Names of the families. */
export const toolFamilyNames = Object.keys(families) as ToolFamily[];

/**
 * Returns the family of a model: by its chat template, or by the special tokens of its vocabulary where the template says nothing; that of plain JSON
 * where neither does.
 */
export function toolFamilyOf(template: string, tokens: readonly string[]): ToolFamily {
  const has = ({ signs }: FamilyDescription): boolean => signs.some((all) => all.every((sign) => sign.test(template)));
  const knows = ({ tokens: own = [] }: FamilyDescription): boolean => own.some((token) => tokens.includes(token));
  return (
    toolFamilyNames.find((name) => has(toolFamilies[name])) ??
    toolFamilyNames.find((name) => knows(toolFamilies[name])) ??
    'json'
  );
}

/** Returns the form in which a family's calls are enforced; undefined where they are enforced as JSON. */
export function callFormOf(family: ToolFamily | undefined, template: string | undefined): CallForm | undefined {
  return family && toolFamilies[family].form?.(template ?? '');
}

/** Returns the family whose parser reads calls of a form. */
export function familyOf(form: CallForm): ToolFamily {
  if (form === 'mistral_args') return 'mistral';
  return form === 'phi4_functools' ? 'phi4' : form;
}

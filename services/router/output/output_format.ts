/** The output format of a model: chosen by its chat template's text, by a response template, or by name; and the parsers of its answers. */
import type { CallForm } from '../grammar/text_rule.ts';
import { callFormOf, familyOf } from './call_form.ts';
import type { ToolSchemas } from './call_writer.ts';
import { OutputParser } from './output_parser.ts';
import { outputTable, type OutputTable, type States, type StateSpec, type ToolStates } from './output_table.ts';
import {
  harmonyMarkers,
  reasoningFamilies,
  reasoningMarkers,
  type ReasoningFamily,
  type ReasoningMarkers,
} from './reasoning_tables.ts';
import { responseTemplate } from './response_template.ts';
import { RuleFormat, type SpecialNames } from './rule_format.ts';
import { toolFamilies, toolStates, type ToolFamily } from './tool_tables.ts';

/** Names that `--tool-call-parser` takes. */
export const toolParserNames = ['auto', 'none', ...toolFamilies] as const;
/** Names that `--reasoning-parser` takes. */
export const reasoningParserNames = ['auto', 'none', ...reasoningFamilies] as const;

/** Parsers that the router's options name; `auto` leaves the choice to the model's files. */
export interface ParserNames {
  readonly tools: (typeof toolParserNames)[number];
  readonly reasoning: (typeof reasoningParserNames)[number];
}

/** Formats of a model's answers, as plain data that can cross threads. */
export interface FormatChoice {
  readonly tools: ToolFamily | undefined;
  readonly reasoning: ReasoningFamily | undefined;
  /** The form in which calls of the model's own format are enforced; undefined: as JSON. */
  readonly calls?: CallForm | undefined;
  /** The checkpoint's own response template, which is used in place of both. */
  readonly responseTemplate: unknown;
}

/** Families of tool formats by what stands in a chat template, the first that fits. */
const toolMarkers: readonly (readonly [family: ToolFamily, ...all: RegExp[]])[] = [
  ['harmony', /<\|channel\|>/, /<\|message\|>/],
  ['gemma4', /<\|tool_call>|<start_function_call>/],
  ['glm', /<arg_key>/],
  ['qwen3_xml', /<function=/, /<parameter=/],
  ['mistral', /\[TOOL_CALLS\]/],
  ['phi4', /functools|<\|\/tool_call\|>|<\|\/tool\|>/],
  ['pythonic', /<\|python_start\|>|<\|tool_call_start\|>|<function_calls>|\[func_name1?\(|\[func1\(/],
  ['granite', /<\|tool_call\|>/],
  ['hermes', /<tool_call>/],
  ['llama3_json', /<\|python_tag\|>|"parameters": dictionary/],
];

const reasoningSigns: readonly (readonly [family: ReasoningFamily, sign: RegExp])[] = [
  ['harmony', /<\|channel\|>analysis/],
  ['gemma4', /<\|channel>thought/],
  ['granite', /Here is my thought process|<response>/],
  ['mistral', /\[THINK\]/],
  ['think', /<think>/],
  // Only the end is looked for in earlier turns: the model begins with its reasoning.
  ['deepseek_r1', /<\/think>/],
];

/**
 * Returns the formats of a model. `template` is the text of its chat template.
 * @param response the response template of its tokenizer_config.json; undefined when there is none
 */
export function chooseFormat(template: string | undefined, response: unknown, names: ParserNames): FormatChoice {
  const found = toolMarkers.find(([, ...all]) => all.every((sign) => sign.test(template ?? '')))?.[0];
  const thinking = reasoningSigns.find(([, sign]) => sign.test(template ?? ''))?.[0];
  const isOwn = response !== undefined && names.tools === 'auto' && names.reasoning === 'auto';
  const tools = names.tools === 'auto' ? (found ?? 'json') : names.tools === 'none' ? undefined : names.tools;
  return {
    tools,
    reasoning: names.reasoning === 'auto' ? thinking : names.reasoning === 'none' ? undefined : names.reasoning,
    calls: isOwn ? undefined : callFormOf(tools, template),
    responseTemplate: isOwn ? response : undefined,
  };
}

const NO_TOOLS: ToolStates = { start: 'content', states: { content: { text: 'content' } } };

function tableOf(tools: ToolFamily | undefined, reasoning: ReasoningFamily | undefined): OutputTable | undefined {
  if (tools === 'harmony' || reasoning === 'harmony') return harmonyTable(reasoning !== undefined);
  const markers: ReasoningMarkers | undefined = reasoning && reasoningMarkers[reasoning];
  if (!tools && !markers) return undefined;
  const { start, states, markers: more = [] }: ToolStates = tools ? toolStates[tools] : NO_TOOLS;
  if (!markers) return outputTable(start, states, more);
  const { open, close, dropped = [], isOpenMissing = false } = markers;
  const to = (literals: readonly string[], state: string): Record<string, string> =>
    Object.fromEntries(literals.map((literal) => [literal, state]));
  const content: StateSpec = states['content'] ?? { text: 'content' };
  const all: States = {
    ...states,
    content: { ...content, on: { ...content.on, ...to(dropped, 'content') } },
    before_reasoning: { text: 'space', on: to(open, 'begun_reasoning'), next: start },
    begun_reasoning: { text: 'space', on: to(open, 'reasoning'), next: 'reasoning', isFormat: true },
    reasoning: { text: 'reasoning', on: to(close, start) },
  };
  return outputTable(isOpenMissing ? 'begun_reasoning' : 'before_reasoning', all, more);
}

function harmonyTable(hasReasoning: boolean): OutputTable {
  const { start, states, markers } = toolStates.harmony;
  const { reasoning } = states;
  const text = hasReasoning ? 'reasoning' : 'content';
  return outputTable(start, reasoning ? { ...states, reasoning: { ...reasoning, text } } : states, markers);
}

/** Options of a parser, but its table. */
export interface ParserOptions {
  /** Form of calls that a grammar enforces, in place of the model's own. */
  readonly enforced?: CallForm | undefined;
  readonly tools: ToolSchemas;
  /** Whether the request has tools. */
  readonly hasTools: boolean;
  readonly isParallel: boolean;
  readonly prefix: string;
  /** Returns a random name. */
  readonly newId: () => string;
}

/** Characters of a call's id, by Mistral's templates, which refuse any other length. */
const MISTRAL_ID = 9;

/** Formats of a model without tokenizer, whose output is not parsed. */
export const NO_FORMAT: FormatChoice = { tools: undefined, reasoning: undefined, responseTemplate: undefined };

/** A special token of a model, which texts leave out. */
interface SpecialToken {
  readonly id: number;
  readonly content: string;
}

/** Output format of one model. */
export class OutputFormat {
  readonly choice: FormatChoice;
  readonly #withTools: OutputTable | undefined;
  readonly #withoutTools: OutputTable | undefined;
  readonly hasReasoning: boolean;
  /** The format as rules for texts have it. */
  readonly rules: RuleFormat;
  /** Tables of the formats that grammars enforce, by family. */
  readonly #enforced = new Map<ToolFamily, OutputTable | undefined>();

  readonly #hidden: Readonly<Record<'withTools' | 'withoutTools', ReadonlySet<number> | undefined>>;

  /** @throws Error when the response template cannot be used */
  constructor(
    choice: FormatChoice,
    specialTokens: readonly SpecialToken[] = [],
    names: SpecialNames = { all: [], ends: [] },
  ) {
    this.choice = choice;
    this.rules = new RuleFormat(choice, names);
    if (choice.responseTemplate === undefined) {
      this.#withTools = tableOf(choice.tools, choice.reasoning);
      this.#withoutTools = tableOf(undefined, choice.reasoning);
      this.hasReasoning = choice.reasoning !== undefined;
    } else {
      const own = responseTemplate(choice.responseTemplate);
      [this.#withTools, this.#withoutTools] = [own.table(true), own.table(false)];
      this.hasReasoning = own.hasReasoning;
    }
    this.#hidden = {
      withTools: hiddenTokens(this.#withTools, specialTokens),
      withoutTools: hiddenTokens(this.#withoutTools, specialTokens),
    };
  }

  /** Returns the special tokens that text leaves out for a parser: all but the format's markers; undefined when there is no parser. */
  hiddenTokens(hasTools: boolean): ReadonlySet<number> | undefined {
    return hasTools ? this.#hidden.withTools : this.#hidden.withoutTools;
  }

  /** Whether a token's text is a literal of the format, or part of one. */
  isMarker(content: string): boolean {
    return isMarkerOf(this.#withTools, content);
  }

  /** Returns a parser of one answer; undefined when all its text is content. */
  parser({ enforced, tools, hasTools, isParallel, prefix: end, newId }: ParserOptions): OutputParser | undefined {
    const table = enforced ? this.#enforcedTable(familyOf(enforced)) : this.#table(hasTools);
    if (!table) return undefined;
    const random = (): string => newId() + newId();
    const prefix = this.#isClosedAhead(end) ? '' : end;
    const isMistral = this.choice.tools === 'mistral';
    const newCallId = (): string => (isMistral ? random().slice(0, MISTRAL_ID) : `call_${random().slice(0, 24)}`);
    const maxCalls = isParallel ? Infinity : 1;
    return new OutputParser({ table, tools, prefix, newCallId, maxCalls });
  }

  /** Whether a prompt's end is a closed block of reasoning, before an answer whose parser begins outside of one. */
  #isClosedAhead(prefix: string): boolean {
    const { reasoning, responseTemplate: own } = this.choice;
    const markers: ReasoningMarkers | undefined = reasoning && reasoningMarkers[reasoning];
    return own === undefined && markers?.isOpenMissing !== true && markers?.close.includes(prefix) === true;
  }

  #enforcedTable(family: ToolFamily): OutputTable | undefined {
    const table = this.#enforced.get(family) ?? tableOf(family, this.choice.reasoning);
    this.#enforced.set(family, table);
    return table;
  }

  #table(hasTools: boolean): OutputTable | undefined {
    return hasTools ? this.#withTools : this.#withoutTools;
  }
}

function hiddenTokens(table: OutputTable | undefined, all: readonly SpecialToken[]): ReadonlySet<number> | undefined {
  return table && new Set(all.filter(({ content }) => !isMarkerOf(table, content)).map(({ id }) => id));
}

function isMarkerOf(table: OutputTable | undefined, content: string): boolean {
  return table?.markers.some((marker) => marker.includes(content)) === true;
}

/** UTF-16 units of a continued answer that its parser reads again (P1): each of its samples reads them before it begins. */
const MAX_CONTINUED = 4_096;

/** Returns a marker and the end of the text behind it. */
function shortened(marker: string, text: string): string {
  return marker + text.slice(-MAX_CONTINUED);
}

/**
 * Returns the reader of a prompt's end that belongs to the answer, for the parser and for grammars: an opened block of reasoning, the
 * marker that closes one, the beginning of an answer that is continued. It takes the rendered prompt, and the text that is continued; undefined when the answer is a new message.
 */
export function prefixReader(choice: FormatChoice): (prompt: string, continued: string | undefined) => string {
  if (choice.responseTemplate !== undefined) return responseTemplate(choice.responseTemplate).prefix;
  if (choice.tools === 'harmony' || choice.reasoning === 'harmony')
    return (_, continued) => (continued === undefined ? '' : shortened(harmonyMarkers.begin ?? '', continued));
  const markers: ReasoningMarkers | undefined = choice.reasoning && reasoningMarkers[choice.reasoning];
  return (prompt, continued) => (markers ? markedPrefix(markers, prompt, continued) : '');
}

function markedPrefix(markers: ReasoningMarkers, prompt: string, continued: string | undefined): string {
  const end = prompt.trimEnd();
  const open = markers.open.find((literal) => end.endsWith(literal.trimEnd()));
  if (open !== undefined) return open;
  // An empty block in the prompt turns the reasoning off.
  const close = markers.close.find((literal) => end.endsWith(literal));
  if (close !== undefined) return close;
  if (continued === undefined) return '';
  const [at, marker] = markers.open
    .map((literal) => [continued.lastIndexOf(literal), literal] as const)
    .reduce<readonly [at: number, marker: string]>((last, one) => (one[0] > last[0] ? one : last), [-1, '']);
  if (at < 0) return shortened(markers.isOpenMissing ? (markers.close[0] ?? '') : '', continued);
  const behind = continued.slice(at + marker.length);
  const closed = markers.close.find((literal) => behind.includes(literal));
  // The text within a block that is closed does not matter.
  return closed === undefined
    ? shortened(marker, behind)
    : shortened(marker + closed, behind.slice(behind.lastIndexOf(closed) + closed.length));
}

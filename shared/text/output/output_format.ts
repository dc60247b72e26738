/** The output format of a model: chosen by its chat template's text, by a response template, or by name; and the parsers of its answers. */
import type { CallForm } from '../grammar/text_rule.ts';
import type { ToolSchemas } from './call_writer.ts';
import { OutputParser } from './output_parser.ts';
import {
  BEHIND_CALL,
  outputTable,
  toAll,
  type OutputTable,
  type States,
  type StateSpec,
  type ToolStates,
  type Transition,
} from './output_table.ts';
import {
  harmonyMarkers,
  reasoningFamilies,
  reasoningFamilyOf,
  reasoningMarkers,
  type ReasoningFamily,
  type ReasoningMarkers,
} from './reasoning_tables.ts';
import { responseTemplate } from './response_template.ts';
import { RuleFormat, type SpecialNames } from './rule_format.ts';
import {
  callFormOf,
  familyOf,
  toolFamilies,
  toolFamilyNames,
  toolFamilyOf,
  type FamilyDescription,
  type ToolFamily,
} from './tool_families.ts';

/** Names that `--tool-call-parser` takes. */
export const toolParserNames = ['auto', 'none', ...toolFamilyNames] as const;
/** Names that `--reasoning-parser` takes. */
export const reasoningParserNames = ['auto', 'none', ...reasoningFamilies] as const;

/** Parsers that options name; `auto` leaves the choice to the model's files. */
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

/**
 * Returns the formats of a model. `template` is the text of its chat template.
 * @param response the response template of its tokenizer_config.json; undefined when there is none
 * @param tokens special tokens of its vocabulary
 */
export function chooseFormat(
  template: string | undefined,
  response: unknown,
  names: ParserNames,
  tokens: readonly string[] = [],
): FormatChoice {
  const isOwn = response !== undefined && names.tools === 'auto' && names.reasoning === 'auto';
  const found = (): ToolFamily => (template === undefined ? 'json' : toolFamilyOf(template, tokens));
  const tools = names.tools === 'auto' ? found() : names.tools === 'none' ? undefined : names.tools;
  const thinking = names.reasoning === 'auto' ? reasoningFamilyOf(template ?? '') : names.reasoning;
  return {
    tools,
    reasoning: thinking === 'none' ? undefined : thinking,
    calls: isOwn ? undefined : callFormOf(tools, template),
    responseTemplate: isOwn ? response : undefined,
  };
}

/** State after a block of reasoning. */
const BEHIND_REASONING = 'behind_reasoning';
const NO_TOOLS: ToolStates = { start: 'content', states: { content: { text: 'content' } } };

function tableOf(tools: ToolFamily | undefined, reasoning: ReasoningFamily | undefined): OutputTable | undefined {
  if (tools === 'harmony' || reasoning === 'harmony') return harmonyTable(reasoning !== undefined);
  const markers: ReasoningMarkers | undefined = reasoning && reasoningMarkers[reasoning];
  if (!tools && !markers) return undefined;
  const own: ToolStates = tools ? toolFamilies[tools].states : NO_TOOLS;
  if (!markers) return outputTable(own.start, own.states, own.markers);
  const { open, close, around, isOpenMissing = false } = markers;
  const all: States = {
    ...withClose(own.states, close),
    ...answerStates(own, markers),
    before_reasoning: { text: 'space', on: toAll(open, 'begun_reasoning'), next: own.start },
    begun_reasoning: { text: 'space', on: toAll(open, 'reasoning'), next: 'reasoning', isFormat: true },
    reasoning: { text: 'reasoning', on: { ...trials(own), ...toAll(close, around ? BEHIND_REASONING : own.start) } },
  };
  return outputTable(isOpenMissing ? 'begun_reasoning' : 'before_reasoning', all, own.markers);
}

/** Returns states in which the end of reasoning, which a call in it has left open, ends the call too. */
function withClose(states: States, close: readonly string[]): States {
  const closed = ([name, state]: [string, StateSpec]): [string, StateSpec] => {
    if (state.marks) return [name, { ...state, marks: { ...state.marks, over: close } }];
    return [name, name === 'parameters' ? { ...state, on: { ...state.on, ...toAll(close, 'content') } } : state];
  };
  return Object.fromEntries(Object.entries(states).map(closed));
}

/** Returns the terminals in reasoning at which a call may begin, without the reasoning having been closed. */
function trials({ states, openers = [] }: ToolStates): Record<string, Transition> {
  const on = states['content']?.on ?? {};
  return Object.fromEntries(
    openers.flatMap((literal) => {
      const to = on[literal];
      return to === undefined ? [] : [[literal, { ...(typeof to === 'string' ? { to } : to), isTrial: true }]];
    }),
  );
}

/**
 * Returns the states after the reasoning: that of an answer, within its own markers where the format has them, and that after a call in
 * open reasoning.
 */
function answerStates({ start, states }: ToolStates, { close, around }: ReasoningMarkers): States {
  const content: StateSpec = states['content'] ?? { text: 'content' };
  const behind = { to: around ? BEHIND_REASONING : 'content', isClosing: true };
  const behindCall: StateSpec = { text: 'undecided', on: { ...content.on, ...toAll(close, behind) } };
  const all = { content, [BEHIND_CALL]: behindCall };
  if (!around) return all;
  const [open, end] = around;
  return {
    ...all,
    [BEHIND_REASONING]: { text: 'space', on: { [open]: 'answer' }, next: start },
    answer: { ...content, on: { ...content.on, [end]: 'answered' } },
    // Only the last one is a marker.
    answered: { text: 'space', on: { [end]: 'answered' }, next: 'answer', isDroppedAtEnd: true },
  };
}

function harmonyTable(hasReasoning: boolean): OutputTable {
  const { start, states, markers }: ToolStates = toolFamilies.harmony.states;
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

/** Returns the id of a call of a family that has no ids of its own. */
const anyId: NonNullable<FamilyDescription['newId']> = (random) => `call_${random.slice(0, 24)}`;

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

  /** Ids of the special tokens that texts leave out, by content. */
  readonly #special: ReadonlyMap<string, number>;
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
    this.#special = new Map(specialTokens.map(({ id, content }) => [content, id]));
    this.#hidden = {
      withTools: hiddenTokens(this.#withTools, specialTokens),
      withoutTools: hiddenTokens(this.#withoutTools, specialTokens),
    };
  }

  /** Returns the special tokens that text leaves out for a parser: all but the format's markers; undefined when there is no parser. */
  hiddenTokens(hasTools: boolean): ReadonlySet<number> | undefined {
    return hasTools ? this.#hidden.withTools : this.#hidden.withoutTools;
  }

  /** Returns the texts of these that are one special token, by its id. */
  stopTokens(texts: readonly string[]): Map<number, string> {
    const found = new Map<number, string>();
    for (const text of texts) {
      const id = this.#special.get(text);
      if (id !== undefined) found.set(id, text);
    }
    return found;
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
    const { newId: idOf = anyId }: FamilyDescription = toolFamilies[this.choice.tools ?? 'json'];
    const newCallId = (name: string, index: number): string => idOf(random(), name, index);
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

/** Returns a marker and the end of the text after it. */
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

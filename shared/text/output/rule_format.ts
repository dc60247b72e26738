/** The parts of a model's output format that a rule for its text has: reasoning before the answer, markers, and the form of calls. */
import { Failure } from '../../base/failure.ts';
import { markersOf } from '../grammar/call_forms.ts';
import type { CallForm, ReasoningBefore, TextRule } from '../grammar/text_rule.ts';
import { harmonyMarkers, reasoningMarkers, type ReasoningFamily, type ReasoningMarkers } from './reasoning_tables.ts';
import type { ToolFamily } from './tool_families.ts';

/** Special tokens of a model by their names. */
export interface SpecialNames {
  /** Those that a grammar may name. */
  readonly all: readonly string[];
  /** Those that end an answer, which are never part of its text. */
  readonly ends: readonly string[];
}

/** Returns the names of special tokens. `endTokens`: ids of the tokens that end an answer. */
export function specialNames(
  tokens: readonly { readonly id: number; readonly content: string }[],
  endTokens: readonly number[],
): SpecialNames {
  const ends = tokens.filter(({ id }) => endTokens.includes(id));
  return { all: tokens.map(({ content }) => content), ends: ends.map(({ content }) => content) };
}

/** Parts of a rule that are those of the model's format. */
export type RuleFrame = Pick<TextRule, 'reasoning' | 'begin' | 'specialTokens'>;

/** Families of a model's formats. */
interface Families {
  readonly tools: ToolFamily | undefined;
  readonly reasoning: ReasoningFamily | undefined;
  readonly calls?: CallForm | undefined;
}

/** How an answer stands to its reasoning where the prompt ends. */
type ReasoningState = 'ahead' | 'open' | 'over';

/** The format of one model, as rules have it. */
export class RuleFormat {
  /** Form in which the model's own calls can be enforced; undefined: they are enforced as JSON. */
  readonly callForm: CallForm | undefined;
  readonly #markers: ReasoningMarkers | undefined;
  readonly #specialTokens: readonly string[];
  /** Whether an answer would end at a marker of its reasoning. */
  readonly #isEnded: boolean;

  constructor({ tools, reasoning, calls }: Families, { all, ends }: SpecialNames) {
    const hasEnd = (literals: Iterable<string>): boolean =>
      [...literals].some((literal) => ends.some((name) => literal.includes(name)));
    const isHarmony = tools === 'harmony' || reasoning === 'harmony';
    this.#markers = isHarmony ? harmonyMarkers : reasoning && reasoningMarkers[reasoning];
    this.#isEnded = hasEnd(literalsOf(this.#markers));
    this.callForm = calls !== undefined && !hasEnd(markersOf(calls)) ? calls : undefined;
    const literals = [...literalsOf(this.#markers), ...(this.callForm === undefined ? [] : markersOf(this.callForm))];
    const isMarker = (name: string): boolean => literals.some((literal) => literal.includes(name));
    this.#specialTokens = all.filter((name) => isMarker(name) && !ends.includes(name));
  }

  /**
   * Returns what is around the answer to a prompt that ends with `prefix`. @throws Failure when the answer begins within reasoning whose
   * end would be the end of the answer
   */
  frame(prefix: string): RuleFrame {
    const specialTokens = this.#specialTokens;
    const markers = this.#markers;
    if (!markers) return { specialTokens };
    const state = reasoningState(markers, prefix);
    if (this.#isEnded) {
      if (state !== 'open') return { specialTokens };
      const message = 'the answer begins within reasoning that an end token closes: turn the reasoning off';
      throw new Failure('invalid_request', message);
    }
    const { open, close, barred, begin } = markers;
    const reasoning: ReasoningBefore = { open, close, isOpen: state === 'open', barred };
    return state === 'over' ? { specialTokens } : { specialTokens, begin, reasoning };
  }
}

function literalsOf(markers: ReasoningMarkers | undefined): readonly string[] {
  if (!markers) return [];
  const { open, close, begin } = markers;
  return [...open, ...close, ...(begin === undefined ? [] : [begin])];
}

/** Returns whether the reasoning may still come, is open, or is over: closed by the prompt, or passed by the text that is continued. */
function reasoningState({ open, close, isOpenMissing = false }: ReasoningMarkers, prefix: string): ReasoningState {
  const begun = prefix.trimStart();
  if (begun === '') return isOpenMissing ? 'open' : 'ahead';
  const opening = open.find((literal) => begun.startsWith(literal.trimEnd()));
  const isClosed = close.some((literal) => begun.includes(literal));
  if (opening !== undefined || isOpenMissing) return isClosed ? 'over' : 'open';
  return 'over';
}

/** Formats in which models write their reasoning: the markers around it, by family. */

/** Markers of a reasoning format. */
export interface ReasoningMarkers {
  readonly open: readonly string[];
  readonly close: readonly string[];
  /** Markers around the answer after the reasoning, which are left out. */
  readonly around?: readonly [open: string, close: string];
  /** Whether an answer begins with its reasoning, without a marker. */
  readonly isOpenMissing?: boolean;
  /** Marker before an answer that is no call. */
  readonly begin?: string;
  /** Texts that may not stand within the reasoning; without them: those that close it. */
  readonly barred?: readonly string[];
}

const think: ReasoningMarkers = { open: ['<think>'], close: ['</think>'] };

/** Reasoning formats by family; harmony has its own states, in which tool calls and reasoning are one format. */
export const reasoningMarkers = {
  think,
  deepseek_r1: { ...think, isOpenMissing: true },
  mistral: { open: ['[THINK]'], close: ['[/THINK]'] },
  granite: {
    open: ['Here is my thought process:', "Here's my thought process:", '<think>'],
    close: ['Here is my response:', "Here's my response:", '</think>'],
    around: ['<response>', '</response>'],
  },
  gemma4: { open: ['<|channel>thought\n'], close: ['<channel|>'] },
  harmony: undefined,
} as const satisfies Readonly<Record<string, ReasoningMarkers | undefined>>;

/** Messages of harmony, as a grammar has them: one of reasoning, then the answer. */
export const harmonyMarkers: ReasoningMarkers = {
  open: ['<|channel|>analysis<|message|>'],
  close: ['<|end|><|start|>assistant'],
  begin: '<|channel|>final<|message|>',
  barred: ['<|'],
};

/** Families by what stands in a chat template, the first that fits. */
const signs: readonly (readonly [family: ReasoningFamily, sign: RegExp])[] = [
  ['harmony', /<\|channel\|>analysis/],
  ['gemma4', /<\|channel>thought/],
  // Other templates have `<response>` around the results of tools.
  ['granite', /Here is my thought process|<response>\s*<\/response>/],
  ['mistral', /\[THINK\]/],
  // A template that only looks for the end in earlier turns does not say that the model begins with its reasoning.
  ['think', /<\/?think>/],
];

/** Returns the family of a chat template; undefined where it says nothing of reasoning. */
export function reasoningFamilyOf(template: string): ReasoningFamily | undefined {
  return signs.find(([, sign]) => sign.test(template))?.[0];
}

/** Family of a reasoning format. */
export type ReasoningFamily = keyof typeof reasoningMarkers;
/** Families of reasoning formats. */
export const reasoningFamilies = Object.keys(reasoningMarkers) as ReasoningFamily[];

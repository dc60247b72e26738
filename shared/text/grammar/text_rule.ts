/** Rules that a request may state for the text of its answers. */

/** Reasoning that may come before the text that a rule is for. */
export interface ReasoningBefore {
  /** Texts that open it. */
  readonly open: readonly string[];
  /** Texts that close it. */
  readonly close: readonly string[];
  /** Whether the answer begins within it. */
  readonly isOpen: boolean;
  /** Texts that may not stand within it, because they would be read as markers; undefined: those that close it. */
  readonly barred?: readonly string[] | undefined;
}

/** A tool that may be called. */
export interface CallableTool {
  readonly name: string;
  /** Schema of its arguments as JSON text; undefined for a tool without parameters. */
  readonly schema: string | undefined;
  /** Whether its arguments must be by the schema; otherwise they are where it can be enforced, else any object. */
  readonly isStrict: boolean;
  /** Parameter that defines it, for messages. */
  readonly param: string;
}

/** Formats in which calls can be enforced: those of a family of parsers, some of which have two. */
export type CallForm =
  | ('hermes' | 'llama3_json' | 'json' | 'granite' | 'harmony')
  | ('mistral' | 'mistral_args')
  | ('phi4' | 'phi4_functools');

/** One rule, with the parameter that states it, for messages. */
export type TextRule = {
  readonly param: string;
  readonly reasoning?: ReasoningBefore | undefined;
  /** Marker before an answer that is no call. */
  readonly begin?: string | undefined;
  /** Names of the special tokens that markers have; all else of a marker is text. */
  readonly specialTokens?: readonly string[] | undefined;
} & (
  | { readonly kind: 'json_object' }
  /** `schema` is a JSON schema as JSON text. */
  | { readonly kind: 'json_schema'; readonly schema: string }
  /** `pattern` is a regular expression that the whole text matches. */
  | { readonly kind: 'regex'; readonly pattern: string }
  | { readonly kind: 'choice'; readonly texts: readonly string[] }
  /** `text` is a grammar as EBNF or GBNF. */
  | { readonly kind: 'grammar'; readonly text: string }
  | CallRule
);

/** Tool calls, or with `mustCall: false` a text in which calls have this form. */
export interface CallRule {
  readonly kind: 'calls';
  readonly form: CallForm;
  readonly tools: readonly CallableTool[];
  readonly mustCall: boolean;
  /** Whether there may be several calls. */
  readonly isParallel: boolean;
  /** Rule for a text without calls, in place of any text. */
  readonly content?: TextRule | undefined;
}

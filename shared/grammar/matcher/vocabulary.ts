/** What a grammar thread needs to know of a model's vocabulary, and where it reads it. */
import type { TextFiles } from '../../model/text_files.ts';

/** Where the bytes of a model's tokens are read from, in the thread that needs them. */
export type VocabularySource =
  /** A folder or a GGUF file, as `--model` names it: an instance has it at hand. */
  | { readonly kind: 'model'; readonly path: string; readonly vocabSize: number }
  /** The files themselves: a router may have them from an instance. */
  | { readonly kind: 'texts'; readonly texts: TextFiles; readonly vocabSize: number };

/** A grammar as EBNF text whose first rule is `root`, and the tokens that may follow a complete text. */
export interface TokenGrammar {
  readonly ebnf: string;
  /** Ids of the tokens that end an answer. They are never part of the text, whatever their bytes are. */
  readonly endTokens: readonly number[];
}

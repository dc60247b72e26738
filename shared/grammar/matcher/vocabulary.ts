/** Where a grammar thread reads its vocabulary, and the grammars that it is asked for. */
import { Failure } from '../../base/failure.ts';
import { openModel } from '../../model/open_model.ts';
import type { TextFiles } from '../../model/text_files.ts';
import { tokenTable, type TokenTable } from './token_table.ts';

/** Milliseconds of CPU time in which a thread must have read its vocabulary. */
export const LOAD_CPU_MS = 60_000;

/** Where the bytes of a model's tokens are read from, in the thread that needs them. */
export type VocabularySource =
  /** A folder or a GGUF file, as `--model` names it: an instance has it at hand. */
  | { readonly kind: 'model'; readonly path: string; readonly vocabSize: number }
  /** The files themselves: a router may have them from an instance. */
  | { readonly kind: 'texts'; readonly texts: TextFiles; readonly vocabSize: number }
  /** A table that another thread has made. */
  | { readonly kind: 'table'; readonly table: TokenTable };

/** A grammar as EBNF text whose first rule is `root`, and the tokens that may follow a complete text. */
export interface TokenGrammar {
  readonly ebnf: string;
  /** Ids of the tokens that end an answer. They are never part of the text, whatever their bytes are. */
  readonly endTokens: readonly number[];
}

/** Reads a vocabulary. Takes up to a second at 128,000 tokens. @throws Failure `invalid_request` when the model has no tokenizer */
export async function readVocabulary(source: VocabularySource): Promise<TokenTable> {
  if (source.kind === 'table') return source.table;
  const texts = source.kind === 'texts' ? source.texts : await (await openModel(source.path)).readTexts();
  if (texts) return tokenTable(texts, source.vocabSize);
  throw new Failure('invalid_request', 'this model has no tokenizer, so its output cannot follow a grammar');
}

/** A tokenizer.json as far as its vocabulary and its added tokens go. */

/** An entry of `added_tokens` in tokenizer.json. */
export interface AddedTokenJson {
  readonly id: number;
  readonly content: string;
  readonly lstrip?: boolean;
  readonly rstrip?: boolean;
  readonly single_word?: boolean;
  readonly normalized?: boolean;
  readonly special?: boolean;
}

/** The vocabulary of a tokenizer's model: ids by token, or a list of tokens and scores in the order of ids. */
export type VocabularyJson = Readonly<Record<string, number>> | readonly (readonly [string, number])[];

/** The fields of tokenizer.json that this program reads. */
export interface TokenizerJson {
  readonly added_tokens: readonly AddedTokenJson[];
  readonly normalizer: { readonly type: string } | null;
  readonly pre_tokenizer: { readonly type: string; readonly pattern?: { readonly String?: string } } | null;
  readonly post_processor: { readonly type: string } | null;
  readonly decoder: unknown;
  readonly model: {
    readonly type?: string;
    readonly vocab: VocabularyJson;
    readonly unk_token?: string | null;
    readonly dropout?: number | null;
    readonly byte_fallback?: boolean;
    readonly ignore_merges?: boolean;
    readonly continuing_subword_prefix?: string | null;
    readonly end_of_word_suffix?: string | null;
  };
}

/**
 * Returns the added tokens with the ids of the Rust package: the model's own id, or else the next one after the vocabulary. The ids in
 * the file are ignored.
 */
export function withOwnIds({ added_tokens: added, model }: TokenizerJson): AddedTokenJson[] {
  const byContent = new Map(added.map((token) => [token.content, token]));
  byContent.delete('');
  const ids = idsIn(model.vocab, byContent.keys());
  let next = ids.size < byContent.size ? sizeOf(model.vocab) : 0;
  return [...byContent.values()].map((token) => ({ ...token, id: ids.get(token.content) ?? next++ }));
}

/** Returns the tokens of the model's own vocabulary with their ids. */
export function tokensOf(vocab: VocabularyJson): Iterable<readonly [token: string, id: number]> {
  return isList(vocab) ? vocab.map(([token], id) => [token, id] as const) : Object.entries(vocab);
}

function isList(vocab: VocabularyJson): vocab is readonly (readonly [string, number])[] {
  return Array.isArray(vocab);
}

function sizeOf(vocab: VocabularyJson): number {
  return isList(vocab) ? vocab.length : Object.keys(vocab).length;
}

/** Returns the ids of those tokens that are in the model's own vocabulary. */
export function idsIn(vocab: VocabularyJson, tokens: Iterable<string>): Map<string, number> {
  const [ids, wanted] = [new Map<string, number>(), new Set(tokens)];
  if (isList(vocab)) {
    vocab.forEach(([token], id) => {
      if (wanted.has(token)) ids.set(token, id);
    });
    return ids;
  }
  for (const token of wanted) {
    const id = Object.hasOwn(vocab, token) ? vocab[token] : undefined;
    if (id !== undefined) ids.set(token, id);
  }
  return ids;
}

/** The part of a tokenizer that is used: the library's parts, whose own declarations do not resolve under NodeNext, as the Rust package has them. */
import type { AddedTokens, Section } from './added_tokens.ts';

interface Named {
  readonly constructor: { readonly name: string };
}

/** A pre-tokenizer of the library, reduced to the fields that this code reads. */
export interface LibraryPreTokenizer extends Named {
  readonly config?: {
    readonly type?: string;
    readonly behavior?: string;
    readonly invert?: boolean;
    readonly prepend_scheme?: string;
  };
  readonly pattern?: RegExp | null;
  readonly add_prefix_space?: boolean;
  readonly use_regex?: boolean;
  /** The mark in a space's place. */
  readonly replacement?: string;
  /** Whether text is cut in front of each mark. */
  readonly split?: boolean;
  /** A sequence has them. */
  readonly tokenizers?: readonly LibraryPreTokenizer[];
}

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

/** The fields of tokenizer.json that this code reads. */
export interface TokenizerJson {
  readonly added_tokens: readonly AddedTokenJson[];
  readonly normalizer: { readonly type: string } | null;
  readonly pre_tokenizer: { readonly type: string; readonly pattern?: { readonly String?: string } } | null;
  readonly post_processor: { readonly type: string } | null;
  readonly decoder: unknown;
  readonly model: {
    readonly type?: string;
    readonly vocab: Readonly<Record<string, number>> | readonly (readonly [string, number])[];
    readonly unk_token?: string | null;
    readonly dropout?: number | null;
    readonly byte_fallback?: boolean;
    readonly ignore_merges?: boolean;
    readonly continuing_subword_prefix?: string | null;
    readonly end_of_word_suffix?: string | null;
  };
}

/**
 * An opened tokenizer: the stages of its pipeline (normaliser, pre-tokenizer, model), its added tokens, and encoding and decoding of
 * whole texts.
 */
export interface LibraryTokenizer {
  readonly tokenizer: TokenizerJson;
  readonly normalizer: ((text: string) => string) | null;
  readonly pre_tokenizer: (LibraryPreTokenizer & ((text: string, options: { isFirst: boolean }) => string[])) | null;
  readonly model: {
    /** Without what is added. */
    readonly tokens_to_ids: ReadonlyMap<string, number>;
    /** Tokens by id, with what is added; some ids may be nobody's. */
    readonly vocab: readonly (string | undefined)[];
    readonly config: Readonly<Record<string, unknown>>;
    readonly merges?: readonly (readonly [string, string])[];
    readonly unk_token_id?: number | null;
    /** Unknown ones side by side are one. */
    readonly fuse_unk?: boolean;
    encode(pretokens: readonly string[]): string[];
  };
  readonly added: {
    /** Found in a text as it is. */
    readonly tokens: AddedTokens;
    /** Found in text that was normalised. */
    readonly later: AddedTokens;
    split(text: string): Section[];
    splitNormalised(text: string): Section[];
  };
  /** Ids that come before and after a whole text; undefined when it is not that simple. */
  readonly ends: { readonly before: readonly number[]; readonly after: readonly number[] } | undefined;
  encode(text: string, options: { add_special_tokens: boolean }): { ids: number[]; tokens: string[] };
  decode(ids: readonly number[], options: { skip_special_tokens: boolean }): string;
  token_to_id(token: string): number | undefined;
  get_vocab(): Map<string, number>;
}

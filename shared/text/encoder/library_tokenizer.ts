/**
 * Types of the tokenizer parts that this code uses. The library's own declarations do not resolve under NodeNext. The parts behave as
 * in the Rust package.
 */
import type { TokenizerJson } from '../../model/tokenizer_json.ts';
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
  /** The mark that replaces a space (Metaspace). */
  readonly replacement?: string;
  /** Whether text is cut in front of each mark. */
  readonly split?: boolean;
  /** Parts of a pre-tokenizer of type `Sequence`; absent for other types. */
  readonly tokenizers?: readonly LibraryPreTokenizer[];
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
    /** Ids of the model's own tokens, without added tokens. */
    readonly tokens_to_ids: ReadonlyMap<string, number>;
    /** Tokens by id, added tokens included; undefined for an unused id. */
    readonly vocab: readonly (string | undefined)[];
    readonly config: Readonly<Record<string, unknown>>;
    readonly merges?: readonly (readonly [string, string])[];
    readonly unk_token_id?: number | null;
    /** Whether adjacent unknown tokens become one. */
    readonly fuse_unk?: boolean;
    encode(pretokens: readonly string[]): string[];
  };
  readonly added: {
    /** Added tokens that are matched in the raw text. */
    readonly tokens: AddedTokens;
    /** Added tokens that are matched in the normalised text. */
    readonly later: AddedTokens;
    split(text: string): Section[];
    splitNormalised(text: string): Section[];
  };
  /** Ids that are added before and after a whole text; undefined when the post-processor does anything else. */
  readonly ends: { readonly before: readonly number[]; readonly after: readonly number[] } | undefined;
  /** Returns the ids of a text, and the text of each token. */
  encode(text: string, options: { add_special_tokens: boolean }): { ids: number[]; tokens: string[] };
  /** Returns the text of ids. */
  decode(ids: readonly number[], options: { skip_special_tokens: boolean }): string;
  /** Returns the id of a token; undefined when the vocabulary lacks it. */
  token_to_id(token: string): number | undefined;
  /** Returns all tokens with their ids, the added ones included. */
  get_vocab(): Map<string, number>;
}

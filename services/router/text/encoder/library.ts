/** What is used of the tokenizer library: its own declarations do not resolve under NodeNext. */
import { Tokenizer } from '@huggingface/tokenizers';

interface Named {
  readonly constructor: { readonly name: string };
}

export interface LibraryPreTokenizer extends Named {
  readonly config?: { readonly type?: string; readonly behavior?: string; readonly invert?: boolean };
  readonly pattern?: RegExp | null;
  readonly add_prefix_space?: boolean;
  readonly use_regex?: boolean;
  /** Of a sequence. */
  readonly tokenizers?: readonly LibraryPreTokenizer[];
}

export interface LibraryTokenizer {
  readonly clean_up_tokenization_spaces: boolean;
  readonly remove_space?: boolean;
  readonly do_lowercase_and_remove_accent: boolean;
  readonly tokenizer: {
    readonly added_tokens: readonly {
      readonly id: number;
      readonly content: string;
      readonly lstrip?: boolean;
      readonly rstrip?: boolean;
      readonly single_word?: boolean;
      readonly normalized?: boolean;
      readonly special?: boolean;
    }[];
    readonly normalizer: { readonly type: string } | null;
    readonly pre_tokenizer: { readonly type: string } | null;
    readonly model: {
      readonly type?: string;
      readonly dropout?: number | null;
      readonly byte_fallback?: boolean;
      readonly ignore_merges?: boolean;
      readonly continuing_subword_prefix?: string | null;
      readonly end_of_word_suffix?: string | null;
    };
  };
  readonly normalizer: ((text: string) => string) | null;
  readonly pre_tokenizer: (LibraryPreTokenizer & ((text: string, options: object) => string[])) | null;
  readonly model: {
    readonly tokens_to_ids: ReadonlyMap<string, number>;
    readonly vocab: readonly string[];
    readonly merges?: readonly (readonly [string, string])[];
    readonly unk_token_id?: number;
    /** Unknown ones side by side are one. */
    readonly fuse_unk?: boolean;
    encode(pieces: readonly string[]): string[];
  };
  encode(text: string, options: { add_special_tokens: boolean }): { ids: number[]; tokens: string[] };
  decode(ids: readonly number[], options: { skip_special_tokens: boolean }): string;
  token_to_id(token: string): number | undefined;
  get_vocab(): Map<string, number>;
}

/** Of tokenizer.json and tokenizer_config.json, parsed. @throws Error for a kind that it does not know. */
export function openLibrary(tokenizer: unknown, config: unknown): LibraryTokenizer {
  return new (Tokenizer as unknown as new (json: unknown, config: unknown) => LibraryTokenizer)(tokenizer, config);
}

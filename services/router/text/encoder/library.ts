/** Opens a tokenizer.json with its configuration. */
import type { LibraryTokenizer, TokenizerJson } from './library_tokenizer.ts';
import { RustTokenizer, type TokenizerConfig } from './rust_tokenizer.ts';

/** A tokenizer of tokenizer.json and tokenizer_config.json, parsed. @throws Error for a kind that it does not know */
export function openLibrary(tokenizer: unknown, config: unknown): LibraryTokenizer {
  return new RustTokenizer(tokenizer as TokenizerJson, config as TokenizerConfig);
}

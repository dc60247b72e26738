/** Opens a tokenizer.json with its configuration. */
import type { TokenizerJson } from '../../model/tokenizer_json.ts';
import type { LibraryTokenizer } from './library_tokenizer.ts';
import { RustTokenizer, type TokenizerConfig } from './rust_tokenizer.ts';

/** Opens a tokenizer from the parsed tokenizer.json and tokenizer_config.json. @throws Error for a part of an unknown type */
export function openLibrary(tokenizer: unknown, config: unknown): LibraryTokenizer {
  return new RustTokenizer(tokenizer as TokenizerJson, config as TokenizerConfig);
}

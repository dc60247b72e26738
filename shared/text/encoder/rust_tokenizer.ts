/**
 * A tokenizer.json opened as by the Rust package (`tokenizers` 0.23.3), from parts of `@huggingface/tokenizers` 0.2.0 and patched
 * ones: matching and ids of added tokens, special tokens around a text, and decoding.
 */
import { Tokenizer } from '@huggingface/tokenizers';
import { idsIn, withOwnIds, type AddedTokenJson, type TokenizerJson } from '../../model/tokenizer_json.ts';
import { AddedTokens, type AddedToken } from './added_tokens.ts';
import { spelledBytes } from './characters.ts';
import type { LibraryPreTokenizer, LibraryTokenizer } from './library_tokenizer.ts';
import { mendModels } from './rust_models.ts';
import { mendedPattern, mendStages } from './pipeline_stages.ts';

/** The fields of tokenizer_config.json that this code reads. */
export interface TokenizerConfig {
  readonly additional_special_tokens?: readonly unknown[];
}

interface Normalizer {
  readonly config: { readonly isByteLevel?: boolean };
  /** The parts of a normaliser of type `Sequence`, in order; absent for other types. */
  normalizers?: readonly (Normalizer | { normalize(text: string): string })[];
}

/** Fields of the library's tokenizer, which it does not declare. */
interface Inner {
  readonly normalizer: (Normalizer & ((text: string) => string)) | null;
  readonly pre_tokenizer: LibraryTokenizer['pre_tokenizer'];
  readonly model: Omit<LibraryTokenizer['model'], 'tokens_to_ids'> & {
    readonly tokens_to_ids: Map<string, number>;
    unk_token?: string;
    unk_token_id?: number | null;
  };
  readonly decoder: { decode_chain(tokens: readonly string[]): string[] } | null;
}

interface EncodedToken {
  readonly id: number;
  readonly token: string;
}

/** Order of an encoded sequence: special tokens, and `text` for the text itself. */
type Layout = readonly (EncodedToken | 'text')[];

/** A tokenizer that encodes and decodes as the Rust package does, built from the library's parts, which are patched where they differ. */
export class RustTokenizer implements LibraryTokenizer {
  readonly tokenizer: TokenizerJson;
  readonly normalizer: LibraryTokenizer['normalizer'];
  readonly pre_tokenizer: LibraryTokenizer['pre_tokenizer'];
  readonly model: LibraryTokenizer['model'];
  readonly added: LibraryTokenizer['added'];
  readonly ends: LibraryTokenizer['ends'];
  readonly #decoder: Inner['decoder'];
  readonly #layout: Layout;
  /** Added tokens by id, as the decoder receives them: normalised when they are matched in normalised text. */
  readonly #spelled = new Map<number, string>();
  readonly #addedIds = new Map<string, number>();
  readonly #special: ReadonlySet<string>;

  /** @throws Error when the file has a part of an unknown type, or one that cannot work */
  constructor(json: TokenizerJson, config: TokenizerConfig) {
    refuseEmptyMarks([json.pre_tokenizer, json.decoder] as readonly (MarkedPart | null)[]);
    mendStages();
    mendModels();
    this.tokenizer = { ...json, added_tokens: withOwnIds(json) };
    const known = { ...this.tokenizer, normalizer: knownNormalizer(json.normalizer) };
    const inner = new (Tokenizer as unknown as new (json: unknown, config: unknown) => Inner)(
      { ...known, pre_tokenizer: knownPreTokenizer(json.pre_tokenizer) },
      config,
    );
    complete(inner, this.tokenizer);
    this.normalizer = inner.normalizer;
    this.pre_tokenizer = inner.pre_tokenizer;
    this.model = inner.model;
    this.#decoder = inner.decoder;
    const { added_tokens: added } = this.tokenizer;
    for (const token of added) {
      this.#addedIds.set(token.content, token.id);
      this.#spelled.set(token.id, normalisedIn(token, inner.normalizer));
    }
    this.added = addedTokensOf(added, inner.normalizer);
    this.#special = new Set([
      ...added.filter(({ special }) => special).map(({ content }) => content),
      ...(config.additional_special_tokens ?? []).map(String),
    ]);
    this.#layout = layoutOf(json.post_processor);
    this.ends = endsOf(this.#layout);
  }

  encode(text: string, options: { add_special_tokens: boolean }): { ids: number[]; tokens: string[] } {
    const encoded = this.#tokensOf(text);
    const layout: Layout = options.add_special_tokens ? this.#layout : ['text'];
    const all = layout.flatMap((part) => (part === 'text' ? encoded : [part]));
    return { ids: all.map(({ id }) => id), tokens: all.map(({ token }) => token) };
  }

  #tokensOf(text: string): EncodedToken[] {
    const encoded: EncodedToken[] = [];
    for (const section of this.added.split(text)) {
      if (section.added) {
        encoded.push({ id: section.added.id, token: section.added.content });
        continue;
      }
      for (const part of this.added.splitNormalised(this.normalizer?.(section.text) ?? section.text)) {
        if (part.added) encoded.push({ id: part.added.id, token: this.id_to_token(part.added.id) ?? '' });
        else this.#addPlain(part.text, section.isFirst && part.isFirst, encoded);
      }
    }
    return encoded;
  }

  #addPlain(text: string, isFirst: boolean, encoded: EncodedToken[]): void {
    const parts = this.pre_tokenizer?.(text, { isFirst }) ?? [text];
    const { tokens_to_ids: ids, unk_token_id: unknown } = this.model;
    for (const token of this.model.encode(parts)) {
      const id = ids.get(token) ?? unknown;
      // Without an unknown token in the vocabulary, text that has no token has no id.
      if (id !== undefined && id !== null) encoded.push({ id, token });
    }
  }

  /** Returns the text of token ids. An unused id has no text. */
  decode(ids: readonly number[], options: { skip_special_tokens: boolean }): string {
    const tokens: string[] = [];
    for (const id of ids) {
      const token = this.#spelled.get(id) ?? this.model.vocab[id];
      if (token !== undefined && !(options.skip_special_tokens && this.#special.has(token))) tokens.push(token);
    }
    return this.#decoder ? this.#decoder.decode_chain(tokens).join('') : tokens.join(' ');
  }

  token_to_id(token: string): number | undefined {
    return this.#addedIds.get(token) ?? this.model.tokens_to_ids.get(token);
  }

  id_to_token(id: number): string | undefined {
    return this.model.vocab[id];
  }

  get_vocab(): Map<string, number> {
    return new Map(
      [...this.model.vocab.entries()].flatMap(([id, token]) => (token === undefined ? [] : [[token, id]])),
    );
  }
}

interface Typed {
  readonly type: string;
}

interface MarkedPart extends Typed {
  readonly replacement?: string;
  readonly pretokenizers?: readonly MarkedPart[];
  readonly decoders?: readonly MarkedPart[];
}

/** Expresses a normaliser that the library does not know by ones that it knows. */
function knownNormalizer(config: Typed | null): object | null {
  switch (config?.type) {
    case 'Sequence': {
      const { normalizers } = config as unknown as { readonly normalizers: readonly Typed[] };
      return { ...config, normalizers: normalizers.map(knownNormalizer) };
    }
    case 'Nmt':
      return { type: 'Sequence', normalizers: NMT };
    case 'ByteLevel':
      return { type: 'Sequence', normalizers: [], isByteLevel: true };
    case undefined:
    default:
      return config;
  }
}

const NMT = [
  ['[\\x{1}-\\x{8}\\x{b}\\x{e}-\\x{1f}\\x{7f}\\x{8f}\\x{9f}]', ''],
  ['[\\x{9}\\x{a}\\x{c}\\x{d}\\x{1680}\\x{200b}-\\x{200f}\\x{2028}\\x{2029}\\x{2581}\\x{feff}\\x{fffd}]', ' '],
].map(([Regex, content]) => ({ type: 'Replace', pattern: { Regex }, content }));

/** @throws Error for a Metaspace that marks words with nothing, at which a text would be cut without end: the Rust package opens none */
function refuseEmptyMarks(parts: readonly (MarkedPart | null | undefined)[]): void {
  for (const part of parts) {
    if (part?.type === 'Metaspace' && part.replacement === '') throw new Error('a Metaspace with an empty replacement');
    refuseEmptyMarks([...(part?.pretokenizers ?? []), ...(part?.decoders ?? [])]);
  }
}

function knownPreTokenizer(config: Typed | null): object | null {
  switch (config?.type) {
    case 'Sequence': {
      const { pretokenizers } = config as unknown as { readonly pretokenizers: readonly Typed[] };
      return { ...config, pretokenizers: pretokenizers.map(knownPreTokenizer) };
    }
    case 'CharDelimiterSplit': {
      const { delimiter } = config as unknown as { readonly delimiter: string };
      return { type: 'Split', pattern: { String: delimiter }, behavior: 'Removed', invert: false };
    }
    case undefined:
    default:
      return config;
  }
}

/** Sets what the library's constructors omit or set differently. */
function complete(inner: Inner, { added_tokens: added, model, pre_tokenizer: preTokenizer }: TokenizerJson): void {
  completeNormalizer(inner.normalizer);
  completePreTokenizer(inner.pre_tokenizer, preTokenizer);
  const { tokens_to_ids: ids } = inner.model;
  // The model must know only its own tokens: text in which no added token was matched must not become one.
  for (const { content } of added) ids.delete(content);
  const contents = added.map(({ content }) => content);
  for (const [token, id] of idsIn(model.vocab, contents)) ids.set(token, id);
  if (model.type === 'WordLevel' && model.unk_token) {
    inner.model.unk_token = model.unk_token;
    const unknown = ids.get(model.unk_token);
    if (unknown !== undefined) inner.model.unk_token_id = unknown;
  }
}

function completeNormalizer(normalizer: Normalizer | null): void {
  if (normalizer?.config.isByteLevel) normalizer.normalizers = [{ normalize: spelledBytes }];
  for (const part of normalizer?.normalizers ?? []) if ('config' in part) completeNormalizer(part);
}

function completePreTokenizer(preTokenizer: LibraryPreTokenizer | null, config: Typed | null): void {
  if (preTokenizer === null || config === null) return;
  const settings = config as unknown as Readonly<Record<string, unknown>>;
  const pattern = mendedPattern(config.type, settings);
  if (pattern) Object.assign(preTokenizer, { pattern });
  if (config.type === 'Metaspace') {
    Object.assign(preTokenizer, { config, split: settings['split'] ?? true, str_rep: settings['replacement'] });
  }
  const parts = (settings['pretokenizers'] ?? []) as readonly Typed[];
  parts.forEach((part, i) => completePreTokenizer(preTokenizer.tokenizers?.[i] ?? null, part));
}

function isNormalised({ normalized, special }: AddedTokenJson): boolean {
  return normalized ?? !special;
}

function normalisedIn(token: AddedTokenJson, normalizer: ((text: string) => string) | null): string {
  return normalizer && isNormalised(token) ? normalizer(token.content) : token.content;
}

/**
 * Separates added tokens that are matched in the raw text from added tokens that are matched in the normalised text between the
 * former.
 */
function addedTokensOf(
  added: readonly AddedTokenJson[],
  normalizer: ((text: string) => string) | null,
): LibraryTokenizer['added'] {
  const found = (token: AddedTokenJson): AddedToken => {
    const { id, single_word: singleWord = false, lstrip = false, rstrip = false } = token;
    return { id, content: normalisedIn(token, normalizer), singleWord, lstrip, rstrip };
  };
  // Without a normaliser, and with normalised tokens only, the raw text is the normalised text: all tokens are matched there.
  const hasLater = normalizer !== null || !added.every(isNormalised);
  const all = added.map((token) => ({ isLater: hasLater && isNormalised(token), token: found(token) }));
  const tokens = new AddedTokens(all.flatMap(({ isLater, token }) => (isLater ? [] : [token])));
  const later = new AddedTokens(all.flatMap(({ isLater, token }) => (isLater ? [token] : [])));
  return { tokens, later, split: (text) => tokens.split(text), splitNormalised: (text) => later.split(text) };
}

/** Returns the layout that a post-processor produces. @throws Error for an unknown type */
function layoutOf(config: TokenizerJson['post_processor']): Layout {
  switch (config?.type) {
    case undefined:
    case 'ByteLevel':
      return ['text'];
    case 'BertProcessing':
    case 'RobertaProcessing': {
      const { cls, sep } = config as unknown as { readonly cls: [string, number]; readonly sep: [string, number] };
      return [{ token: cls[0], id: cls[1] }, 'text', { token: sep[0], id: sep[1] }];
    }
    case 'TemplateProcessing':
      return templateLayout(config as unknown as Template);
    case 'Sequence': {
      const { processors } = config as unknown as { readonly processors: readonly Typed[] };
      return processors.reduce<Layout>(
        (layout, processor) => layoutOf(processor).flatMap((part) => (part === 'text' ? layout : [part])),
        ['text'],
      );
    }
    default:
      throw new Error(`unknown kind of post-processor: ${config?.type}`);
  }
}

interface Template {
  readonly single: readonly {
    readonly SpecialToken?: { readonly id: string };
    readonly Sequence?: { readonly id: string };
  }[];
  readonly special_tokens: Readonly<
    Record<string, { readonly ids: readonly number[]; readonly tokens: readonly string[] }>
  >;
}

function templateLayout({ single, special_tokens: special }: Template): Layout {
  return single.flatMap(({ SpecialToken: token, Sequence: sequence }): Layout => {
    if (token === undefined) return sequence?.id === 'A' ? ['text'] : [];
    const { ids = [], tokens = [] } = special[token.id] ?? {};
    return ids.map((id, i) => ({ id, token: tokens[i] ?? token.id }));
  });
}

/** Returns the ids before and after every text; undefined when the layout has the text not exactly once. */
function endsOf(layout: Layout): LibraryTokenizer['ends'] {
  const at = layout.indexOf('text');
  if (at < 0 || layout.lastIndexOf('text') !== at) return undefined;
  const idsOf = (parts: Layout): number[] => parts.flatMap((part) => (part === 'text' ? [] : [part.id]));
  return { before: idsOf(layout.slice(0, at)), after: idsOf(layout.slice(at + 1)) };
}

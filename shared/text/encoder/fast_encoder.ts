/**
 * Encodes text to the same ids as the tokenizer library, faster: known pretokens are looked up, and so are longer chunks that a text
 * has in common with an earlier one. Supports BPE and Unigram as the served model families use them; for other tokenizers the library
 * encodes.
 */
import type { AddedTokens, Section } from './added_tokens.ts';
import { byteToken } from './characters.ts';
import { Ids } from './ids.ts';
import type { LibraryTokenizer } from './library_tokenizer.ts';
import { byteEncoder, characterEncoder, libraryIds } from './pretoken_encoders.ts';
import { PARTED, type PartedText, type FoundChunk, type ChunkEncoder, type ChunkKind } from './parallel_encoding.ts';
import { patternPretokens, unspacedPretokens, type Pretokens } from './pretokens.ts';
import { bytePairsOf, type PairModel } from './rust_models.ts';
import { BEHIND, ownCopy, CHUNK, TextChunkCache } from './text_chunks.ts';

/** Greatest length in code units, and number, of cached pretokens (P1). */
const MAX_PRETOKEN = 64;
const MAX_PRETOKENS = 200_000;
/** Prefix of the cache keys of text that is not split at added tokens yet. No text contains it. */
const UNCUT = '\udc00\ud800';

const PROBE =
  "  The quick brown fox's 1234567 jumps, isn't it? It's OVER!!  \n\n\n\tfor (let i = 0; i < n; i++) {\r\n    x[i] += 3.14e-10; // ok\n}\n" +
  'déjà vu — naïve café Å Ångström, ﬁ ½ ² 你好，世界。こんにちは мир 한국어 العربية हिन्दी ไทย 🙂👩‍👩‍👧 \u00a0\u2003x\u0000y   z\u3000 ';

/** Probe texts that begin and end in different ways. */
const SHORT_PROBES = [
  '',
  ' ',
  '  ',
  'x',
  ' x',
  'x ',
  '\n',
  '\nx',
  '\ufeffx',
  '½',
  ' ½ x²',
  'Ⅷ٣一',
  '▁x',
  'x▁▁x',
  '\u0085x',
  '你 你',
  '☃☃ ☃',
];
/** Texts that probes put on both sides of an added token: a letter, a digit, marks, white space of several kinds. */
const SIDES = ['', 'x', '7', '_', 'é', '你', '\u0301', '.', ' ', '  \n', '\u00a0', '\u0085', '\ufeff'];

/** Pretokens after a position until the text before it no longer affects where pretokens end. */
const SETTLING = 8;

/** Encodes text for BPE and Unigram tokenizers with the same ids as the library, but with caches for pretokens and text chunks. */
export class FastEncoder implements ChunkEncoder {
  readonly #library: LibraryTokenizer;
  readonly #added: AddedTokens;
  /** Added tokens that are matched in the normalised text. */
  readonly #addedLater: AddedTokens;
  readonly #pretokens: Pretokens;
  readonly #encodePretoken: (pretoken: string) => Uint32Array;
  /** Whether normalising leaves ASCII text unchanged (no normaliser, or NFC), so that the normaliser is skipped for ASCII text. */
  readonly #isPlainNormal: boolean;
  /** Whether only the start of a whole text gets a space in front (Metaspace with `prepend_scheme` `first`). */
  readonly #isSpacedFirst: boolean;
  readonly #ends: FastEncoder['ends'];
  readonly #known = new Map<string, Uint32Array>();
  readonly #chunks = new TextChunkCache();
  /** Shares long texts with another thread; undefined when there is none. */
  #parted: PartedText | undefined;

  /** Creates an encoder; undefined for an unsupported kind of tokenizer, or when its ids differ from the library's on the probe texts. */
  static create(library: LibraryTokenizer): FastEncoder | undefined {
    try {
      const encoder = FastEncoder.#create(library);
      return encoder?.isRight ? encoder : undefined;
    } catch {
      // The tokenizer has something that is unknown here; the library may support it.
      return undefined;
    }
  }

  static #create(library: LibraryTokenizer): FastEncoder | undefined {
    const { tokenizer, model, ends } = library;
    const { type, dropout, continuing_subword_prefix: prefix, end_of_word_suffix: suffix } = tokenizer.model;
    if (dropout || prefix || suffix || !ends || !hasWholeBytes(library)) return undefined;
    if (type === 'Unigram') {
      const encode = (pretoken: string): Uint32Array => libraryIds(library, model.encode([pretoken]));
      const pretokens = unspacedPretokens(library);
      return pretokens && new FastEncoder(library, pretokens, encode, ends);
    }
    const pairs = type === 'BPE' && model.merges ? bytePairsOf(model as PairModel) : undefined;
    if (!pairs) return undefined;
    const unspaced = unspacedPretokens(library);
    if (unspaced) return new FastEncoder(library, unspaced, characterEncoder(library, pairs), ends);
    const { pre_tokenizer: preTokenizer } = library;
    const pretokens = preTokenizer ? patternPretokens(preTokenizer, tokenizer.pre_tokenizer?.type ?? '') : undefined;
    const encode = pretokens && byteEncoder(library, pairs);
    return encode && new FastEncoder(library, pretokens, encode, ends);
  }

  private constructor(
    library: LibraryTokenizer,
    pretokens: Pretokens,
    encodePretoken: (pretoken: string) => Uint32Array,
    ends: FastEncoder['ends'],
  ) {
    this.#library = library;
    this.#pretokens = pretokens;
    this.#encodePretoken = encodePretoken;
    this.#ends = ends;
    const { normalizer } = library.tokenizer;
    this.#added = library.added.tokens;
    this.#addedLater = library.added.later;
    this.#isSpacedFirst = library.pre_tokenizer?.config?.prepend_scheme === 'first';
    this.#isPlainNormal = normalizer === null || normalizer.type === 'NFC';
  }

  /** Ids of the added tokens that are matched in the raw text, and so split every text. */
  get addedIds(): number[] {
    return this.#added.ids;
  }

  /** Whether this encoder produces the library's ids for all probe texts: with special tokens and without, and next to added tokens. */
  get isRight(): boolean {
    const added = this.#library.tokenizer.added_tokens.slice(0, 64).map(({ content }) => content);
    const around = added.flatMap((content) => SIDES.map((side) => side + content + side));
    const texts = [
      ...[PROBE, PROBE.trimStart(), ...SHORT_PROBES],
      ...[PROBE + around.join(' '), around.join('.'), added.join(''), added.join(' ')],
      ...added.slice(0, 8).flatMap((content) => [content + PROBE, `x${content} x`, ` ${content}x`]),
    ];
    return texts.every((text) => this.#isRightOf(text, true) && this.#isRightOf(text, false));
  }

  #isRightOf(text: string, isWhole: boolean): boolean {
    const wanted = this.#library.encode(text, { add_special_tokens: isWhole }).ids;
    const ids = this.encode(text, isWhole);
    return ids.length === wanted.length && wanted.every((id, i) => ids[i] === id);
  }

  encode(text: string, addSpecialTokens: boolean): Uint32Array {
    const out = new Ids();
    if (addSpecialTokens) out.addAll(this.#ends.before);
    for (const section of this.#added.split(this.#encodeLeading(text, out))) this.#encodeSection(section, out);
    if (addSpecialTokens) out.addAll(this.#ends.after);
    return out.taken();
  }

  /** Shares long texts with another thread from now on. */
  partWith(parted: PartedText): void {
    this.#parted = parted;
  }

  /**
   * Encodes leading chunks before the text is split at added tokens. Serves texts in which these are everywhere, such as ends of
   * lines. @returns the rest of the text
   */
  #encodeLeading(text: string, out: Ids): string {
    const from = this.#encodeChunks('uncut', text, out);
    return from === 0 ? text : text.slice(from);
  }

  /**
   * Encodes leading chunks of a text. @returns where the rest begins: less than a chunk, or text in which no chunk's end can be
   * determined
   */
  #encodeChunks(kind: ChunkKind, text: string, out: Ids): number {
    let from = 0;
    let isParted = false;
    while (text.length - from > CHUNK + BEHIND) {
      const known = this.#chunks.get(keyOf(kind, text, from));
      if (known) {
        out.addAll(known.ids);
        from += known.length;
        continue;
      }
      const isLong: boolean = !isParted && text.length - from > PARTED;
      isParted ||= isLong;
      const parts = isLong ? (this.#parted?.chunks(this, kind, text, from) ?? []) : [];
      const next = parts.length > 0 ? parts : [this.chunk(kind, text, from, Infinity)];
      for (const chunk of next) {
        if (!chunk) return from;
        out.addAll(chunk.ids);
        if (chunk.isFound) this.#chunks.keep(keyOf(kind, text, from), chunk);
        from += chunk.length;
      }
    }
    return from;
  }

  chunk(kind: ChunkKind, text: string, from: number, cut: number): FoundChunk | undefined {
    return kind === 'uncut' ? this.#uncutChunk(text, from, cut) : this.#plainChunk(text, from, cut);
  }

  cutAfter(kind: ChunkKind, text: string, at: number): number | undefined {
    if (kind === 'uncut') {
      if (this.#isSpacedFirst) return undefined;
      const { sections, length } = this.#added.leading(text.slice(at, at + CHUNK));
      return sections.length > 0 ? at + length : undefined;
    }
    // Not between the halves of a character.
    let cut = /[\udc00-\udfff]/.test(text.charAt(at)) ? at + 1 : at;
    for (let i = 0; i < SETTLING && cut < text.length; i++) cut = this.#pretokens.endOf(text, cut);
    return cut;
  }

  #uncutChunk(text: string, from: number, cut: number): FoundChunk | undefined {
    // A part cannot tell whether it is the start of the whole text.
    if (this.#isSpacedFirst) return undefined;
    const part = text.slice(from, from + CHUNK + BEHIND);
    const { sections, length } = this.#added.leading(part, cut - from);
    if (length === 0) return undefined;
    const out = new Ids();
    for (const section of sections) this.#encodeSection(section, out);
    return { length, ids: out.taken(), isFound: true };
  }

  #plainChunk(text: string, from: number, cut: number): FoundChunk {
    const out = new Ids();
    const end = this.#encodeUpTo(text, from, Math.min(from + CHUNK, cut), out);
    // A pretoken's end can depend on the whole next pretoken and a few characters after it. The chunk is cached only when its key
    // covers all of these.
    const next = end < text.length ? this.#pretokens.endOf(text, end) : end;
    const isFound = next > end && next - from <= CHUNK + BEHIND - 4;
    return { length: end - from, ids: out.taken(), isFound };
  }

  /** Ids that are added before and after a whole text. */
  get ends(): { readonly before: readonly number[]; readonly after: readonly number[] } {
    return this.#ends;
  }

  /** Splits a text into its added tokens and the text between them. */
  sections(text: string): Section[] {
    return this.#added.split(text);
  }

  encodeSections(sections: readonly Section[]): Uint32Array {
    const [first] = sections;
    if (first?.added && sections.length === 1) return Uint32Array.of(first.added.id);
    const out = new Ids();
    for (const section of sections) this.#encodeSection(section, out);
    return out.taken();
  }

  #encodeSection({ text, added, isFirst }: Section, out: Ids): void {
    if (added) {
      out.add(added.id);
      return;
    }
    for (const part of this.#addedLater.split(this.#normalised(text))) {
      if (part.added) out.add(part.added.id);
      else this.#encodePlain(this.#spaced(part.text, isFirst && part.isFirst), out);
    }
  }

  #normalised(text: string): string {
    const { normalizer } = this.#library;
    if (!normalizer || (this.#isPlainNormal && isAscii(text))) return text;
    return normalizer(text);
  }

  /** Applies Metaspace to a text. Its cuts need not be kept, because pretokens end there too. */
  #spaced(text: string, isFirst: boolean): string {
    const { pre_tokenizer: preTokenizer, tokenizer } = this.#library;
    return preTokenizer && tokenizer.pre_tokenizer?.type === 'Metaspace'
      ? preTokenizer(text, { isFirst }).join('')
      : text;
  }

  #encodePlain(text: string, out: Ids): void {
    const start = out.length;
    const from = this.#encodeChunks('plain', text, out);
    this.#encodeRest(from === 0 ? text : text.slice(from), out);
    const { fuse_unk: fuses, unk_token_id: unknown } = this.#library.model;
    if (fuses && typeof unknown === 'number') out.fuse(unknown, start);
  }

  /**
   * Encodes a text that ends here, such as the text between two added tokens. Its cache key is the whole text, because it is shorter
   * than a chunk's key.
   */
  #encodeRest(text: string, out: Ids): void {
    const isKept = text.length > MAX_PRETOKEN && text.length < CHUNK + BEHIND;
    const known = isKept ? this.#chunks.get(text) : undefined;
    if (known) {
      out.addAll(known.ids);
      return;
    }
    const start = out.length;
    this.#encodeUpTo(text, 0, text.length, out);
    if (isKept) this.#chunks.keep(text, { length: text.length, ids: out.since(start) });
  }

  /**
   * Encodes whole pretokens until one ends at or after `until`, at a position from which the rest can be encoded by itself. @returns
   * that position
   */
  #encodeUpTo(text: string, from: number, until: number, out: Ids): number {
    while (from < until || (from < text.length && !this.#pretokens.isCut(text, from))) {
      const end = this.#pretokens.endOf(text, from);
      out.addAll(this.#idsOf(text.slice(from, end)));
      from = end;
    }
    return from;
  }

  #idsOf(pretoken: string): Uint32Array {
    const known = this.#known.get(pretoken);
    if (known) return known;
    const ids = this.#encodePretoken(pretoken);
    if (pretoken.length <= MAX_PRETOKEN) {
      if (this.#known.size >= MAX_PRETOKENS) this.#known.clear();
      this.#known.set(ownCopy(pretoken), ids);
    }
    return ids;
  }
}

/** Returns the cache key of a chunk: the CHUNK + BEHIND characters from its start, after the mark UNCUT for that kind. */
function keyOf(kind: ChunkKind, text: string, from: number): string {
  const part = text.slice(from, from + CHUNK + BEHIND);
  return kind === 'uncut' ? UNCUT + part : part;
}

// eslint-disable-next-line no-control-regex -- what is not ASCII
const BEYOND_ASCII = /[^\u0000-\u007f]/;

function isAscii(text: string): boolean {
  return !BEYOND_ASCII.test(text);
}

/**
 * Whether a character without a token can be encoded by itself: without byte fallback, or when all byte tokens exist and no merge uses
 * one.
 */
function hasWholeBytes({ tokenizer, model }: LibraryTokenizer): boolean {
  if (!tokenizer.model.byte_fallback) return true;
  for (let byte = 0; byte < 256; byte++) if (!model.tokens_to_ids.has(byteToken(byte))) return false;
  return !(model.merges ?? []).some((pair) => pair.some((token) => /^<0x[0-9A-F]{2}>$/.test(token)));
}

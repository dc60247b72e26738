/**
 * Patches normalisers, pre-tokenizers and decoders of `@huggingface/tokenizers` 0.2.0 in this thread so that they match the Rust
 * package (`tokenizers` 0.23.3), with which vocabularies are trained. A patch is needless once the library behaves so itself; tests
 * against recorded results of the Rust package show which are.
 */
import * as tokenizers from '@huggingface/tokenizers';
import { bytesOfLetters } from '../../model/byte_letters.ts';
import {
  behaviorOf,
  replaced,
  spelledBytes,
  split,
  trimmedEnd,
  trimmedStart,
  WORD,
  type Behavior,
} from './characters.ts';

/** The library's classes, which it exports and does not declare. */
const library = tokenizers as unknown as Readonly<
  Record<
    | 'BertNormalizer'
    | 'BertPreTokenizer'
    | 'ByteFallbackDecoder'
    | 'ByteLevelDecoder'
    | 'ByteLevelPreTokenizer'
    | 'CTCDecoder'
    | 'DigitsPreTokenizer'
    | 'FixedLengthPreTokenizer'
    | 'LowercaseNormalizer'
    | 'MetaspaceDecoder'
    | 'MetaspacePreTokenizer'
    | 'PrependNormalizer'
    | 'PunctuationPreTokenizer'
    | 'ReplaceDecoder'
    | 'ReplaceNormalizer'
    | 'SequencePreTokenizer'
    | 'SplitPreTokenizer'
    | 'StripNormalizer'
    | 'WhitespacePreTokenizer'
    | 'WhitespaceSplitPreTokenizer'
    | 'WordPieceDecoder',
    unknown
  >
>;

/** Fields of the library's classes, which it does not declare. */
interface Stage {
  readonly config: Readonly<Record<string, unknown>>;
}

interface Patterned extends Stage {
  pattern: RegExp | null;
}

/** Options of a pre-tokenizer. `isFirst`: the text is the start of the whole text. */
interface PreTokenizeOptions {
  readonly isFirst?: boolean;
}

interface Splitter {
  pre_tokenize_text(text: string, options?: PreTokenizeOptions): string[];
}

interface Metaspace {
  readonly replacement: string;
  readonly prepend_scheme: 'always' | 'first' | 'never';
  /** Dropped by the library's constructor, and set again when a tokenizer is opened. */
  readonly split?: boolean;
}

const ASCII_PUNCTUATION = '!-\\/:-@\\[-`\\{-~';
const PUNCTUATION = new RegExp(`[\\p{P}${ASCII_PUNCTUATION}]`, 'gu');
const SPACES = /\p{White_Space}/gu;
const WORDS = new RegExp(`[${WORD}]+|[^${WORD}\\p{White_Space}]+`, 'gu');
/** The pretoken pattern of GPT-2, with white space as Unicode defines it. */
const GPT2 =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
/** Runs of numeric characters, as Rust's `char::is_numeric` defines them, and runs of other characters. */
const NUMERALS = /\P{N}+|\p{N}+/gu;
const SINGLE_NUMERALS = /\P{N}+|\p{N}/gu;

let isDone = false;

/** Replaces methods of a library class. `This` declares the fields of an instance that the new methods read. */
function mend<This>(kind: unknown, methods: Readonly<Record<string, unknown>> & ThisType<This>): void {
  Object.assign((kind as { readonly prototype: object }).prototype, methods);
}

/**
 * Replaces methods of the library's normalisers, pre-tokenizers and decoders so that they match the Rust package. Only the first call
 * in a thread has an effect.
 */
export function mendStages(): void {
  if (isDone) return;
  isDone = true;
  mendNormalizers();
  mendPreTokenizers();
  mendDecoders();
}

/** Lower-cases each character by itself, so that a sigma at the end of a word has no special form. */
function lowered(text: string): string {
  return Array.from(text, (character) => character.toLowerCase()).join('');
}

/** Chinese characters, in the ranges that the Rust package has. */
const CHINESE =
  /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu;
const NO_TEXT = /(?![\t\n\r])[\0\ufffd\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu;

function mendNormalizers(): void {
  mend<Stage>(library.BertNormalizer, {
    normalize(text: string): string {
      const { clean_text: cleans, handle_chinese_chars: parts, strip_accents: strips, lowercase } = this.config;
      let result = text;
      if (cleans) result = result.replaceAll(NO_TEXT, '').replaceAll(SPACES, ' ');
      if (parts) result = result.replaceAll(CHINESE, ' $& ');
      if (strips ?? lowercase) result = result.normalize('NFD').replaceAll(/\p{Mn}/gu, '');
      return lowercase ? lowered(result) : result;
    },
  });
  mend<Stage>(library.PrependNormalizer, {
    normalize(text: string): string {
      return text === '' ? '' : String(this.config['prepend']) + text;
    },
  });
  mend<Stage>(library.LowercaseNormalizer, { normalize: lowered });
  mend<Stage>(library.StripNormalizer, {
    normalize(text: string): string {
      const left = this.config['strip_left'] ? trimmedStart(text) : text;
      return this.config['strip_right'] ? trimmedEnd(left) : left;
    },
  });
  mend<Patterned>(library.ReplaceNormalizer, {
    normalize(text: string): string {
      return replacedBy(this, text);
    },
  });
}

/** Replaces the matches of the pattern by `content` literally: a dollar sign has no special meaning. */
function replacedBy({ pattern, config }: Patterned, text: string): string {
  const { content } = config;
  return pattern === null ? text : replaced(text, pattern, typeof content === 'string' ? content : '');
}

/** Returns the patched pattern of a pre-tokenizer type whose pattern other code reads too; undefined for other types. */
export function mendedPattern(type: string | undefined, config: Readonly<Record<string, unknown>>): RegExp | undefined {
  if (type === 'ByteLevel') return GPT2;
  if (type === 'Digits') return config['individual_digits'] ? SINGLE_NUMERALS : NUMERALS;
  return undefined;
}

function mendPreTokenizers(): void {
  mend<{ readonly add_prefix_space: boolean; readonly use_regex: boolean }>(library.ByteLevelPreTokenizer, {
    pre_tokenize_text(text: string): string[] {
      const spaced = this.add_prefix_space && !text.startsWith(' ') ? ` ${text}` : text;
      return (this.use_regex ? split(spaced, GPT2, 'isolated') : [spaced]).map(spelledBytes);
    },
  });
  mend(library.WhitespacePreTokenizer, { pre_tokenize_text: (text: string) => split(text, WORDS, 'removed', true) });
  mend(library.WhitespaceSplitPreTokenizer, { pre_tokenize_text: (text: string) => split(text, SPACES, 'removed') });
  mend(library.BertPreTokenizer, {
    pre_tokenize_text: (text: string) =>
      split(text, SPACES, 'removed').flatMap((word) => split(word, PUNCTUATION, 'isolated')),
  });
  mend<Stage>(library.PunctuationPreTokenizer, {
    pre_tokenize_text(text: string): string[] {
      return split(text, PUNCTUATION, behaviorIn(this, 'isolated'));
    },
  });
  mend<Stage>(library.DigitsPreTokenizer, {
    pre_tokenize_text(text: string): string[] {
      return split(text, this.config['individual_digits'] ? SINGLE_NUMERALS : NUMERALS, 'isolated');
    },
  });
  mend<Patterned>(library.SplitPreTokenizer, {
    pre_tokenize_text(text: string): string[] {
      const { pattern, config } = this;
      return pattern === null ? [text] : split(text, pattern, behaviorIn(this, 'isolated'), config['invert'] === true);
    },
  });
  mend<Stage>(library.FixedLengthPreTokenizer, {
    pre_tokenize_text(text: string): string[] {
      const [characters, length] = [Array.from(text), Number(this.config['length'] ?? 5)];
      const count = Math.ceil(characters.length / length);
      return Array.from({ length: count }, (_, i) => characters.slice(i * length, (i + 1) * length).join(''));
    },
  });
  mend<Metaspace>(library.MetaspacePreTokenizer, { pre_tokenize_text: metaspacePretokens });
  mend<{ readonly tokenizers: readonly Splitter[] }>(library.SequencePreTokenizer, {
    pre_tokenize_text(text: string, { isFirst = false }: PreTokenizeOptions = {}): string[] {
      let [pretokens, isStart] = [[text], isFirst];
      for (const tokenizer of this.tokenizers) {
        const first = pretokens[0] ?? '';
        pretokens = pretokens.flatMap((pretoken, i) =>
          tokenizer.pre_tokenize_text(pretoken, { isFirst: isStart && i === 0 }),
        );
        pretokens = pretokens.filter((pretoken) => pretoken !== '');
        // When the first pretoken is not the start of its text, white space in front of it was removed.
        isStart &&= first.startsWith(pretokens[0] ?? '');
      }
      return pretokens;
    },
  });
}

function behaviorIn({ config }: Stage, absent: Behavior): Behavior {
  const { behavior } = config;
  return typeof behavior === 'string' ? behaviorOf(behavior) : absent;
}

function metaspacePretokens(this: Metaspace, text: string, { isFirst = false }: PreTokenizeOptions = {}): string[] {
  const { replacement, prepend_scheme: scheme, split: splits = true } = this;
  let spaced = text.replaceAll(' ', () => replacement);
  const isPrepended = scheme === 'always' || (scheme === 'first' && isFirst);
  if (isPrepended && !spaced.startsWith(replacement)) spaced = replacement + spaced;
  return splits ? beforeEach(spaced, replacement) : [spaced];
}

/** Parts of a text that is cut in front of each mark. */
function beforeEach(text: string, mark: string): string[] {
  const parts: string[] = [];
  let from = 0;
  for (let at = text.indexOf(mark, 1); at >= 0; at = text.indexOf(mark, at + mark.length)) {
    parts.push(text.slice(from, at));
    from = at;
  }
  parts.push(text.slice(from));
  return parts.filter((part) => part !== '');
}

/** Decoders that keep a byte order mark as an ordinary character. */
const utf8 = new TextDecoder('utf-8', { ignoreBOM: true });
const strictUtf8 = new TextDecoder('utf-8', { ignoreBOM: true, fatal: true });
/** Returns the byte of a token such as <0x0A>; undefined for a token of another form. */
function byteOf(token: string): number | undefined {
  const digits = /^<0x([0-9A-Fa-f]{2})>$/.exec(token)?.[1];
  return digits === undefined ? undefined : parseInt(digits, 16);
}

/**
 * Returns the text of a run of bytes, with a replacement character for each byte that belongs to no character. The Rust package
 * replaces all bytes of such a run; a stream has emitted its whole characters by then, so a whole text keeps them too.
 */
function textOf(bytes: readonly number[]): string {
  const all = Uint8Array.from(bytes);
  const whole = characterOf(all);
  if (whole !== undefined) return whole;
  let text = '';
  for (let at = 0; at < all.length;) {
    const length = lengthFrom(all[at]!);
    const character = at + length <= all.length ? characterOf(all.subarray(at, at + length)) : undefined;
    text += character ?? '\ufffd';
    at += character === undefined ? 1 : length;
  }
  return text;
}

/** Returns the length in bytes of a UTF-8 character with this first byte. */
function lengthFrom(byte: number): number {
  if (byte < 0xc0) return 1;
  return byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/** Returns the text of UTF-8 bytes, or undefined when the bytes are not valid UTF-8. */
function characterOf(bytes: Uint8Array): string | undefined {
  try {
    return strictUtf8.decode(bytes);
  } catch {
    return undefined;
  }
}

/** Replacements of the Rust package's `cleanup` within a token. */
const CLEANED: readonly (readonly [string, string])[] = [
  ...['.', '?', '!', ','].map((mark) => [` ${mark}`, mark] as const),
  [" ' ", "'"],
  [" n't", "n't"],
  [" 'm", "'m"],
  [' do not', " don't"],
  ...["'s", "'ve", "'re"].map((end) => [` ${end}`, end] as const),
];

function cleaned(token: string): string {
  return CLEANED.reduce((text, [from, to]) => text.replaceAll(from, () => to), token);
}

function mendDecoders(): void {
  mend(library.ByteLevelDecoder, {
    decode_chain(tokens: readonly string[]): string[] {
      return [utf8.decode(Uint8Array.from(tokens.flatMap((token) => [...bytesOfLetters(token)])))];
    },
  });
  mend(library.ByteFallbackDecoder, { decode_chain: withoutByteTokens });
  mend<Stage & { readonly replacement: string }>(library.MetaspaceDecoder, {
    decode_chain(tokens: readonly string[]): string[] {
      const isPrepended = this.config['prepend_scheme'] !== 'never';
      return tokens.map((token, i) => token.replaceAll(this.replacement, i === 0 && isPrepended ? '' : ' '));
    },
  });
  mend<Stage & { readonly cleanup: boolean }>(library.WordPieceDecoder, {
    decode_chain(tokens: readonly string[]): string[] {
      const prefix = String(this.config['prefix']);
      return tokens.map((token, i) => {
        const isContinued = i > 0 && token.startsWith(prefix);
        const text = isContinued ? token.slice(prefix.length) : i > 0 ? ` ${token}` : token;
        return this.cleanup ? cleaned(text) : text;
      });
    },
  });
  mend<{ readonly pad_token: string; readonly word_delimiter_token: string; readonly cleanup: boolean }>(
    library.CTCDecoder,
    {
      decode_chain(tokens: readonly string[]): string[] {
        return tokens
          .filter((token, i) => token !== tokens[i - 1])
          .map((token) => token.replaceAll(this.pad_token, ''))
          .map((token) => (this.cleanup ? cleaned(token).replaceAll(this.word_delimiter_token, ' ') : token));
      },
    },
  );
  mend<Patterned>(library.ReplaceDecoder, {
    decode_chain(tokens: readonly string[]): string[] {
      return tokens.map((token) => replacedBy(this, token));
    },
  });
}

function withoutByteTokens(tokens: readonly string[]): string[] {
  const texts: string[] = [];
  let bytes: number[] = [];
  const flush = (): void => {
    if (bytes.length > 0) texts.push(textOf(bytes));
    bytes = [];
  };
  for (const token of tokens) {
    const byte = byteOf(token);
    if (byte !== undefined) bytes.push(byte);
    else {
      flush();
      texts.push(token);
    }
  }
  flush();
  return texts;
}

/**
 * The bytes of single tokens, for log-probabilities. A decoder sees a whole text: it drops the first space and replaces incomplete
 * characters. Here each token keeps its space and its bytes, so that the joined bytes of all tokens are the text.
 */
import { bytesOfLetters } from './byte_letters.ts';

/** A character split over tokens decodes to this until its last byte is there. */
export const REPLACEMENT = '\uFFFD';

/** Bytes and name of a single token. A token that is not in the vocabulary has no bytes and is named by its id. */
export interface TokenBytes {
  readonly bytes: Uint8Array;
  /** The token as the vocabulary spells it; unique. */
  readonly name: string;
  /** Whether this is an added token, which the decoder leaves as it is. */
  readonly isAdded: boolean;
}

/** A step of a tokenizer.json's decoder, as far as it changes single tokens. */
interface DecoderStep {
  readonly type: string;
  readonly decoders?: readonly DecoderStep[];
  readonly pattern?: { readonly String?: string; readonly Regex?: string };
  readonly content?: string;
  readonly start?: number;
  readonly stop?: number;
  readonly replacement?: string;
  readonly prefix?: string;
  readonly suffix?: string;
  readonly word_delimiter_token?: string;
}

const BYTE_TOKEN = /^<0x([0-9A-Fa-f]{2})>$/;
const encoder = new TextEncoder();

/** Returns a function from an ordinary token's spelling in the vocabulary to its bytes. `decoder` is the one in tokenizer.json. */
export function tokenSpeller(decoder: unknown): (token: string) => Uint8Array {
  const steps = flattened(decoder as DecoderStep | null | undefined);
  if (steps.some(({ type }) => type === 'ByteLevel')) return bytesOfLetters;
  return (token) => {
    let text = token;
    for (const step of steps) {
      const byte = step.type === 'ByteFallback' ? BYTE_TOKEN.exec(text)?.[1] : undefined;
      if (byte !== undefined) return Uint8Array.of(Number.parseInt(byte, 16));
      text = stepped(step, text);
    }
    return encoder.encode(text);
  };
}

/**
 * Whether a text is the bytes of its tokens as {@link tokenSpeller} has them, one after the other, but for spaces at its start; true only for
 * decoders of which that is known: a byte-level one, and steps that change each token by itself, with bytes put together after them and one
 * space taken from the start of the whole.
 */
export function isBytesOfTokens(decoder: unknown): boolean {
  const steps = flattened(decoder as DecoderStep | null | undefined);
  if (steps.length === 1 && steps[0]?.type === 'ByteLevel') return true;
  const fused = steps.findIndex(({ type }) => type === 'Fuse');
  const [each, whole] = fused < 0 ? [steps, []] : [steps.slice(0, fused), steps.slice(fused + 1)];
  return each.length > 0 && each.every((step, i) => isOfTokens(step, i === each.length - 1)) && whole.every(isOfStart);
}

function isOfTokens({ type, pattern }: DecoderStep, isLast: boolean): boolean {
  if (type === 'ByteFallback') return isLast;
  return type === 'Metaspace' || (type === 'Replace' && pattern?.String !== undefined);
}

function isOfStart({ type, content, start = 0, stop = 0 }: DecoderStep): boolean {
  return type === 'Strip' && content === ' ' && start <= 1 && stop === 0;
}

function flattened(step: DecoderStep | null | undefined): DecoderStep[] {
  if (!step) return [];
  return step.type === 'Sequence' ? (step.decoders ?? []).flatMap((one) => flattened(one)) : [step];
}

/** Applies one decoder step to a token that stands alone, and keeps its spaces. */
function stepped(step: DecoderStep, token: string): string {
  switch (step.type) {
    case 'Replace': {
      const { String: plain, Regex: pattern } = step.pattern ?? {};
      const content = step.content ?? '';
      if (plain !== undefined) return plain === '' ? token : token.replaceAll(plain, () => content);
      return pattern === undefined ? token : token.replaceAll(new RegExp(pattern, 'gu'), () => content);
    }
    case 'Metaspace':
      return token.replaceAll(step.replacement ?? '\u2581', ' ');
    case 'WordPiece': {
      const prefix = step.prefix ?? '##';
      return token.startsWith(prefix) ? token.slice(prefix.length) : ` ${token}`;
    }
    case 'BPEDecoder':
      return token.replaceAll(step.suffix ?? '</w>', ' ');
    case 'CTC':
      return token.replaceAll(step.word_delimiter_token ?? '|', ' ');
    default:
      return token;
  }
}

const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Returns the text of UTF-8 bytes; undefined when they are not whole characters. */
export function charactersOf(bytes: Uint8Array): string | undefined {
  try {
    return strict.decode(bytes);
  } catch {
    return undefined;
  }
}

/** Returns bytes as `\xe2\x80`, the spelling of OpenAI's API for bytes that are no characters. */
export function escapedBytes(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, '0')}`).join('');
}

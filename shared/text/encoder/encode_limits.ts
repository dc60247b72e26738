/** Limits on the text that may be encoded, and concatenation of id lists. */
import { Failure } from '../../base/failure.ts';
import type { CutSide } from '../prompts.ts';

/**
 * Runs `encode`, in which the library needs stack in proportion to the tokens of one pretoken. @throws Failure `invalid_request` when
 * the stack overflows
 */
export function withinStack<T>(encode: () => T): T {
  try {
    return encode();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new Failure('invalid_request', 'the text has a word that is too long to be tokenized: put breaks into it');
  }
}

/** Checks the length of a text. @throws Failure `context_too_long` for a text that cannot fit the context whatever its tokens are. */
export function refuseTooLong(text: string, maxCharacters: number): void {
  if (text.length <= maxCharacters) return;
  throw new Failure(
    'context_too_long',
    `the prompt has ${text.length} characters; no more than ${maxCharacters} can fit the context: shorten it`,
  );
}

/**
 * Returns the last (left cut) or first 2 · `maxCharacters` characters of a text, trimmed to a space: more than the kept tokens can span, so
 * the trimmed edge does not change them.
 */
export function textNearCut(text: string, maxCharacters: number, cutSide: CutSide): string {
  const most = 2 * maxCharacters;
  if (text.length <= most) return text;
  if (cutSide === 'left') {
    const part = text.slice(-most);
    const start = part.indexOf(' ');
    return start >= 0 && start < maxCharacters ? part.slice(start) : part;
  }
  const part = text.slice(0, most);
  const end = part.lastIndexOf(' ');
  return end > maxCharacters ? part.slice(0, end) : part;
}

/** Returns a new array with the ids of all parts, in order. */
export function joined(parts: readonly Uint32Array[]): Uint32Array {
  const all = new Uint32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** Texts that a parser reads as a whole before it knows more: a name, a key, a header, a region of calls. */
import type { CallWriter } from './call_writer.ts';
import type { ParseBody, TextKind } from './output_table.ts';

/** Texts at which a call is over. */
export const END_KINDS: ReadonlySet<TextKind> = new Set<TextKind>(['content', 'reasoning', 'tail']);
/** UTF-16 units of held text (P1): longer text is no call. */
export const MAX_HELD = 1 << 18;
/** UTF-16 units of the name of a parameter or the header of a message (P1). */
const MAX_WORD = 512;
/** A tool's name, in quotes or not, as far as it is there. */
const NAME = /^\s*(["']?)[\w.-]{0,64}\1?\s*$/;

/** Whether a text of this kind may begin like this. */
export function isWord(word: string, kind: TextKind): boolean {
  if (kind === 'body') return word.length <= MAX_HELD;
  return word.length <= MAX_WORD && (kind !== 'name' || NAME.test(word));
}

/** Writes the calls of a region. Returns whether there are any. */
export function writeBody(writer: CallWriter, calls: ReturnType<ParseBody>): boolean {
  for (const { name, json } of calls ?? []) {
    writer.prepare(name);
    writer.raw(json);
    writer.end();
  }
  return calls !== undefined && calls.length > 0;
}

/**
 * Bytes that stand for a special token in a grammar and in the vocabulary of its matcher: a byte that UTF-8 never has, the token's name,
 * another such byte. So no text of a grammar allows a special token, no ordinary tokens spell one, and none is the beginning of another.
 */

/** Byte before the name. */
export const SPECIAL_START = 0xf8;
/** Byte after the name. */
export const SPECIAL_END = 0xf9;

const encoder = new TextEncoder();

/** Returns the bytes of the special token with this name. */
export function specialTokenBytes(name: string): Uint8Array {
  return Uint8Array.of(SPECIAL_START, ...encoder.encode(name), SPECIAL_END);
}

/** Whether bytes cannot be part of a text, nor of a special token: an ordinary token that has them is never allowed. */
export function hasForeignByte(bytes: Uint8Array): boolean {
  return bytes.some((byte) => byte >= SPECIAL_START);
}

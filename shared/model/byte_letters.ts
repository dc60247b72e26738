/** The letters that stand for bytes in a byte-level vocabulary, as GPT-2 has them. */

/**
 * Letter that stands for each byte in a byte-level vocabulary: the byte's own character where it is printable, else one from U+0100
 * on.
 */
export const byteLetters: readonly string[] = (() => {
  let numHidden = 0;
  return Array.from({ length: 256 }, (_, byte) => {
    const isSeen = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    return String.fromCharCode(isSeen ? byte : 256 + numHidden++);
  });
})();

/** Byte of each code unit that is such a letter; -1 for the others. */
const byteOfUnit = (() => {
  const units = byteLetters.map((letter) => letter.charCodeAt(0));
  const bytes = new Int16Array(Math.max(...units) + 1).fill(-1);
  units.forEach((unit, byte) => {
    bytes[unit] = byte;
  });
  return bytes;
})();

const encoder = new TextEncoder();

/** Returns the bytes that a token's letters stand for; the token's own UTF-8 bytes when one of its letters stands for none. */
export function bytesOfLetters(token: string): Uint8Array {
  const bytes = new Uint8Array(token.length);
  for (let at = 0; at < token.length; at++) {
    const byte = byteOfUnit[token.charCodeAt(at)] ?? -1;
    if (byte < 0) return encoder.encode(token);
    bytes[at] = byte;
  }
  return bytes;
}

/** Integers that a double cannot hold, read from the bytes of a JSON object: `JSON.parse` rounds them. */

const [QUOTE, BACKSLASH] = [0x22, 0x5c];
const OPENING = new Set([0x7b, 0x5b]);
const CLOSING = new Set([0x7d, 0x5d]);

/**
 * Returns the value of a top-level key, when it is written as digits alone; the last such value of duplicate keys.
 * @param bytes valid JSON
 * @returns undefined when the key is missing, or its value is written otherwise
 */
export function exactInteger(bytes: Uint8Array, key: string): bigint | undefined {
  let [depth, found] = [0, undefined as bigint | undefined];
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at] ?? 0;
    if (OPENING.has(byte)) depth++;
    else if (CLOSING.has(byte)) depth--;
    if (byte !== QUOTE) continue;
    const end = endOfText(bytes, at);
    if (depth === 1 && nameOf(bytes, at, end) === key) {
      const match = /^\s*:\s*(-?\d+)\s*[,}]/.exec(latin1(bytes, end + 1, end + 1 + MAX_VALUE));
      if (match?.[1] !== undefined) found = BigInt(match[1]);
    }
    at = end;
  }
  return found;
}

/** Returns a key with its escapes decoded; a key over MAX_VALUE bytes is returned as written. */
function nameOf(bytes: Uint8Array, start: number, end: number): unknown {
  const written = latin1(bytes, start + 1, end);
  return written.length <= MAX_VALUE && written.includes('\\') ? JSON.parse(`"${written}"`) : written;
}

/** Bytes within which a value must end: enough for 64 bits and white space around them. */
const MAX_VALUE = 256;

/** The closing quote of the text that begins at `start`. */
function endOfText(bytes: Uint8Array, start: number): number {
  let at = start + 1;
  while (at < bytes.length && bytes[at] !== QUOTE) at += bytes[at] === BACKSLASH ? 2 : 1;
  return at;
}

function latin1(bytes: Uint8Array, start: number, end: number): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString('latin1', start, end);
}

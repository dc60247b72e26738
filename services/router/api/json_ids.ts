/**
 * Parses bodies with long lists of token ids. The lists are read from the bytes into typed arrays, and JSON.parse gets the rest, with
 * a mark in the place of each list. For long prompts, JSON.parse and a check of each id would cost more than all other work on a
 * request.
 */

/** Shorter lists are left to JSON.parse. */
const MIN_IDS = 64;
/** Most digits of an id: token ids have fewer, and so many digits fit a small integer of the JavaScript engine. */
const MAX_DIGITS = 9;
/** Marks that are tried, in case the body contains one itself. */
const MAX_MARKS = 8;

const [QUOTE, BACKSLASH, OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [0x22, 0x5c, 0x5b, 0x5d, 0x7b, 0x7d];
const [COMMA, ZERO, NINE] = [0x2c, 0x30, 0x39];

interface Found {
  /** Byte range [start, end) of the list in the body, brackets included. */
  readonly start: number;
  readonly end: number;
  readonly ids: Uint32Array;
}

type Value = Record<string, unknown>;

/**
 * Returns whether the body is nested over `maxDepth` levels deep, and its lists of at least MIN_IDS whole numbers of up to MAX_DIGITS
 * digits.
 */
export function scan(bytes: Uint8Array, maxDepth: number): { isTooDeep: boolean; found: Found[] } {
  let [depth, isText] = [0, false];
  const found: Found[] = [];
  const { length } = bytes;
  for (let at = 0; at < length; at++) {
    const byte = bytes[at]!;
    if (isText) {
      if (byte === BACKSLASH) at++;
      else if (byte === QUOTE) isText = false;
    } else if (byte === QUOTE) isText = true;
    else if (byte === OPEN_LIST) {
      if (depth + 1 > maxDepth) return { isTooDeep: true, found };
      const list = readList(bytes, at);
      if (list) {
        found.push(list);
        at = list.end - 1;
      } else depth++;
    } else if (byte === OPEN_OBJECT) {
      if (++depth > maxDepth) return { isTooDeep: true, found };
    } else if (byte === CLOSE_LIST || byte === CLOSE_OBJECT) depth--;
  }
  return { isTooDeep: false, found };
}

/** Array for the first numbers of any list: most lists are short, and need no other. */
const scratch = new Uint32Array(256);

/**
 * Reads the list that begins at `start`; undefined when it is shorter than MIN_IDS, or has anything but whole numbers as JSON writes
 * them.
 */
function readList(bytes: Uint8Array, start: number): Found | undefined {
  let ids = scratch;
  let count = 0;
  let at = start + 1;
  // A read after the last byte is undefined, which is no digit either, so the loop ends.
  for (;;) {
    let byte = bytes[at]!;
    while (isSpace(byte)) byte = bytes[++at]!;
    const first = at;
    let id = 0;
    for (; byte >= ZERO && byte <= NINE; byte = bytes[++at]!) id = (Math.imul(10, id) + byte - ZERO) | 0;
    if (at === first || at > first + MAX_DIGITS || (bytes[first] === ZERO && at > first + 1)) return undefined;
    if (count === ids.length) {
      const more = new Uint32Array(4 * count);
      more.set(ids);
      ids = more;
    }
    ids[count++] = id;
    while (isSpace(byte)) byte = bytes[++at]!;
    if (byte !== COMMA) {
      if (byte !== CLOSE_LIST || count < MIN_IDS) return undefined;
      return { start, end: at + 1, ids: ids.slice(0, count) };
    }
    at++;
  }
}

function isSpace(byte: number): boolean {
  return byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09;
}

/**
 * Parses a JSON body. Lists in `found` become Uint32Arrays where they are the value of a top-level key in `keys` or an item of such a
 * value; other lists become arrays. @throws SyntaxError when the body is not JSON.
 */
export function parseWithIds(bytes: Buffer, found: readonly Found[], keys: ReadonlySet<string>): unknown {
  const mark = found.length === 0 ? undefined : markFor(bytes);
  if (mark === undefined) return JSON.parse(bytes.toString('utf8'));
  const parts: string[] = [];
  let from = 0;
  for (const [index, { start, end }] of found.entries()) {
    parts.push(bytes.toString('utf8', from, start), `"${mark}${index}"`);
    from = end;
  }
  parts.push(bytes.toString('utf8', from));
  let parsed: unknown;
  try {
    parsed = JSON.parse(parts.join(''));
  } catch {
    // Parse the original text, so that the error message refers to what the client sent.
    return JSON.parse(bytes.toString('utf8'));
  }
  let numPlaced = 0;
  const idsOf = (value: unknown): Uint32Array | undefined => {
    const list =
      typeof value === 'string' && value.startsWith(mark) ? found[Number(value.slice(mark.length))] : undefined;
    if (list) numPlaced++;
    return list?.ids;
  };
  if (typeof parsed === 'object' && parsed !== null) {
    for (const [key, value] of Object.entries(parsed)) {
      const ids = idsOf(value);
      if (ids) (parsed as Value)[key] = keys.has(key) ? ids : Array.from(ids);
      else if (keys.has(key) && Array.isArray(value))
        (parsed as Value)[key] = value.map((item) => idsOf(item) ?? (item as unknown));
    }
  }
  // A mark was not replaced, because its list is nested deeper or its key is a duplicate: parse the body as written.
  return numPlaced === found.length ? parsed : JSON.parse(bytes.toString('utf8'));
}

/**
 * Returns a placeholder prefix that the body does not contain. Undefined when the body contains all MAX_MARKS candidates, or a `\u`
 * escape, which could spell one.
 */
function markFor(bytes: Buffer): string | undefined {
  if (bytes.includes('\\u')) return undefined;
  let mark = '@ids';
  for (let i = 0; i < MAX_MARKS; i++, mark = `@${mark}`) if (!bytes.includes(mark)) return mark;
  return undefined;
}

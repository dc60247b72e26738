/**
 * The text of JSON values that reach a prompt, as the client wrote them: schemas of tools and inputs of calls. `JSON.parse` makes 1 of 1.0,
 * rounds long integers and moves keys like "404" to the front, and a template prints what it is given.
 */

/** Keys whose values reach a prompt, in the forms of the APIs. */
const KEYS = ['"parameters"', '"input_schema"', '"input"'];
/** Matches what JSON.parse would change: fractions, exponents, long integers, minus zero, keys that look like indexes. */
const CHANGES = /\d[.eE]|\d{16}|-0|"\d+"\s*:/;
/** Marks that are tried, in case the body contains one itself. */
const MAX_MARKS = 8;

const [QUOTE, BACKSLASH, OPEN, CLOSE, COLON] = [0x22, 0x5c, 0x7b, 0x7d, 0x3a];

const texts = new WeakMap<object, string>();

/** Returns the text of an object that was parsed here and that its values do not tell; undefined where they do. */
export function exactTextOf(value: unknown): string | undefined {
  return typeof value === 'object' && value !== null ? texts.get(value) : undefined;
}

/** Parses a body with `parse`, and keeps the texts of its objects that need it. @throws SyntaxError when the body is not JSON */
export function parseExactly(bytes: Buffer, parse: (bytes: Buffer) => unknown): unknown {
  const spans = spansOf(bytes);
  const mark = spans.length === 0 ? undefined : markFor(bytes);
  if (mark === undefined) return parse(bytes);
  const parts: Buffer[] = [];
  let from = 0;
  for (const [index, [start, end]] of spans.entries()) {
    parts.push(bytes.subarray(from, start), Buffer.from(`"${mark}${index}"`));
    from = end;
  }
  parts.push(bytes.subarray(from));
  let parsed: unknown;
  try {
    parsed = parse(Buffer.concat(parts));
  } catch {
    // The error message refers to what the client sent.
    return parse(bytes);
  }
  return placed(parsed, mark, (index) => {
    const [start, end] = spans[index] ?? [0, 0];
    const text = bytes.toString('utf8', start, end);
    const value = JSON.parse(text) as object;
    texts.set(value, text);
    return value;
  });
}

/** Returns the value with objects in the place of their marks. */
function placed(value: unknown, mark: string, objectOf: (index: number) => object): unknown {
  if (typeof value === 'string' && value.startsWith(mark)) return objectOf(Number(value.slice(mark.length)));
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return value;
  for (const [key, inside] of Object.entries(value))
    if (typeof inside === 'object' || typeof inside === 'string')
      (value as Record<string, unknown>)[key] = placed(inside, mark, objectOf);
  return value;
}

/** Ranges of bytes of the objects under KEYS that JSON.parse would change. */
function spansOf(bytes: Buffer): [start: number, end: number][] {
  const spans: [number, number][] = [];
  for (const key of KEYS)
    // Within a text its quotes would have backslashes.
    for (let at = bytes.indexOf(key); at >= 0; at = bytes.indexOf(key, at + 1)) {
      const start = objectBehind(bytes, at + key.length);
      const end = start === undefined ? undefined : endOf(bytes, start);
      if (start !== undefined && end !== undefined && CHANGES.test(bytes.toString('latin1', start, end)))
        spans.push([start, end]);
    }
  spans.sort(([a], [b]) => a - b);
  // Those within another one are parts of its text.
  let last = 0;
  return spans.filter(([start, end]) => {
    if (start < last) return false;
    last = end;
    return true;
  });
}

/** Returns where the object begins that is the value of a key which ends here; undefined where the value is none. */
function objectBehind(bytes: Buffer, from: number): number | undefined {
  let at = from;
  while (isSpace(bytes[at])) at++;
  if (bytes[at++] !== COLON) return undefined;
  while (isSpace(bytes[at])) at++;
  return bytes[at] === OPEN ? at : undefined;
}

const isSpace = (byte: number | undefined): boolean => byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09;

/** Returns where the object that begins here has ended; undefined for one without end. */
function endOf(bytes: Buffer, start: number): number | undefined {
  let [depth, isText] = [0, false];
  for (let at = start; at < bytes.length; at++) {
    const byte = bytes[at];
    if (isText) {
      if (byte === BACKSLASH) at++;
      else if (byte === QUOTE) isText = false;
    } else if (byte === QUOTE) isText = true;
    else if (byte === OPEN) depth++;
    else if (byte === CLOSE && --depth === 0) return at + 1;
  }
  return undefined;
}

function markFor(bytes: Buffer): string | undefined {
  let mark = '@exact';
  for (let i = 0; i < MAX_MARKS; i++, mark = `@${mark}`) if (!bytes.includes(mark)) return mark;
  return undefined;
}

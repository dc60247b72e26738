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
  const objects: object[] = [];
  let from = 0;
  try {
    for (const [index, [start, end]] of spans.entries()) {
      const text = bytes.toString('utf8', start, end);
      const object = JSON.parse(text) as object;
      texts.set(object, text);
      objects.push(object);
      parts.push(bytes.subarray(from, start), Buffer.from(`"${mark}${index}"`));
      from = end;
    }
    parts.push(bytes.subarray(from));
    return new MarkedBody(mark, objects).placed(parse(Buffer.concat(parts)));
  } catch {
    // No JSON, whose error refers to what the client sent; or a mark that the client has spelled, or hidden by a second key.
    return parse(bytes);
  }
}

/** A parsed body with marks in the place of objects. */
class MarkedBody {
  readonly #mark: string;
  readonly #objects: readonly object[];
  readonly #found = new Set<number>();

  constructor(mark: string, objects: readonly object[]) {
    this.#mark = mark;
    this.#objects = objects;
  }

  /** Returns the body with every object in the place of its mark. @throws Error unless each mark is there once */
  placed(body: unknown): unknown {
    const placed = this.#placed(body);
    if (this.#found.size !== this.#objects.length) throw new Error('a mark is not there');
    return placed;
  }

  #placed(value: unknown): unknown {
    if (typeof value === 'string') return value.startsWith(this.#mark) ? this.#objectOf(value) : value;
    if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return value;
    for (const [key, inside] of Object.entries(value))
      if (typeof inside === 'object' || typeof inside === 'string')
        (value as Record<string, unknown>)[key] = this.#placed(inside);
    return value;
  }

  #objectOf(text: string): object {
    const index = Number(text.slice(this.#mark.length));
    const object = this.#objects[index];
    if (!object || this.#found.has(index)) throw new Error('a mark that is none');
    this.#found.add(index);
    return object;
  }
}

/** Ranges of bytes of the objects under KEYS that JSON.parse would change, in order; objects within them are parts of their text. */
function spansOf(bytes: Buffer): [start: number, end: number][] {
  const spans: [number, number][] = [];
  for (const key of KEYS)
    // Within a text its quotes would have backslashes.
    for (let at = bytes.indexOf(key); at >= 0;) {
      const start = objectAfter(bytes, at + key.length);
      const end = start === undefined ? at + key.length : endOf(bytes, start);
      // No JSON.
      if (end === undefined) return [];
      if (start !== undefined && CHANGES.test(bytes.toString('latin1', start, end))) spans.push([start, end]);
      at = bytes.indexOf(key, end);
    }
  spans.sort(([a], [b]) => a - b);
  let last = 0;
  return spans.filter(([start, end]) => {
    if (start < last) return false;
    last = end;
    return true;
  });
}

/** Returns where the object begins that is the value of a key which ends here; undefined where the value is none. */
function objectAfter(bytes: Buffer, from: number): number | undefined {
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

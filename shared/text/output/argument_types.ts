/** JSON types of tool parameters, and values that a model writes as plain text, as JSON of those types. */
import { pythonValue } from './python_literal.ts';

/** Depth to which references and alternatives of a schema are followed, and how many of them (P1): a schema may refer to itself many times. */
const MAX_DEPTH = 8;
const MAX_VISITED = 1_000;
/** UTF-16 units of a value whose type is decided at its end (P1); a longer value is text. */
const MAX_TYPED = 1 << 18;

type Schema = Readonly<Record<string, unknown>>;

function isSchema(value: unknown): value is Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Returns the JSON types that a tool's parameter may have; undefined when its schema does not say. */
export function parameterTypes(parameters: unknown, key: string): ReadonlySet<string> | undefined {
  if (!isSchema(parameters)) return undefined;
  const { properties, additionalProperties } = parameters;
  const own = isSchema(properties) && Object.hasOwn(properties, key) ? properties[key] : additionalProperties;
  const types = typesOf(own, { root: parameters, left: MAX_VISITED }, 0);
  return types === undefined ? undefined : new Set(types);
}

/** Returns the names of a tool's parameters; undefined when its schema names none. */
export function parameterNames(parameters: unknown): readonly string[] | undefined {
  if (!isSchema(parameters) || !isSchema(parameters['properties'])) return undefined;
  const names = Object.keys(parameters['properties']);
  return names.length === 0 ? undefined : names;
}

/** A look through a schema: its root, and how many more schemas in it may be looked at. */
interface Look {
  readonly root: Schema;
  left: number;
}

function typesOf(schema: unknown, look: Look, depth: number): string[] | undefined {
  if (!isSchema(schema) || depth > MAX_DEPTH || look.left-- <= 0) return undefined;
  const { type, $ref: reference, anyOf, oneOf, allOf, enum: values, const: value, nullable } = schema;
  const more = nullable === true ? ['null'] : [];
  if (typeof type === 'string') return [type, ...more];
  if (Array.isArray(type)) return [...type.filter((one) => typeof one === 'string'), ...more];
  if (typeof reference === 'string') return typesOf(referenced(reference, look.root), look, depth + 1);
  const union = Array.isArray(anyOf) ? anyOf : oneOf;
  if (Array.isArray(union)) {
    const all = union.slice(0, MAX_VISITED).map((one) => typesOf(one, look, depth + 1));
    return all.some((one) => one === undefined) ? undefined : [...all.flatMap((one) => one ?? []), ...more];
  }
  if (Array.isArray(allOf))
    return allOf
      .slice(0, MAX_VISITED)
      .map((one) => typesOf(one, look, depth + 1))
      .find((one) => one !== undefined);
  if (Array.isArray(values)) return values.map(typeOf);
  return value === undefined ? undefined : [typeOf(value)];
}

/** Returns what a reference within the document points to; undefined for others. */
function referenced(reference: string, root: Schema): unknown {
  if (!reference.startsWith('#/')) return undefined;
  let at: unknown = root;
  for (const part of reference.slice(2).split('/')) {
    const key = part.replaceAll('~1', '/').replaceAll('~0', '~');
    at = isSchema(at) && Object.hasOwn(at, key) ? at[key] : undefined;
  }
  return at;
}

/** Returns the JSON type of a value; whole numbers are integers. */
function typeOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  if (typeof value === 'number') return Number.isInteger(value) ? 'integer' : 'number';
  return typeof value;
}

/** Characters that a JSON string has with a backslash. */
// eslint-disable-next-line no-control-regex -- these are the characters that are meant
const ESCAPED = /[\u0000-\u001f"\\]/g;

/** Returns a character as it stands in a JSON string. */
export function escaped(char: string): string {
  return char < ' ' || char === '"' || char === '\\' ? JSON.stringify(char).slice(1, -1) : char;
}

/** Returns a text as it stands in a JSON string. */
export function quotable(text: string): string {
  return text.replace(ESCAPED, escaped);
}

/**
 * Writes one value as JSON while its text arrives. A text is written at once; a value of other types when it has ended. In a format with line
 * ends, one at the beginning and one at the end are none of the value.
 */
export class ArgumentValue {
  readonly #types: ReadonlySet<string> | undefined;
  readonly #hasLineEnds: boolean;
  /** Whether the value can only be a text. */
  #isText: boolean;
  #isOpen = false;
  /** Text that is not yet written: all of a value that may be no text, or a line end that may be the last. */
  #held = '';

  constructor(types: ReadonlySet<string> | undefined, hasLineEnds: boolean) {
    this.#types = types;
    this.#hasLineEnds = hasLineEnds;
    this.#isText = types !== undefined && [...types].every((type) => type === 'string');
  }

  /** Reads more of the value, and returns more of the JSON text. */
  push(text: string): string {
    if (this.#isText) return this.#text(text);
    this.#held += text;
    if (this.#held.length <= MAX_TYPED) return '';
    const all = this.#held;
    [this.#held, this.#isText] = ['', true];
    return this.#text(all);
  }

  /** Returns the rest of the JSON text; undefined where the value is empty and its type has no empty value. */
  end(): string | undefined {
    if (this.#isText) return `${this.#open()}"`;
    const text = this.#held.trim();
    const json = this.#typed(text);
    if (json !== undefined) return json;
    if (text === '' && this.#types?.has('string') === false) return this.#types.has('null') ? 'null' : undefined;
    return JSON.stringify(this.#hasLineEnds ? this.#held.replace(/^\n/, '').replace(/\n$/, '') : this.#held);
  }

  /** Returns what is known of a value that ends before its terminal, which is no complete JSON. */
  cut(): string {
    return this.#isText ? this.#open() : this.#held.trim();
  }

  #open(): string {
    if (this.#isOpen) return '';
    this.#isOpen = true;
    return '"';
  }

  #text(text: string): string {
    const opening = this.#open();
    // The first line end is left out, a last one waits for what follows.
    const isLineEnd = opening !== '' && this.#hasLineEnds && text.startsWith('\n');
    const all = this.#held + (isLineEnd ? text.slice(1) : text);
    this.#held = this.#hasLineEnds && all.endsWith('\n') ? '\n' : '';
    return opening + quotable(all.slice(0, all.length - this.#held.length));
  }

  /** Returns the value as JSON of an allowed type; undefined when it is a text. */
  #typed(text: string): string | undefined {
    const json = isJson(text) ? text : pythonValue(text);
    if (json === undefined) return undefined;
    const type = typeOf(JSON.parse(json));
    const types = this.#types;
    const isAllowed =
      types === undefined || types.has(type) || (type === 'integer' && types.has('number')) || types.has('any');
    return isAllowed ? json : undefined;
  }
}

/** Whether a text is a JSON value. */
export function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

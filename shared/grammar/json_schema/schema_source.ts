/** The schema as it was sent: checked against its meta-schema, with its references resolved. */
import { Ajv, type Options } from 'ajv';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { messageOf } from '../../base/failure.ts';
import { acceptsText, type Automaton, automatonOf } from '../automaton.ts';
import { regexLanguage } from '../regex.ts';
import { SchemaError } from './converted_schema.ts';
import { formats } from './formats.ts';

/** Bounds of a schema (P1). */
const MAX_DEPTH = 400;
const MAX_NODES = 200_000;
/** Schemas whose listed values are tried (P1): each is compiled. */
const MAX_COMPILED = 64;

/** A part of the schema and its JSON pointer. Equal pointers are equal parts. */
export interface Located {
  readonly schema: SchemaObject | boolean;
  readonly pointer: string;
}

/** Marks, in a pointer, a schema without its alternatives. It is no part of a JSON pointer, where `0` or `1` follows `~`. */
export const WITHOUT = '~without alternatives';

/** A schema that is no boolean. */
export type SchemaObject = Readonly<Record<string, unknown>>;

/** Patterns are tried by automata: a regular expression of a client may take exponential time. */
const regExp = Object.assign(
  (pattern: string) => {
    // Made when it is tested: most patterns of a schema are not.
    let automaton: Automaton | undefined;
    const test = (text: string): boolean =>
      acceptsText((automaton ??= automatonOf(regexLanguage(pattern, 'search'))), text);
    // The validator tells patterns apart by their texts.
    return { test, toString: () => pattern };
  },
  { code: '' },
);
const options: Options = {
  code: { regExp },
  strict: false,
  allErrors: false,
  logger: false,
  validateSchema: false,
};
/** The name under which the whole schema is known to its validator. */
const ROOT = 'root://schema';

let checkers: { readonly newest: Ajv2020; readonly draft7: Ajv } | undefined;

/** The meta-schemas are compiled at the first check, and serve all schemas. */
function metaCheckers(): { readonly newest: Ajv2020; readonly draft7: Ajv } {
  checkers ??= { newest: new Ajv2020(options), draft7: new Ajv(options) };
  return checkers;
}

/** A whole schema. */
export class SchemaSource {
  readonly root: SchemaObject | boolean;
  /** Pointers by `$id` and by `#anchor`. */
  readonly #names = new Map<string, string>();
  readonly #isDraft7: boolean;
  #validator: Ajv | Ajv2020 | undefined;
  #numCompiled = 0;

  /** @throws SchemaError when the schema is invalid or beyond a bound */
  constructor(schema: unknown) {
    this.#index(schema);
    if (!isSchema(schema)) throw new SchemaError('', 'a schema is an object or a boolean');
    this.root = schema;
    this.#isDraft7 = isDraft7(schema);
  }

  /** Counts the parts, and collects names. */
  #index(schema: unknown): void {
    const open: [unknown, string, number][] = [[schema, '', 1]];
    let nodes = 0;
    for (let next = open.pop(); next; next = open.pop()) {
      const [node, pointer, depth] = next;
      if (depth > MAX_DEPTH)
        throw new SchemaError(pointer.slice(0, 80), `the schema nests deeper than ${MAX_DEPTH} levels`);
      if (++nodes > MAX_NODES)
        throw new SchemaError('', `the schema has more than ${MAX_NODES} parts: make it smaller`);
      if (typeof node !== 'object' || node === null) continue;
      const { $id, $anchor } = node as SchemaObject;
      if (typeof $id === 'string') this.#names.set($id.replace(/#$/, ''), pointer);
      if (typeof $anchor === 'string') this.#names.set(`#${$anchor}`, pointer);
      for (const [key, value] of Object.entries(node)) open.push([value, pointerTo(pointer, key), depth + 1]);
    }
  }

  /** Returns what a `$ref` refers to. @throws SchemaError when that is not in the schema */
  resolve(ref: unknown, pointer: string): Located {
    if (typeof ref !== 'string') throw new SchemaError(pointer, '$ref must be a text');
    const [base = '', fragment = ''] = ref.split('#', 2);
    const start = base === '' ? '' : this.#names.get(base);
    if (start === undefined)
      throw new SchemaError(pointer, `$ref ${JSON.stringify(ref)} is not in this schema: put it into $defs`);
    const target =
      fragment !== '' && !fragment.startsWith('/') ? this.#names.get(`#${fragment}`) : start + decoded(fragment);
    const found = target === undefined ? undefined : this.at(target);
    if (!found) throw new SchemaError(pointer, `$ref ${JSON.stringify(ref)} refers to nothing in this schema`);
    return found;
  }

  /** Returns the part of the schema at a JSON pointer; undefined where there is none. */
  at(pointer: string): Located | undefined {
    const schema = this.#nodeAt(pointer);
    return isSchema(schema) ? { schema, pointer } : undefined;
  }

  #nodeAt(pointer: string): unknown {
    let node: unknown = this.root;
    for (const part of pointer.split('/').slice(1)) {
      const key = part.replaceAll('~1', '/').replaceAll('~0', '~');
      if (typeof node !== 'object' || node === null || !Object.hasOwn(node, key)) return undefined;
      node = (node as SchemaObject)[key];
    }
    return node;
  }

  /** Returns a function that says whether a value is valid in all of these parts of the schema. @throws SchemaError */
  validatorOf(parts: readonly Located[]): (value: unknown) => boolean {
    const [first] = parts;
    if (++this.#numCompiled > MAX_COMPILED)
      throw new SchemaError(
        first?.pointer ?? '',
        `more than ${MAX_COMPILED} lists of values stand next to other keywords: remove values or keywords`,
      );
    try {
      this.#validator ??= this.#newValidator();
      const allOf = parts.map(({ pointer }) => ({ $ref: `${ROOT}#${fragmentOf(pointer)}` }));
      const validate = this.#validator.compile({ allOf });
      return (value) => validate(value);
    } catch (error) {
      throw new SchemaError(first?.pointer ?? '', `the schema cannot be used: ${messageOf(error).slice(0, 200)}`, {
        cause: error,
      });
    }
  }

  #newValidator(): Ajv | Ajv2020 {
    const validator = this.#isDraft7 ? new Ajv(options) : new Ajv2020(options);
    for (const [name, pattern] of formats) validator.addFormat(name, new RegExp(`^(?:${pattern})$`));
    // Under its own name the schema would be one that another request may have, too.
    const { root } = this;
    const named: boolean | Record<string, unknown> =
      typeof root === 'boolean' ? root : { ...root, $schema: undefined, $id: undefined };
    validator.addSchema(named, ROOT);
    return validator;
  }
}

/** Returns the pointer of a part of a part. */
export function pointerTo(pointer: string, ...keys: readonly (string | number)[]): string {
  return keys.reduce<string>(
    (path, key) => `${path}/${String(key).replaceAll('~', '~0').replaceAll('/', '~1')}`,
    pointer,
  );
}

/** Whether a value can be a schema. */
export function isSchema(value: unknown): value is SchemaObject | boolean {
  return typeof value === 'boolean' || (typeof value === 'object' && value !== null && !Array.isArray(value));
}

function decoded(fragment: string): string {
  try {
    return decodeURIComponent(fragment);
  } catch {
    return fragment;
  }
}

/** A pointer without the notes that the conversion made in it, as a fragment. */
function fragmentOf(pointer: string): string {
  return encodeURI(pointer.replaceAll(WITHOUT, '')).replaceAll('#', '%23');
}

/** Checks the schema. Returns whether it is of draft 7: says so, or is none of the newest. @throws SchemaError where it is invalid */
function isDraft7(schema: SchemaObject | boolean): boolean {
  if (typeof schema === 'boolean') return false;
  const { $schema, ...rest } = schema;
  const { newest, draft7 } = metaCheckers();
  const isOld = typeof $schema === 'string' && /draft-0[4-7]/.test($schema);
  if (!isOld && newest.validate('https://json-schema.org/draft/2020-12/schema', rest)) return false;
  const [error] = isOld ? [] : (newest.errors ?? []);
  if (draft7.validate('http://json-schema.org/draft-07/schema', rest)) return true;
  const { instancePath = '', message = '' } = error ?? draft7.errors?.[0] ?? {};
  const place = instancePath === '' ? 'its root' : instancePath;
  throw new SchemaError(instancePath, `the schema is invalid at ${place}: ${message}`);
}

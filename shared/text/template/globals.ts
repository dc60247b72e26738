/** Global functions of every template: `range`, `dict`, `namespace`, `cycler`, `joiner`, `raise_exception` and `strftime_now`. */
import { dictFromKeys, dictOf } from './attributes.ts';
import { strftime } from './clock.ts';
import { intOf } from './strings.ts';
import { str } from './text.ts';
import type { Dict, Given } from './values.ts';
import { Callable, Method, PythonError, Range, Thing, quoted, typeError, valueError, type Value } from './values.ts';

const MAX_RANGE = 100_000;

/** Jinja's `namespace`: an object whose fields a template may set. */
export class Namespace extends Thing {
  readonly type = 'TemplateNamespace';
  override readonly module = 'transformers.utils.chat_template_utils';
  readonly #fields: Dict;

  constructor(fields: Dict) {
    super();
    for (const name of fields.keys()) refuseHidden(name);
    this.#fields = fields;
  }

  override attribute(name: string): Value | undefined {
    return this.#fields.get(name);
  }

  override shown(repr: (value: Value) => string): string {
    return `<Namespace ${repr(this.#fields)}>`;
  }

  set(name: string, value: Value): void {
    refuseHidden(name);
    this.#fields.set(name, value);
  }
}

function refuseHidden(name: Value): void {
  if (typeof name !== 'string' || !name.startsWith('_')) return;
  throw new PythonError(
    'SecurityError',
    `Chat templates cannot store underscore-prefixed attributes on a namespace, but got ${quoted(name)}. Please rename the attribute.`,
  );
}

class Cycler extends Thing {
  readonly type = 'Cycler';
  override readonly module = 'jinja2.utils';
  readonly #items: readonly Value[];
  #at = 0;

  constructor(items: readonly Value[]) {
    super();
    if (items.length === 0) throw new PythonError('RuntimeError', 'at least one item has to be provided');
    this.#items = items;
  }

  override attribute(name: string): Value | undefined {
    const current = this.#items[this.#at] ?? null;
    if (name === 'current') return current;
    if (name === 'next') {
      return new Method(name, this, () => {
        const item = this.#items[this.#at] ?? null;
        this.#at = (this.#at + 1) % this.#items.length;
        return item;
      });
    }
    if (name !== 'reset') return undefined;
    return new Method(name, this, () => {
      this.#at = 0;
      return null;
    });
  }
}

function joiner(given: Given): Callable {
  const [separator = ', '] = given.take('joiner', ['sep']);
  let isUsed = false;
  return new Callable('joiner', () => {
    const text = isUsed ? separator : '';
    isUsed = true;
    return text;
  });
}

function range({ positional }: Given): Range {
  if (positional.length === 0) throw typeError('range expected at least 1 argument, got 0');
  if (positional.length > 3) throw typeError(`range expected at most 3 arguments, got ${positional.length}`);
  const [first = 0, second, step = 1] = positional.map(intOf);
  if (step === 0) throw valueError('range() arg 3 must not be zero');
  const made = second === undefined ? new Range(0, first, 1) : new Range(first, second, step);
  if (made.length <= MAX_RANGE) return made;
  const message = `Range too big. The sandbox blocks ranges larger than MAX_RANGE (${MAX_RANGE}).`;
  throw new PythonError('OverflowError', message);
}

class DictMaker extends Callable {
  override attribute(name: string): Value | undefined {
    return name === 'fromkeys' ? new Callable(name, dictFromKeys) : undefined;
  }
}

/**
 * Returns the global functions of templates by name.
 * @param now returns the time for `strftime_now`
 */
export function globalsAt(now: () => Date): ReadonlyMap<string, Value> {
  const functions = [
    new Callable('range', range),
    new DictMaker('dict', dictOf),
    new Callable('namespace', (given) => new Namespace(dictOf(given))),
    new Callable('cycler', ({ positional }) => new Cycler(positional)),
    new Callable('joiner', joiner),
    new Callable('raise_exception', (given) => {
      throw new PythonError('TemplateError', str(given.take('raise_exception', ['message'], 1)[0] ?? null));
    }),
    new Callable('strftime_now', (given) => strftime(now(), str(given.take('strftime_now', ['format'], 1)[0] ?? null))),
  ];
  return new Map(functions.map((made) => [made.name, made]));
}

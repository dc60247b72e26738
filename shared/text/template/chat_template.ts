/**
 * Chat templates, rendered as Hugging Face transformers 5 renders them: Jinja 3.1 in its immutable sandbox, with `trim_blocks`, `lstrip_blocks`,
 * loop controls, `generation`, `raise_exception`, `strftime_now` and its own `tojson`. What Python's values do, they do here.
 *
 * Not there: `autoescape`, `self` and `super` of blocks, `lipsum`, `random`, and the filters `pprint`, `urlize` and `wordwrap`.
 */
import { globalsAt } from './globals.ts';
import { render } from './interpreter.ts';
import { parse } from './parser.ts';
import { limited } from './steps.ts';
import type { Statement } from './syntax.ts';
import { valueOf, type Value } from './values.ts';

/** A parsed chat template that renders messages to the text of a prompt. */
export class ChatTemplate {
  readonly #body: readonly Statement[];
  readonly #globals: ReadonlyMap<string, Value>;

  /**
   * @param now returns the time for `strftime_now`
   * @throws Error when the source is no valid template
   */
  constructor(source: string, now: () => Date) {
    this.#body = parse(source);
    this.#globals = globalsAt(now);
  }

  /**
   * @param context JSON values by name; undefined leaves the name undefined
   * @throws Error with what the template raises, or Python would raise; StepsExceeded for one that loops
   */
  render(context: Readonly<Record<string, unknown>>): string {
    const given = Object.entries(context).filter(([, value]) => value !== undefined);
    const values = given.map(([name, value]) => [name, valueOf(value)] as const);
    return limited(() => render(this.#body, this.#globals, values));
  }
}

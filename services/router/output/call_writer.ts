/** Writes the tool call that is being read: its name once it is certain, then its arguments as JSON text. */
import { ArgumentValue, parameterTypes } from './argument_types.ts';
import type { DeltaWriter } from './output_delta.ts';

/** JSON schemas of the parameters of a request's tools, by the tool's name. */
export type ToolSchemas = ReadonlyMap<string, unknown>;

const NAME = /^[\w.-]{1,64}$/;

/** Whether a text can be the name of a tool. */
export function isToolName(name: string): boolean {
  return NAME.test(name);
}

/**
 * The current call. It is open from `prepare`, which only names it, and begins with the first text of its arguments: until then it can
 * be dropped without a trace.
 */
export class CallWriter {
  readonly #out: DeltaWriter;
  readonly #tools: ToolSchemas;
  #name: string | undefined;
  #index: number | undefined;
  #numFields = 0;
  #key: string | undefined;
  #value: ArgumentValue | undefined;
  /** Text between the call's parts that is none of it: content behind the call, so that its arguments follow one another. */
  #aside = '';

  constructor(out: DeltaWriter, tools: ToolSchemas) {
    this.#out = out;
    this.#tools = tools;
  }

  /** Whether a call is named and has not ended. */
  get isOpen(): boolean {
    return this.#name !== undefined;
  }

  /** Whether the call has been written to the answer, and can no longer be text. */
  get isBegun(): boolean {
    return this.#index !== undefined;
  }

  /** Whether the request has a tool of this name. */
  isKnown(name: string): boolean {
    return this.#tools.has(name);
  }

  /** Whether a tool's name begins like this. */
  mayBeKnown(beginning: string): boolean {
    return [...this.#tools.keys()].some((name) => name.startsWith(beginning));
  }

  /** Opens a call. */
  prepare(name: string): void {
    this.drop();
    this.#name = name;
  }

  /** Adds JSON text to the arguments. */
  raw(text: string): void {
    if (this.#name === undefined) return;
    this.#index ??= this.#out.call(this.#name);
    this.#out.arguments(this.#index, text);
  }

  /** Adds text that stands within the call and is none of it. */
  aside(text: string): void {
    this.#aside += text;
  }

  /** Begins a parameter, whose value is written next. */
  key(key: string): void {
    this.raw('');
    this.#key = key;
    this.#value = new ArgumentValue(parameterTypes(this.#tools.get(this.#name ?? ''), key));
  }

  /** Adds a character to the parameter's value. */
  value(char: string): void {
    if (!this.#value) return;
    const json = this.#value.push(char);
    if (json !== '') this.raw(this.#field() + json);
  }

  /** Ends the parameter's value. */
  endValue(): void {
    if (this.#value) this.raw(this.#field() + this.#value.end());
    this.#value = undefined;
  }

  /** Ends a call in the middle of a value: its arguments stay incomplete. */
  cut(): void {
    const json = this.#value?.cut() ?? '';
    if (json !== '') this.raw(this.#field() + json);
    this.drop();
  }

  /** Ends the call: a call without arguments gets an empty object. */
  end(): void {
    if (this.#name === undefined) return;
    if (this.#index === undefined) this.raw('{}');
    else if (this.#numFields > 0) this.raw('}');
    else if (this.#value) this.raw('{}');
    this.drop();
  }

  /** Forgets the call. */
  drop(): void {
    [this.#name, this.#index, this.#numFields, this.#key, this.#value] = [
      undefined,
      undefined,
      0,
      undefined,
      undefined,
    ];
    const aside = this.#aside;
    this.#aside = '';
    this.#out.content(aside);
  }

  /** Returns the JSON text before the first text of a value; empty later. */
  #field(): string {
    if (this.#key === undefined) return '';
    const text = `${this.#numFields++ === 0 ? '{' : ', '}${JSON.stringify(this.#key)}: `;
    this.#key = undefined;
    return text;
  }
}

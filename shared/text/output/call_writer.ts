/** Writes the tool call that is being read: its name once it is certain, then its arguments as JSON text. */
import { ArgumentValue, parameterNames, parameterTypes } from './argument_types.ts';
import type { DeltaWriter } from './output_delta.ts';

/** JSON schemas of the parameters of a request's tools, by the tool's name. */
export type ToolSchemas = ReadonlyMap<string, unknown>;

/** UTF-16 units of text within a call that is none of it (P1). */
const MAX_ASIDE = 1 << 16;
const TEXT: ReadonlySet<string> = new Set(['string']);
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
  readonly #onBegin: () => void;
  #call: { readonly name: string; readonly id: string | undefined } | undefined;
  #index: number | undefined;
  /** Parameters that are written one by one; undefined for arguments that come as JSON. */
  #keys: Set<string> | undefined;
  #numFields = 0;
  #field: { readonly key: string; readonly isText: boolean | undefined } | undefined;
  #value: ArgumentValue | undefined;
  /** Text between the call's parts that is none of it: content after the call, so that its arguments follow one another. */
  #aside = '';
  /** Whether only tools of the request can be called. */
  isStrict = false;

  /** @param onBegin called when a call is written to the answer */
  constructor(out: DeltaWriter, tools: ToolSchemas, onBegin: () => void = () => undefined) {
    this.#out = out;
    this.#tools = tools;
    this.#onBegin = onBegin;
  }

  /** Whether a call is named and has not ended. */
  get isOpen(): boolean {
    return this.#call !== undefined;
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

  /** Whether a call may have this name. */
  accepts(name: string): boolean {
    return isToolName(name) && (!this.isStrict || this.isKnown(name));
  }

  /** Whether the tool has a parameter of this name that the call does not have yet; undefined where its schema names none. */
  expects(key: string): boolean | undefined {
    const keys = parameterNames(this.#tools.get(this.#call?.name ?? ''));
    return keys && keys.includes(key) && this.#keys?.has(key) !== true;
  }

  /** Opens a call, and ends one that is there. `id`: as the model wrote it. */
  prepare(name: string, id?: string): void {
    if (this.isBegun) this.end();
    this.drop();
    this.#call = { name, id };
  }

  /** Adds JSON text to the arguments. */
  raw(text: string): void {
    if (!this.#call) return;
    if (this.#index === undefined) {
      this.#onBegin();
      this.#index = this.#out.call(this.#call.name, this.#call.id);
    }
    this.#out.arguments(this.#index, text);
  }

  /** Adds text that stands within the call and is none of it. */
  aside(text: string): void {
    this.#aside = this.#aside === '' ? text.trimStart() : this.#aside + text;
    // So much text is none between the parts of a call.
    if (this.#aside.length > MAX_ASIDE) this.end();
  }

  /** Begins a parameter, whose value is written next. `isText`: whether the format says that its value is a text. */
  key(key: string, isText?: boolean): void {
    this.raw('');
    this.#keys ??= new Set();
    this.#keys.add(key);
    this.#field = { key, isText };
  }

  /** Begins the parameter's value. `hasLineEnds`: whether the format has line ends around it. */
  beginValue(hasLineEnds: boolean): void {
    const { key, isText } = this.#field ?? { key: '' };
    const types = parameterTypes(this.#tools.get(this.#call?.name ?? ''), key);
    this.#value = new ArgumentValue(types ?? (isText === true ? TEXT : undefined), hasLineEnds);
  }

  /** Adds text to the parameter's value. */
  value(text: string): void {
    if (!this.#value || text === '') return;
    const json = this.#value.push(text);
    if (json !== '') this.raw(this.#fieldName() + json);
  }

  /** Ends the parameter's value. One that is empty and cannot be is left out. */
  endValue(): void {
    const json = this.#value?.end();
    if (json !== undefined) this.raw(this.#fieldName() + json);
    [this.#value, this.#field] = [undefined, undefined];
  }

  /** Ends a call in the middle of a value: its arguments stay incomplete. */
  cut(): void {
    const json = this.#value?.cut() ?? '';
    if (json !== '') this.raw(this.#fieldName() + json);
    this.drop();
  }

  /** Ends the call: a value that is open is closed, and a call without arguments gets an empty object. */
  end(): void {
    if (!this.#call) return;
    if (this.#value) this.endValue();
    if (this.#numFields > 0) this.raw('}');
    else if (this.#index === undefined || this.#keys) this.raw('{}');
    this.drop();
  }

  /** Forgets the call. */
  drop(): void {
    [this.#call, this.#index, this.#keys] = [undefined, undefined, undefined];
    [this.#numFields, this.#field, this.#value] = [0, undefined, undefined];
    const aside = this.#aside.trimEnd();
    this.#aside = '';
    this.#out.content(aside);
  }

  /** Returns the JSON text before the first text of a value; empty later. */
  #fieldName(): string {
    if (!this.#field) return '';
    const text = `${this.#numFields++ === 0 ? '{' : ', '}${JSON.stringify(this.#field.key)}: `;
    this.#field = undefined;
    return text;
  }
}

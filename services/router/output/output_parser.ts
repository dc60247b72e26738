/**
 * Parses an answer while it arrives into content, reasoning and tool calls, by the table of its format (output_table.ts).
 *
 * It reads one UTF-16 unit at a time and its state depends on the text so far alone, so that the pieces in which a text arrives make no
 * difference. Text that could still be a call is held; if it turns out to be none, it is content, and nothing is lost. A call whose name
 * is known and whose arguments have begun is a call; the text behind it up to its end is its arguments, valid or not.
 */
import { CallWriter, isToolName, type ToolSchemas } from './call_writer.ts';
import { GemmaReader } from './gemma_reader.ts';
import { CallReader, ObjectReader, type Reader } from './json_reader.ts';
import { DeltaWriter, type DeltaWriterOptions, type OutputDelta } from './output_delta.ts';
import type { OutputTable, PatternTerminal, State, TextKind, Transition } from './output_table.ts';
import { PythonCallReader } from './python_reader.ts';

/** UTF-16 units of held text (P1): longer text is no call. */
const MAX_HELD = 1 << 18;
/** UTF-16 units of the name of a parameter or the header of a message (P1). */
const MAX_WORD = 512;
/** UTF-16 units of a terminal that is a regular expression (P1). */
const MAX_PATTERN = 256;
const SPACE = /\s/;

/** Options of an {@link OutputParser}. */
export interface OutputParserOptions extends DeltaWriterOptions {
  readonly table: OutputTable;
  readonly tools: ToolSchemas;
  /** End of the prompt that belongs to the answer, such as an opened block of reasoning. */
  readonly prefix: string;
}

type Groups = Readonly<Record<string, string>>;

/** Parser of one answer. */
export class OutputParser {
  readonly #states: OutputTable['states'];
  readonly #out: DeltaWriter;
  readonly #call: CallWriter;
  #state: State;
  #reader: Reader | undefined;
  /** The beginning of a terminal. */
  #partial = '';
  /** A terminal that is a regular expression, once its prefix is there, and the text since. */
  #pattern: { readonly terminal: PatternTerminal; text: string } | undefined;
  /** Text since the last content that will be content unless a call begins. */
  #held = '';
  /** Text of a state that is read as a whole: name, key, word or body. */
  #word = '';
  #groups: Groups = {};

  constructor({ table, tools, prefix, ...options }: OutputParserOptions) {
    this.#states = table.states;
    this.#out = new DeltaWriter(options);
    this.#call = new CallWriter(this.#out, tools);
    this.#state = this.#stateOf(table.start);
    this.#enter(this.#state);
    this.push(prefix);
  }

  /** Whether the next text belongs to the reasoning, as far as is known. */
  get isReasoning(): boolean {
    return this.#state.text === 'reasoning' || this.#state.next === 'reasoning';
  }

  /** Reads the next piece of text, and returns what is certain now. */
  push(text: string): OutputDelta[] {
    for (let at = 0; at < text.length; at++) this.#step(text.charAt(at));
    return this.#out.take();
  }

  /** Ends the answer, and returns the rest. A call that the text breaks off keeps the arguments that are there. */
  end(): OutputDelta[] {
    const rest = this.#pattern?.text ?? this.#partial;
    [this.#pattern, this.#partial] = [undefined, ''];
    for (const char of rest) this.#text(char);
    const kind = this.#state.text;
    if (kind === 'body') this.#endBody();
    else if (this.#call.isBegun) {
      if (kind === 'space' || kind === 'tail' || kind === 'arguments') this.#call.end();
      else this.#call.cut();
    }
    if (this.#state.isFormat !== true) this.#out.content(this.#held);
    this.#held = '';
    this.#out.end();
    return this.#out.take();
  }

  #stateOf(name: string): State {
    const state = this.#states.get(name);
    if (!state) throw new Error(`the table has no state ${name}`);
    return state;
  }

  #step(char: string): void {
    if (this.#reader) {
      this.#read(this.#reader, char);
      return;
    }
    if (this.#pattern) {
      this.#extend(this.#pattern, char);
      return;
    }
    const seen = this.#partial + char;
    const { terminals, beginnings } = this.#state;
    const terminal = terminals.get(seen);
    this.#partial = '';
    if (terminal && 'pattern' in terminal) {
      this.#pattern = { terminal, text: '' };
      for (const one of seen) this.#step(one);
    } else if (terminal) this.#follow(terminal, seen, {});
    else if (beginnings.has(seen)) this.#partial = seen;
    else {
      // The first character begins no terminal; a later one may.
      this.#text(seen.charAt(0));
      for (let at = 1; at < seen.length; at++) this.#step(seen.charAt(at));
    }
  }

  /** Tries a regular expression with one more character. */
  #extend(at: { readonly terminal: PatternTerminal; text: string }, char: string): void {
    at.text += char;
    const { pattern, prefix } = at.terminal;
    if (at.text.length < prefix.length) return;
    pattern.lastIndex = 0;
    const found = pattern.exec(at.text);
    if (found) {
      this.#pattern = undefined;
      const { groups = {} } = found;
      this.#follow(at.terminal, found[0], groups);
      for (const one of at.text.slice(found[0].length)) this.#step(one);
    } else if (at.text.length > MAX_PATTERN) {
      this.#pattern = undefined;
      this.#text(at.text.charAt(0));
      for (const one of at.text.slice(1)) this.#step(one);
    }
  }

  #read(reader: Reader, char: string): void {
    const reading = reader.read(char);
    if (reading === 'fail') {
      this.#fail(char);
      return;
    }
    if (reading === 'more') {
      this.#hold(char);
      if (this.#held.length > MAX_HELD) this.#fail('');
      return;
    }
    this.#held = '';
    this.#go(this.#state.next ?? 'content', true);
    if (reading === 'over') this.#step(char);
  }

  /** Reads a character that is no part of a terminal. */
  #text(char: string): void {
    const { text: kind } = this.#state;
    if (kind === 'content') this.#out.content(char);
    else if (kind === 'reasoning') this.#out.reasoning(char);
    else if (kind === 'value') this.#call.value(char);
    else if (kind === 'arguments') this.#arguments(char);
    else if (kind === 'tail' || kind === 'space') this.#between(char, kind);
    else if (kind === 'dropped') this.#hold(char);
    else if (this.#isWord(this.#word + char, kind)) {
      this.#word += char;
      this.#hold(char);
    } else this.#fail(char);
    if (this.#held.length > MAX_HELD) this.#fail('');
  }

  #isWord(word: string, kind: TextKind): boolean {
    if (kind === 'body') return word.length <= MAX_HELD;
    return word.length <= MAX_WORD && (kind !== 'name' || /^\s*[\w.-]{0,64}\s*$/.test(word));
  }

  #arguments(char: string): void {
    if (!this.#call.isBegun && SPACE.test(char)) return;
    this.#held = '';
    this.#call.raw(char);
  }

  /** Reads white space between the parts of a format, or what stands there in its place. */
  #between(char: string, kind: 'tail' | 'space'): void {
    if (SPACE.test(char)) {
      this.#held += char;
    } else if (kind === 'tail') {
      this.#out.content(this.#held + char);
      this.#held = '';
    } else if (this.#state.next !== undefined) {
      this.#go(this.#state.next, false);
      this.#step(char);
    } else if (this.#call.isBegun) this.#call.aside(char);
    else this.#fail(char);
  }

  /** Holds a character until it is known whether it is content; one of a call that has begun is none. */
  #hold(char: string): void {
    this.#held = this.#call.isBegun ? '' : this.#held + char;
  }

  /** Follows a terminal to the next state. */
  #follow({ to, keep = 0 }: Transition, terminal: string, groups: Groups): void {
    const { text: kind } = this.#state;
    const word = this.#word;
    const kept = keep === 0 ? '' : terminal.slice(-keep);
    this.#held += terminal.slice(0, terminal.length - kept.length);
    const chosen = typeof to === 'string' ? { to } : to(word, groups);
    const name = kind === 'name' ? word.trim() : chosen && 'name' in chosen ? chosen.name : undefined;
    if (!chosen || (name !== undefined && !isToolName(name))) {
      this.#fail('');
    } else {
      if (kind === 'key') this.#call.key(word.trim());
      if (kind === 'value') this.#call.endValue();
      if (kind === 'body') this.#endBody();
      else this.#groups = groups;
      if (name !== undefined) this.#call.prepare(name);
      this.#go(chosen.to, true);
    }
    for (const char of kept) this.#step(char);
  }

  /** Goes to a state. Behind a terminal, the text that was held belongs to the format. */
  #go(name: string, isBehindTerminal: boolean): void {
    const { text: before, isFormat: wasFormat } = this.#state;
    if (before === 'reasoning') this.#out.closeReasoning();
    this.#state = this.#stateOf(name);
    const { text: kind, isFormat } = this.#state;
    const isEnd = kind === 'content' || kind === 'reasoning' || kind === 'tail';
    if (isEnd) this.#call.end();
    if (isEnd && !isBehindTerminal && !wasFormat) this.#out.content(this.#held);
    if (isEnd || isFormat || before === 'reasoning' || this.#call.isBegun) this.#held = '';
    this.#enter(this.#state);
  }

  #enter({ text: kind }: State): void {
    this.#word = '';
    this.#reader = this.#readerOf(kind);
    if (kind === 'reasoning') this.#out.openReasoning();
  }

  #readerOf(kind: TextKind): Reader | undefined {
    const call = this.#call;
    if (kind === 'call' || kind === 'known_call') return new CallReader(call, kind === 'known_call');
    if (kind === 'python_call' || kind === 'known_python_call')
      return new PythonCallReader(call, kind === 'known_python_call');
    if (kind === 'gemma_object') return new GemmaReader(call);
    if (kind !== 'object') return undefined;
    return new ObjectReader((text) => {
      call.raw(text);
    });
  }

  /** Writes the calls of a region that has ended; a region that has none is content. */
  #endBody(): void {
    const calls = this.#state.parse?.(this.#word, this.#groups);
    if (!calls || calls.length === 0) {
      this.#out.content(this.#held);
      this.#held = '';
      return;
    }
    this.#held = '';
    for (const { name, json } of calls) {
      this.#call.prepare(name);
      this.#call.raw(json);
      this.#call.end();
    }
  }

  /** The text since the last content is no call: it is content, and the character is read there. */
  #fail(char: string): void {
    const text = this.#call.isBegun ? this.#word : this.#held;
    if (this.#call.isBegun) this.#call.end();
    this.#call.drop();
    this.#held = '';
    this.#go('content', true);
    this.#out.content(text);
    if (char !== '') this.#step(char);
  }
}

/**
 * Parses an answer while it arrives into content, reasoning and tool calls, by the table of its format (output_table.ts).
 *
 * It reads one UTF-16 unit at a time and its state depends on the text so far alone, so that the pieces in which a text arrives make no
 * difference. Text that could still be a call is held; if it turns out to be none, it is content, and nothing is lost. A call whose name
 * is known and whose arguments have begun is a call; the text after it up to its end is its arguments, which are written as JSON.
 */
import { CallWriter, type ToolSchemas } from './call_writer.ts';
import type { Reader } from './json_reader.ts';
import { MessageArguments } from './message_arguments.ts';
import { OpenReasoning } from './open_reasoning.ts';
import { DeltaWriter, type DeltaWriterOptions, type OutputDelta } from './output_delta.ts';
import { BEHIND_CALL, type OutputTable, type State, type Transition } from './output_table.ts';
import { PendingText } from './pending_text.ts';
import { readerOf } from './readers.ts';
import { END_KINDS, isWord, MAX_HELD, writeBody } from './whole_texts.ts';
import { TerminalScanner, type Groups, type Scanned } from './terminal_scanner.ts';
import { namedBy } from './value_reader.ts';

/** Options of an {@link OutputParser}. */
export interface OutputParserOptions extends DeltaWriterOptions {
  readonly table: OutputTable;
  readonly tools: ToolSchemas;
  /** End of the prompt that belongs to the answer, such as an opened block of reasoning. */
  readonly prefix: string;
}

/** Parser of one answer. */
export class OutputParser {
  readonly #states: OutputTable['states'];
  readonly #out: DeltaWriter;
  readonly #call: CallWriter;
  #state: State;
  #reader: Reader | undefined;
  readonly #scanner = new TerminalScanner();
  /** Text since the last content that will be content unless a call begins. */
  #held = '';
  /** Text of a state that is read as a whole: name, key, word or body. */
  #word = '';
  #groups: Groups = {};
  readonly #reasoning = new OpenReasoning();
  readonly #pending = new PendingText();
  #arguments: MessageArguments;

  constructor({ table, tools, prefix, ...options }: OutputParserOptions) {
    this.#states = table.states;
    this.#out = new DeltaWriter(options);
    this.#call = new CallWriter(this.#out, tools, () => {
      this.#reasoning.leave();
      this.#call.isStrict = false;
    });
    this.#arguments = new MessageArguments(this.#call);
    this.#state = this.#stateOf(table.start);
    this.#enter(this.#state);
    this.push(prefix);
  }

  /** Whether the next text belongs to the reasoning, as far as is known. */
  get isReasoning(): boolean {
    return this.#reasoning.isTrial || this.#state.text === 'reasoning' || this.#state.next === 'reasoning';
  }

  /** Reads the next piece of text, and returns what is certain now. */
  push(text: string): OutputDelta[] {
    this.#pending.add(text);
    this.#readPending();
    return this.#out.take();
  }

  #readPending(): void {
    for (let part = this.#pending.next(); part; part = this.#pending.next()) {
      const { text, at } = part;
      part.at = this.#skip(text, at);
      if (part.at > at) continue;
      part.at++;
      this.#step(text.charAt(at));
    }
  }

  /** Reads plain text as it would be read character by character. Returns where it ends. */
  #skip(text: string, at: number): number {
    if (!this.#scanner.isIdle) return at;
    if (this.#reader) return this.#call.isBegun ? (this.#reader.skip?.(text, at) ?? at) : at;
    const { text: kind, plain } = this.#state;
    const isContent = kind === 'content' && this.#out.isInContent;
    const isReasoning = kind === 'reasoning' && this.#reasoning.isPlain;
    const isArgument = kind === 'arguments' && this.#arguments.isInString;
    if (!isContent && !isReasoning && !isArgument) return at;
    plain.lastIndex = at;
    const end = at + (plain.exec(text)?.[0] ?? '').length;
    if (isArgument) return this.#arguments.skip(text, at, end);
    if (end === at) return at;
    if (isContent) this.#out.content(text.slice(at, end));
    else this.#reason(text.slice(at, end));
    return end;
  }

  /**
   * Ends the answer, and returns the rest. A call that breaks off keeps the arguments that are there: as JSON, unless the answer `isCut` by a limit of
   * its length, where nobody is to take them for whole.
   */
  end(isCut = false): OutputDelta[] {
    this.#endTexts(isCut);
    const kind = this.#state.text;
    if (kind === 'body') this.#endBody();
    else if (this.#call.isBegun) {
      if (kind === 'arguments' && !isCut) this.#arguments.end();
      if (!isCut || kind === 'space' || kind === 'tail' || kind === 'arguments') this.#call.end();
      else this.#call.cut();
    }
    if (this.#reasoning.isTrial) this.#out.reasoning(this.#held);
    else if (this.#state.isFormat !== true && this.#state.isDroppedAtEnd !== true) this.#out.content(this.#held);
    this.#held = '';
    this.#out.end();
    return this.#out.take();
  }

  /** Reads what waits for text that does not come. */
  #endTexts(isCut: boolean): void {
    for (;;) {
      const rest = this.#scanner.end();
      if (rest) this.#take(rest);
      else {
        // Text that is left after a value is read again, and may have a value at its end too.
        const reader = this.#reader;
        if (reader?.end?.(isCut) !== 'over') return;
        this.#readBehind(reader.rest ?? '');
      }
      this.#readPending();
    }
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
    const scanned = this.#scanner.read(this.#state, char);
    if (scanned) this.#take(scanned);
  }

  #take(scanned: Scanned): void {
    this.#pending.add(scanned.again);
    if (scanned.kind === 'text') this.#text(scanned.char);
    else this.#follow(scanned.transition, scanned.literal, scanned.groups);
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
    this.#readBehind(reading === 'over' ? (reader.rest ?? char) : '');
  }

  /** Goes to the state after a value, and reads again what its reader has left over. */
  #readBehind(rest: string): void {
    this.#held = '';
    this.#go(this.#state.next ?? 'content', true);
    this.#pending.again(rest);
  }

  /** Reads a character that is no part of a terminal. */
  #text(char: string): void {
    const { text: kind } = this.#state;
    if (kind === 'content') this.#out.content(char);
    else if (kind === 'reasoning') this.#reason(char);
    else if (kind === 'arguments') {
      this.#arguments.push(char);
      if (this.#call.isBegun) this.#held = '';
    } else if (kind === 'tail' || kind === 'space') this.#between(char, kind);
    else if (kind === 'dropped' || kind === 'undecided') this.#hold(char);
    else if (isWord(this.#word + char, kind)) {
      this.#word += char;
      this.#hold(char);
    } else this.#fail(char);
    if (this.#held.length > MAX_HELD) this.#fail('');
  }

  #reason(text: string): void {
    this.#out.reasoning(text);
    this.#reasoning.push(text);
  }

  /** Reads white space between the parts of a format, or what stands there in its place. */
  #between(char: string, kind: 'tail' | 'space'): void {
    if (kind === 'space' && this.#state.next === undefined && this.#call.isBegun) this.#call.aside(char);
    else if (/\s/.test(char)) {
      this.#held += char;
    } else if (kind === 'tail' && this.#reasoning.isLeft) {
      this.#pending.add(char);
      this.#go('content', true);
    } else if (kind === 'tail') {
      this.#out.content(this.#held + char);
      this.#held = '';
    } else if (this.#state.next !== undefined) {
      this.#pending.add(char);
      this.#go(this.#state.next, false);
    } else this.#fail(char);
  }

  /** Holds a character until it is known whether it is content; one of a call that has begun is none. */
  #hold(char: string): void {
    this.#held = this.#call.isBegun ? '' : this.#held + char;
  }

  /** Follows a terminal to the next state. */
  #follow({ to, keep = 0, isTrial = false, ...what }: Transition, terminal: string, groups: Groups): void {
    if (isTrial && (this.#pending.isSpent || !this.#reasoning.try())) {
      for (const char of terminal) this.#reason(char);
      return;
    }
    const { text: kind } = this.#state;
    const word = this.#word;
    const kept = keep === 0 ? '' : terminal.slice(-keep);
    if (isTrial) this.#call.isStrict = true;
    // Another call begins, whether the one before it was ended or not.
    if (what.isCall === true && this.#call.isBegun) this.#call.end();
    if (kind === 'undecided') this.#decide(what.isClosing === true);
    this.#pending.add(kept);
    if (what.isClosing !== true) this.#held += terminal.slice(0, terminal.length - kept.length);
    const chosen = typeof to === 'string' ? { to } : to(word, groups, (one) => this.#call.isKnown(one));
    const named = kind === 'name' ? { name: namedBy(word).name } : chosen;
    const { name, id }: { readonly name?: string; readonly id?: string } = named ?? {};
    if (!chosen || (name !== undefined && !this.#call.accepts(name))) {
      this.#fail('');
    } else {
      if (kind === 'key') {
        const key = namedBy(word);
        // A key that another one follows has no value.
        if (chosen.to === 'key') this.#call.aside(word);
        else this.#call.key(key.name, key.isText);
      }
      if (kind === 'arguments') this.#arguments.end();
      if (kind === 'body') this.#endBody();
      else this.#groups = groups;
      if (name !== undefined) this.#call.prepare(name, id);
      this.#go(chosen.to, true);
    }
  }

  /** Decides what the text after a call is that began in open reasoning: reasoning where its end follows, else content. */
  #decide(isReasoning: boolean): void {
    if (isReasoning) {
      this.#out.reasoning(this.#held);
      this.#out.closeReasoning();
    } else this.#out.content(this.#held);
    this.#held = '';
  }

  /** Goes to a state. After a terminal, the text that was held belongs to the format. */
  #go(name: string, isBehindTerminal: boolean): void {
    const { text: before, isFormat: wasFormat } = this.#state;
    const isEnd = END_KINDS.has(this.#stateOf(name).text);
    if (isEnd) this.#call.end();
    if (isEnd && this.#reasoning.isTrial) {
      this.#resumeReasoning('');
      return;
    }
    if (before === 'reasoning' && !this.#reasoning.isTrial) this.#out.closeReasoning();
    const isBehindCall = this.#reasoning.isLeft && name === 'content' && this.#state !== this.#states.get(BEHIND_CALL);
    this.#reasoning.isLeft &&= name !== 'content' || isBehindCall;
    this.#state = this.#stateOf(isBehindCall ? BEHIND_CALL : name);
    if (isEnd && !isBehindTerminal && !wasFormat) this.#out.content(this.#held);
    const isOver = isEnd || this.#state.isFormat === true || before === 'reasoning' || this.#call.isBegun;
    if (isOver && !this.#reasoning.isTrial) this.#held = '';
    this.#enter(this.#state);
  }

  #enter(state: State): void {
    this.#word = '';
    this.#reader = readerOf(state, this.#call, this.#pending.isSpent);
    if (state.text === 'arguments') this.#arguments = new MessageArguments(this.#call);
    if (state.text === 'reasoning') this.#out.openReasoning();
  }

  /** Writes the calls of a region that has ended; a region that has none is content. */
  #endBody(): void {
    const hasCalls = writeBody(this.#call, this.#state.parse?.(this.#word, this.#groups));
    if (!hasCalls) this.#out.content(this.#held);
    this.#held = '';
  }

  /** The text since the last content is no call: it is content, or reasoning that goes on, and the character is read there. */
  #fail(char: string): void {
    if (this.#reasoning.isTrial) {
      this.#resumeReasoning(char);
      return;
    }
    const text = this.#call.isBegun ? this.#word : this.#held;
    if (this.#call.isBegun) this.#call.end();
    this.#call.drop();
    this.#held = '';
    this.#go('content', true);
    this.#out.content(text);
    this.#pending.add(char);
  }

  /** Goes on with the reasoning, which only mentioned a marker. The text after it is read again. */
  #resumeReasoning(char: string): void {
    const text = this.#held + char;
    this.#call.drop();
    [this.#reasoning.isTrial, this.#call.isStrict, this.#held] = [false, false, ''];
    this.#state = this.#stateOf('reasoning');
    [this.#word, this.#reader] = ['', undefined];
    this.#pending.again(text.slice(1));
    this.#reason(text.charAt(0));
  }
}

/** Pieces of a parsed answer, and the writer that collects them. White space that belongs to the format and not to the answer is left out here. */

/** One piece of an answer: text for the reader, text of the reasoning, the start of a tool call, or more of a call's arguments. */
export type OutputDelta =
  | { readonly kind: 'content'; readonly text: string }
  | { readonly kind: 'reasoning'; readonly text: string }
  | { readonly kind: 'call'; readonly index: number; readonly id: string; readonly name: string }
  | { readonly kind: 'arguments'; readonly index: number; readonly text: string };

/** UTF-16 units of white space that are held until it is known whether text follows (P1); more of it is content. */
const MAX_SPACE = 1_024;

/** Options of a {@link DeltaWriter}. */
export interface DeltaWriterOptions {
  readonly newCallId: (name: string, index: number) => string;
  /** Upper bound of the calls of the answer; further ones are dropped. */
  readonly maxCalls: number;
}

/**
 * Collects the deltas of one answer; adjacent pieces of a kind become one. White space is no content where it only stands between
 * regions: before and after calls and reasoning, and around the reasoning itself.
 */
export class DeltaWriter {
  readonly #options: DeltaWriterOptions;
  #deltas: OutputDelta[] = [];
  /** White space that is held until text follows. */
  #space = '';
  /** The region before the pending content; undefined once the content has text other than white space. */
  #after: 'nothing' | 'reasoning' | 'call' | undefined = 'nothing';
  #hasReasoningText = false;
  #numCalls = 0;

  constructor(options: DeltaWriterOptions) {
    this.#options = options;
  }

  /** Returns the deltas since the last call. */
  take(): OutputDelta[] {
    const deltas = this.#deltas;
    this.#deltas = [];
    return deltas;
  }

  /** Whether text is content as it comes, white space included. */
  get isInContent(): boolean {
    return this.#after === undefined;
  }

  /** Adds text of the answer. */
  content(text: string): void {
    if (text === '') return;
    if (this.#after === undefined) {
      this.#add('content', text);
      return;
    }
    const all = this.#space + text;
    const start = all.search(/\S/);
    this.#space = '';
    if (start < 0 && all.length <= MAX_SPACE) {
      this.#space = all;
      return;
    }
    this.#add('content', this.#after === 'reasoning' ? all.slice(Math.max(0, start)) : all);
    this.#after = undefined;
  }

  /** Begins a block of reasoning. */
  openReasoning(): void {
    this.#space = '';
    this.#hasReasoningText = false;
  }

  /** Adds text of the reasoning. */
  reasoning(text: string): void {
    const all = this.#hasReasoningText ? this.#space + text : (this.#space + text).trimStart();
    const trimmed = all.trimEnd();
    // It is read as character by character: each time that it is too much, all of it is text.
    const end = all.length - ((all.length - trimmed.length) % (MAX_SPACE + 1));
    this.#space = all.slice(end);
    this.#add('reasoning', all.slice(0, end));
    if (trimmed !== '') this.#hasReasoningText = true;
  }

  /** Ends a block of reasoning. */
  closeReasoning(): void {
    this.#space = '';
    this.#after = 'reasoning';
  }

  /** Begins a call and returns its index, with which its arguments are written. `ownId`: as the model wrote it. */
  call(name: string, ownId?: string): number {
    this.#space = '';
    this.#after = 'call';
    const index = this.#numCalls++;
    if (index < this.#options.maxCalls) {
      const id = ownId ?? this.#options.newCallId(name, index);
      this.#deltas.push({ kind: 'call', index, id, name });
    }
    return index;
  }

  /** Adds JSON text to the arguments of a call. */
  arguments(index: number, text: string): void {
    if (text === '' || index >= this.#options.maxCalls) return;
    const last = this.#deltas.at(-1);
    if (last?.kind === 'arguments' && last.index === index)
      this.#deltas[this.#deltas.length - 1] = { ...last, text: last.text + text };
    else this.#deltas.push({ kind: 'arguments', index, text });
  }

  /** Ends the answer: white space is content when the answer has nothing else. */
  end(): void {
    if (this.#after === 'nothing') this.#add('content', this.#space);
    this.#space = '';
  }

  #add(kind: 'content' | 'reasoning', text: string): void {
    if (text === '') return;
    const last = this.#deltas.at(-1);
    if (last?.kind === kind) this.#deltas[this.#deltas.length - 1] = { kind, text: last.text + text };
    else this.#deltas.push({ kind, text });
  }
}

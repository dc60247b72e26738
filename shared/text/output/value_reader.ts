/**
 * Reader of a parameter's value in formats that have no escapes, such as `<parameter=KEY>value</parameter>`. A value may hold the format's own
 * markers: an agent writes about its tools. What follows a marker tells whether it ends the value:
 *
 *   </parameter>\n<parameter=…>     the next parameter, or the end of the call: it ends the value
 *   </parameter> in this format     text
 *   <parameter=…>…</parameter>      text: an example within the value, which has its own end
 *
 * Where a marker was left out, the next parameter of the tool or the end of the call ends the value. A place that can only be told later is
 * kept as a doubt: the text after it is held until it is told.
 */
import type { CallWriter } from './call_writer.ts';
import type { Reader, Reading } from './json_reader.ts';

/** Markers of a format's parameters. All of them begin with `<`. */
export interface ValueMarks {
  /** After a value. */
  readonly close: readonly string[];
  /** Before the name of the next parameter. */
  readonly open: readonly string[];
  /** After the name. */
  readonly openEnd: string;
  /** At the end of a call, and of several. */
  readonly end: readonly string[];
  /** Before the name of a call. */
  readonly call: readonly string[];
  /** Around calls, before the first. */
  readonly calls: readonly string[];
  /** Whether a line end stands before a value and one after it. */
  readonly hasLineEnds: boolean;
  /** Markers that close reasoning, which a call in it has left open. */
  readonly over?: readonly string[];
}

/** UTF-16 units that are held in doubt (P1). */
const MAX_HELD = 1 << 18;
/** UTF-16 units of a parameter's name, and of white space between markers (P1). */
const MAX_NAME = 512;

/** Name of a call, and a character after it. */
const CALL_NAME = /^(?<word>"[\w.-]+"?|'[\w.-]+'?|[\w.-]+)?(?<behind>[^\w.-])/;

type MarkKind = 'close' | 'open' | 'end' | 'call' | 'calls' | 'over';
const KINDS: readonly MarkKind[] = ['close', 'open', 'end', 'call', 'calls', 'over'];

/** A marker at a place of the text: `partial` may still become one, `none` cannot. */
type Found =
  | { readonly kind: MarkKind; readonly literal: string; readonly end: number }
  | { readonly kind: 'partial'; readonly of: ReadonlySet<MarkKind> }
  | { readonly kind: 'none' };

/** Text after a marker: another marker, other text, nothing, or not yet known. */
type Follow = MarkKind | 'text' | 'nothing' | 'unknown';

/** Where the value may end, and where the text after it begins, in the text that is not written. */
interface ValueEnd {
  readonly at: number;
  readonly rest: number;
}

/** Returns the name of a parameter or function without its quotes, and whether the marker says that the value is a text. */
export function namedBy(word: string): { readonly name: string; readonly isText: boolean | undefined } {
  const { double, single, type } =
    /^\s*(?:"(?<double>[^"]*)"|'(?<single>[^']*)')(?:\s+string="(?<type>true|false)")?/.exec(word)?.groups ?? {};
  return { name: (double ?? single ?? word).trim(), isText: type === undefined ? undefined : type === 'true' };
}

/** Reads one value. */
export class ValueReader implements Reader {
  readonly #call: CallWriter;
  readonly #marks: ValueMarks;
  /** Text that is held in doubt, in which no marker is undecided. */
  #held = '';
  /** Text after it, and the place up to which no marker is undecided in it. */
  #text = '';
  #at = 0;
  /** Whether the text begins a line. */
  #isLineStart = true;
  /** Parameters that are open in the text of the value, and calls. */
  #numOpen = 0;
  #numCalls = 0;
  /** Where the value ends unless a later one turns out to be its end; a `stray` one has other text after it. */
  #doubt: (ValueEnd & { readonly isStray: boolean }) | undefined;
  readonly #isPlain: boolean;
  rest = '';

  /** @param isPlain whether the value ends at the first marker that can end it, whatever follows */
  constructor(call: CallWriter, marks: ValueMarks, isPlain = false) {
    this.#call = call;
    this.#marks = marks;
    this.#isPlain = isPlain;
    call.beginValue(marks.hasLineEnds);
  }

  read(char: string): Reading {
    this.#text += char;
    return this.#scan(false);
  }

  skip(text: string, at: number): number {
    if (this.#doubt || (this.#text !== '' && this.#text !== '\n')) return at;
    const found = text.indexOf('<', at);
    const end = found < 0 ? text.length : found;
    if (end === at) return at;
    const all = this.#text + text.slice(at, end);
    this.#text = all.endsWith('\n') ? '\n' : '';
    this.#at = this.#text.length;
    const written = all.slice(0, all.length - this.#text.length);
    this.#write(written);
    if (written !== '') this.#isLineStart = written.endsWith('\n');
    return end;
  }

  /**
   * Reads the end of the answer. Returns `over` where the value had ended before it. Of an answer that `isCut`, other text after a marker
   * is the value's.
   */
  end(isCut: boolean): Reading {
    const reading = this.#scan(true, isCut);
    if (reading === 'over') return reading;
    if (this.#doubt && !(isCut && this.#doubt.isStray)) return this.#endAt(this.#doubt);
    this.#write(this.#held + this.#text);
    [this.#held, this.#text] = ['', ''];
    return 'more';
  }

  #scan(isLast: boolean, isCut = false): Reading {
    for (;;) {
      const at = this.#text.indexOf('<', this.#at);
      this.#at = at < 0 ? this.#text.length : at;
      if (at < 0) break;
      const found = this.#markAt(at);
      if (found.kind === 'partial') {
        if (!isLast) break;
        // A marker that the answer breaks off in is none of the value's text.
        if (!isCut && found.of.has('close') && this.#text.length - at > 1)
          return this.#endAt(this.#place(at, this.#text.length));
      } else if (found.kind !== 'none') {
        const place = this.#judge(found.kind, at, found.end, isLast);
        if (place === 'wait') break;
        if (place) return this.#endAt(place);
        this.#at = found.end;
        continue;
      }
      this.#at = at + 1;
    }
    // A line end may belong to a marker that follows.
    this.#flush(this.#text.charAt(this.#at - 1) === '\n' ? this.#at - 1 : this.#at);
    if (this.#doubt && this.#held.length > MAX_HELD) {
      if (this.#numOpen > 0 || this.#numCalls > 0) return this.#endAt(this.#doubt);
      this.#doubt = undefined;
      this.#write(this.#held);
      this.#held = '';
    }
    return 'more';
  }

  /** Returns a place by where it is in the text after what is held. */
  #place(at: number, rest: number): ValueEnd {
    return { at: this.#held.length + at, rest: this.#held.length + rest };
  }

  /** Returns where the value ends by the marker at a place, `wait` where that is not known yet, or undefined where the marker is text of the value. */
  #judge(kind: MarkKind, at: number, end: number, isLast: boolean): ValueEnd | 'wait' | undefined {
    if (kind === 'call') {
      const judged = this.#judgeCall(at, end, isLast);
      // A mention of the marker has no name after it.
      if (judged === undefined && /["'\w]/.test(this.#text.charAt(end))) this.#numCalls++;
      return judged;
    }
    if (kind === 'over') {
      this.#doubt ??= { ...this.#place(at, at), isStray: true };
      return undefined;
    }
    if (kind === 'calls') {
      const follow = this.#follow(end, isLast);
      if (follow === 'unknown') return 'wait';
      return follow === 'call' ? this.#judgeCall(at, this.#behindMark(this.#skipSpace(end)), isLast) : undefined;
    }
    if (kind === 'open') return this.#judgeOpen(at, isLast);
    const follow = this.#follow(end, isLast);
    if (follow === 'unknown') return 'wait';
    return kind === 'close' ? this.#judgeClose(at, end, follow, isLast) : this.#judgeEnd(at, follow, isLast);
  }

  /** Judges the beginning of a call: the next one of the request's tools, where markers were left out, or an example in the value. */
  #judgeCall(at: number, nameAt: number, isLast: boolean): 'wait' | undefined {
    const named = this.#text.slice(nameAt, nameAt + MAX_NAME);
    const { word = '', behind = '' } = CALL_NAME.exec(named)?.groups ?? {};
    if (behind === '' && !isLast && named.length < MAX_NAME) return 'wait';
    const isFirst = this.#numOpen === 0 && this.#numCalls === 0;
    if (isFirst && this.#isLineBegin(at) && this.#call.isKnown(namedBy(word).name))
      this.#doubt ??= { ...this.#place(this.#withoutLineEnd(at), at), isStray: false };
    return undefined;
  }

  /** Returns where the marker at a place ends. */
  #behindMark(at: number): number {
    const found = this.#markAt(at);
    return 'end' in found ? found.end : at;
  }

  #judgeClose(at: number, end: number, follow: Follow, isLast: boolean): ValueEnd | 'wait' | undefined {
    const place = this.#place(at, end);
    const isWithin = this.#numOpen > 0 || this.#numCalls > 0;
    if (this.#isPlain) return place;
    if (follow === 'close') return undefined;
    if (follow === 'nothing') return isWithin && this.#doubt ? undefined : place;
    if (follow === 'text') {
      if (!isWithin) this.#doubt ??= { ...place, isStray: true };
    } else if (!isWithin) return place;
    else {
      if (follow === 'open') {
        const key = this.#keyAt(this.#skipSpace(end), isLast);
        if (key === 'wait') return key;
        if (this.#numCalls === 0 && key !== undefined && this.#call.expects(key.name) === true) return place;
      }
      if (this.#doubt?.isStray !== false) this.#doubt = { ...place, isStray: false };
    }
    this.#numOpen = Math.max(0, this.#numOpen - 1);
    return undefined;
  }

  /** Judges the beginning of a parameter that no marker ends the value before. */
  #judgeOpen(at: number, isLast: boolean): ValueEnd | 'wait' | undefined {
    const key = this.#keyAt(at, isLast);
    if (key === 'wait' || key === undefined) return key;
    const expected = this.#call.expects(key.name);
    if (this.#numOpen === 0 && this.#numCalls === 0) {
      if (this.#doubt?.isStray === true && expected !== false) return this.#doubt;
      if (expected === true && this.#isLineBegin(at)) return this.#place(this.#withoutLineEnd(at), at);
    }
    this.#numOpen++;
    return undefined;
  }

  /** Judges the end of a call that no marker ends the value before. */
  #judgeEnd(at: number, follow: Follow, isLast: boolean): ValueEnd | undefined {
    if (this.#numCalls > 0) {
      if (follow !== 'end') this.#numCalls--;
      this.#numOpen = 0;
      return undefined;
    }
    const place = this.#place(this.#withoutLineEnd(at), at);
    const isText = follow === 'text' || follow === 'open' || follow === 'close';
    const isOwnLine = this.#isLineBegin(at);
    const isFree = this.#numOpen === 0 && !this.#doubt && isOwnLine;
    if (!isText && (isLast || (follow !== 'end' && isFree))) return this.#doubt ?? place;
    this.#doubt ??= { ...place, isStray: isText && !isOwnLine };
    return undefined;
  }

  /** Returns what follows a marker that ends at `end`. */
  #follow(end: number, isLast: boolean): Follow {
    const at = this.#skipSpace(end);
    if (at - end > MAX_NAME) return 'text';
    if (at === this.#text.length) return isLast ? 'nothing' : 'unknown';
    const found = this.#markAt(at);
    if (found.kind === 'none') return 'text';
    if (found.kind !== 'partial') return found.kind;
    if (!isLast) return 'unknown';
    return KINDS.find((kind) => kind !== 'close' && found.of.has(kind)) ?? 'text';
  }

  #skipSpace(at: number): number {
    let end = at;
    while (end < this.#text.length && /\s/.test(this.#text.charAt(end))) end++;
    return end;
  }

  /** Returns the name of the parameter whose marker begins at a place; undefined where it is no name. */
  #keyAt(at: number, isLast: boolean): { readonly name: string } | 'wait' | undefined {
    const literal = this.#marks.open.find((one) => this.#text.startsWith(one, at)) ?? '';
    const from = at + literal.length;
    const end = this.#text.indexOf(this.#marks.openEnd, from);
    const word = this.#text.slice(from, end < 0 ? undefined : end);
    if (word.length > MAX_NAME || /[<\n]/.test(end < 0 ? word.replace(/<[^<]*$/, '') : word)) return undefined;
    if (end < 0) return isLast ? undefined : 'wait';
    return namedBy(word);
  }

  #markAt(at: number): Found {
    const of = new Set<MarkKind>();
    for (const kind of KINDS)
      for (const literal of this.#marks[kind] ?? []) {
        if (this.#text.startsWith(literal, at)) return { kind, literal, end: at + literal.length };
        const left = this.#text.length - at;
        if (left < literal.length && literal.startsWith(this.#text.slice(at))) of.add(kind);
      }
    return of.size > 0 ? { kind: 'partial', of } : { kind: 'none' };
  }

  /** Whether a place begins a line, or the value. */
  #isLineBegin(at: number): boolean {
    return at === 0 ? this.#isLineStart : this.#text.charAt(at - 1) === '\n';
  }

  #withoutLineEnd(at: number): number {
    return !this.#marks.hasLineEnds && this.#text.charAt(at - 1) === '\n' ? at - 1 : at;
  }

  #endAt({ at, rest }: ValueEnd): 'over' {
    const all = this.#held + this.#text;
    this.#write(all.slice(0, at));
    this.rest = all.slice(rest);
    this.#call.endValue();
    return 'over';
  }

  /** Passes the text up to a place: it is written, or held in doubt. */
  #flush(end: number): void {
    if (end <= 0) return;
    const passed = this.#text.slice(0, end);
    if (this.#doubt) this.#held += passed;
    else this.#write(passed);
    this.#isLineStart = passed.endsWith('\n');
    this.#text = this.#text.slice(end);
    this.#at -= end;
  }

  #write(text: string): void {
    this.#call.value(text);
  }
}

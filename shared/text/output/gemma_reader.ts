/** Reader of the arguments that Gemma 4 and FunctionGemma write: `{city:<|"|>Oslo<|"|>,days:2,tags:[<|"|>a<|"|>]}`. */
import { isJson } from './argument_types.ts';
import type { CallWriter } from './call_writer.ts';
import type { Reader, Reading } from './json_reader.ts';
import { JsonText } from './json_text.ts';

/** Marks around strings. */
const GEMMA_QUOTES: readonly string[] = ['<|"|>', '<escape>', '"'];
/** UTF-16 units of a key, number or word (P1). */
const MAX_TOKEN = 4_096;

const words: Readonly<Record<string, string>> = {
  True: 'true',
  False: 'false',
  None: 'null',
  none: 'null',
  nil: 'null',
};

/** Writes the object as JSON while it arrives. Keys have no quotes; strings stand between marks and have no escapes. */
export class GemmaReader implements Reader {
  readonly #call: CallWriter;
  readonly #json: JsonText;
  /** Open brackets. */
  readonly #open: ('{' | '[')[] = [];
  /** Text since the last bracket, comma, colon or mark; within a string, the beginning of its mark. */
  #token = '';
  /** The mark that ends the string; empty outside. */
  #quote = '';
  /** Whether the token is the value of a key. */
  #isValue = false;
  /** Whether a character came where JSON has none. */
  #isBroken = false;

  constructor(call: CallWriter) {
    this.#call = call;
    this.#json = new JsonText((text) => {
      call.raw(text);
    });
  }

  read(char: string): Reading {
    const reading = this.#quote === '' ? this.#read(char) : this.#readString(char);
    return this.#isBroken ? this.#end('over') : reading;
  }

  skip(text: string, at: number): number {
    if (this.#quote === '' || this.#token !== '') return at;
    const mark = text.indexOf(this.#quote.charAt(0), at);
    const end = mark < 0 ? text.length : mark;
    if (end > at) this.#json.writeText(text.slice(at, end));
    return end;
  }

  /** Closes what is open, where the answer ends. */
  end(isCut: boolean): Reading {
    if (this.#open.length === 0 || isCut) return 'end';
    // A key that is not whole has no value yet.
    if (this.#quote === '' && (this.#isValue || this.#open.at(-1) === '[')) this.#flush();
    return this.#end('end');
  }

  #read(char: string): Reading {
    if (this.#open.length === 0 && char !== '{') return /\s/.test(char) ? 'more' : 'fail';
    const isKey = this.#open.at(-1) === '{' && !this.#isValue;
    if (char === '{' || char === '[') this.#openBracket(char);
    else if (char === '}' || char === ']') return this.#closeBracket(char);
    else if (char === ',') {
      this.#flush();
      this.#fill();
      this.#write(', ');
      this.#isValue = false;
    } else if (char === ':' && isKey) {
      this.#write(`${this.#token === '' ? '' : JSON.stringify(this.#token.trim())}: `);
      [this.#token, this.#isValue] = ['', true];
    } else {
      const token = (this.#token + char).trimStart();
      this.#token = token;
      if (token.length > MAX_TOKEN) return this.#end('over');
      if (GEMMA_QUOTES.includes(token) && this.#json.expectsValue) this.#openString(token);
    }
    return 'more';
  }

  #openBracket(char: '{' | '['): void {
    this.#flush();
    this.#write(char);
    this.#open.push(char);
    this.#isValue = false;
  }

  #closeBracket(char: string): Reading {
    this.#flush();
    this.#fill();
    this.#write(char);
    this.#open.pop();
    this.#isValue = this.#open.at(-1) === '{';
    return this.#open.length === 0 ? this.#end('end') : 'more';
  }

  #openString(mark: string): void {
    this.#write('"');
    [this.#quote, this.#token] = [mark, ''];
  }

  #readString(char: string): Reading {
    this.#token += char;
    while (this.#token !== '' && !this.#quote.startsWith(this.#token)) {
      this.#json.writeText(this.#token.charAt(0));
      this.#token = this.#token.slice(1);
    }
    if (this.#token !== this.#quote) return 'more';
    this.#write('"');
    [this.#quote, this.#token] = ['', ''];
    return 'more';
  }

  /** Writes the number or word that has ended. */
  #flush(): void {
    const token = this.#token.trim();
    this.#token = '';
    if (token === '') return;
    if (!this.#json.expectsValue) {
      // It follows a value that has ended: it is no part of the call.
      this.#call.aside(token);
      return;
    }
    const word = Object.hasOwn(words, token) ? (words[token] ?? token) : token;
    this.#write(isJson(word) ? word : JSON.stringify(token));
  }

  /** Writes the value of a key that has none. */
  #fill(): void {
    if (this.#isValue && this.#json.expectsValue) this.#write('null');
  }

  #write(json: string): void {
    for (const char of json) this.#isBroken ||= !this.#json.push(char);
  }

  #end(reading: Reading): Reading {
    this.#json.complete();
    this.#call.end();
    return reading;
  }
}

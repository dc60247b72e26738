/** Python literals and calls with keyword arguments, as JSON text. */

/** Nesting depth of a literal that is read. */
const MAX_DEPTH = 64;
const SPACE = /[ \t\r\n]*/y;
const NUMBER = /[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])/y;
const WORD = /[A-Za-z_]\w*/y;
const CALL_NAME = /[A-Za-z_][\w.-]*/y;
const PLAIN = /[^\\\n]/;

const words: Readonly<Record<string, string>> = {
  True: 'true',
  False: 'false',
  None: 'null',
  true: 'true',
  false: 'false',
  null: 'null',
};

const escapes: Readonly<Record<string, string>> = {
  n: '\n',
  t: '\t',
  r: '\r',
  b: '\b',
  f: '\f',
  v: '\v',
  a: '\x07',
  0: '\0',
  '\\': '\\',
  "'": "'",
  '"': '"',
  '\n': '',
};

/** Thrown where the text is no literal; never leaves this module. */
class NoLiteral extends Error {}

/** Returns a literal as JSON text: numbers, strings, `True`, `None`, lists, tuples and dictionaries. Undefined for anything else. */
export function pythonValue(text: string): string | undefined {
  return whole(text, (reader) => reader.value(0));
}

/** Returns name and arguments of a call such as `f(a=1, b="x")`; undefined for anything else, positional arguments included. */
export function pythonCall(text: string): { readonly name: string; readonly json: string } | undefined {
  return whole(text, (reader) => reader.call());
}

function whole<T>(text: string, read: (reader: LiteralReader) => T): T | undefined {
  const reader = new LiteralReader(text);
  try {
    const value = read(reader);
    return reader.isAtEnd ? value : undefined;
  } catch (error) {
    if (error instanceof NoLiteral) return undefined;
    throw error;
  }
}

class LiteralReader {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  get isAtEnd(): boolean {
    this.#match(SPACE);
    return this.#at === this.#text.length;
  }

  call(): { readonly name: string; readonly json: string } {
    this.#match(SPACE);
    const name = this.#expect(CALL_NAME);
    if (!this.#has('(')) throw new NoLiteral();
    const fields = this.#list(')', () => {
      const key = this.#expect(WORD);
      if (!this.#has('=')) throw new NoLiteral();
      return `${JSON.stringify(key)}: ${this.value(1)}`;
    });
    return { name, json: `{${fields.join(', ')}}` };
  }

  value(depth: number): string {
    if (depth > MAX_DEPTH) throw new NoLiteral();
    this.#match(SPACE);
    const char = this.#text.charAt(this.#at);
    if (char === '"' || char === "'") return JSON.stringify(this.#strings());
    if (this.#has('[')) return `[${this.#list(']', () => this.value(depth + 1)).join(', ')}]`;
    if (this.#has('(')) return `[${this.#list(')', () => this.value(depth + 1)).join(', ')}]`;
    if (this.#has('{')) return `{${this.#list('}', () => this.#entry(depth + 1)).join(', ')}}`;
    const number = this.#match(NUMBER);
    if (number !== undefined) return jsonNumber(number);
    const word = this.#expect(WORD);
    const json = Object.hasOwn(words, word) ? words[word] : undefined;
    if (json === undefined) throw new NoLiteral();
    return json;
  }

  #entry(depth: number): string {
    const key = this.value(depth);
    if (!this.#has(':')) throw new NoLiteral();
    if (key.startsWith('[') || key.startsWith('{')) throw new NoLiteral();
    return `${key.startsWith('"') ? key : JSON.stringify(key)}: ${this.value(depth)}`;
  }

  /** Reads items up to `close`; a comma may stand after the last. */
  #list(close: string, item: () => string): string[] {
    const items: string[] = [];
    for (;;) {
      if (this.#has(close)) return items;
      this.#match(SPACE);
      items.push(item());
      if (this.#has(',')) continue;
      if (this.#has(close)) return items;
      throw new NoLiteral();
    }
  }

  /** Reads one string, or several that stand side by side and are one. */
  #strings(): string {
    let text = '';
    for (;;) {
      const quote = this.#text.charAt(this.#at);
      if (quote !== '"' && quote !== "'") return text;
      this.#at++;
      text += this.#string(quote);
      this.#match(SPACE);
    }
  }

  #string(quote: string): string {
    let text = '';
    for (;;) {
      const char = this.#text.charAt(this.#at++);
      if (char === '') throw new NoLiteral();
      if (char === quote) return text;
      text += char === '\\' ? this.#escape() : char;
    }
  }

  #escape(): string {
    const char = this.#text.charAt(this.#at++);
    const numDigits = char === 'x' ? 2 : char === 'u' ? 4 : char === 'U' ? 8 : 0;
    if (numDigits > 0) {
      const digits = this.#text.slice(this.#at, this.#at + numDigits);
      const code =
        /^[0-9a-fA-F]+$/.test(digits) && digits.length === numDigits ? Number.parseInt(digits, 16) : Infinity;
      if (code > 0x10ffff) throw new NoLiteral();
      this.#at += numDigits;
      return String.fromCodePoint(code);
    }
    if (Object.hasOwn(escapes, char)) return escapes[char] ?? '';
    // An unknown escape stays as it is, as in Python.
    return PLAIN.test(char) ? `\\${char}` : char;
  }

  #has(char: string): boolean {
    this.#match(SPACE);
    if (this.#text.charAt(this.#at) !== char) return false;
    this.#at++;
    return true;
  }

  #match(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#text)?.[0];
    if (found !== undefined) this.#at += found.length;
    return found;
  }

  #expect(pattern: RegExp): string {
    const found = this.#match(pattern);
    if (found === undefined || found === '') throw new NoLiteral();
    return found;
  }
}

/** Returns a number as JSON writes it, with all its digits where Python's spelling is JSON's. */
function jsonNumber(text: string): string {
  const plain = text.replace(/^\+/, '');
  return /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(plain) ? plain : JSON.stringify(Number(plain));
}

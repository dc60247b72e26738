/** Finds added tokens in a text, which happens before any other step; the longest match wins, as in the Rust package. */
import { isWordAt, isWordBefore, trimmedEnd, trimmedStart } from './characters.ts';

/** An added token of tokenizer.json and its matching rules. Added tokens are matched as a whole, before a text is cut into pretokens. */
export interface AddedToken {
  readonly id: number;
  readonly content: string;
  /** Whether white space before (`lstrip`) or after (`rstrip`) the token is dropped. */
  readonly lstrip: boolean;
  readonly rstrip: boolean;
  /** Whether the token matches only where the characters next to it are no word characters. */
  readonly singleWord: boolean;
}

/** A part of a text: between added tokens, or one of them. */
export interface Section {
  readonly text: string;
  readonly added: AddedToken | undefined;
  /** Whether the section is the start of the text. */
  readonly isFirst: boolean;
}

/**
 * `leading` returns sections only when they cover at least 1/LEAST_SHARE of the text it examined; shorter results would rescan a long
 * text too often.
 */
const LEAST_SHARE = 16;

/** Tokens that begin with the same one or two code units: some vocabularies have thousands, of a few lengths. */
interface Group {
  /** Distinct lengths of the tokens' contents in UTF-16 code units, longest first. */
  readonly lengths: number[];
  readonly tokens: Map<string, AddedToken>;
}

/** Finds added tokens in texts; at each place the longest match wins. */
export class AddedTokens {
  /** Tokens of one code unit, by that code unit. `#longer` groups the others by their first two code units. */
  readonly #single = new Map<number, AddedToken>();
  readonly #longer = new Map<number, Group>();
  /** Matches the code units that begin added tokens. Most of a text is skipped by it. */
  readonly #starts: RegExp;
  readonly #longest: number;
  readonly #hasSingleWords: boolean;

  /** Indexes the tokens. Of several with the same content the last one counts. */
  constructor(tokens: readonly AddedToken[]) {
    const starts = new Set<number>();
    this.#hasSingleWords = tokens.some(({ singleWord }) => singleWord);
    for (const token of tokens) {
      const { content } = token;
      if (content === '') continue;
      starts.add(content.charCodeAt(0));
      if (content.length === 1) {
        this.#single.set(content.charCodeAt(0), token);
        continue;
      }
      const start = pairAt(content, 0);
      const group = this.#longer.get(start) ?? { lengths: [], tokens: new Map<string, AddedToken>() };
      this.#longer.set(start, group);
      group.tokens.set(content, token);
      if (!group.lengths.includes(content.length)) group.lengths.push(content.length);
    }
    for (const { lengths } of this.#longer.values()) lengths.sort((a, b) => b - a);
    this.#longest = tokens.reduce((most, { content }) => Math.max(most, content.length), 0);
    const units = [...starts].map((unit) => `\\u${unit.toString(16).padStart(4, '0')}`);
    this.#starts = new RegExp(`[${units.join('')}]`, 'g');
  }

  get ids(): number[] {
    const longer = [...this.#longer.values()].flatMap(({ tokens }) => [...tokens.values()]);
    return [...this.#single.values(), ...longer].map(({ id }) => id);
  }

  /**
   * Returns leading sections of a text whose continuation is unknown, up to an added token: the same sections as in the whole text.
   * `most`: greatest end of the last section.
   * @returns no sections when these cover so little that a long text would be examined many times over
   */
  leading(text: string, most = Infinity): { readonly sections: Section[]; readonly length: number } {
    // The text before this part is unknown here, and whether a single-word token matches depends on it.
    if (this.#hasSingleWords) return { sections: [], length: 0 };
    const sections = this.split(text);
    // Stripping drops white space from the sections, so their lengths no longer add up to positions in the text.
    if (sections.some(({ added }) => added?.lstrip || added?.rstrip)) return { sections: [], length: 0 };
    let [end, count, length] = [0, 0, 0];
    sections.forEach(({ text: part, added }, i) => {
      end += part.length;
      if (added && end <= most && end + this.#longest <= text.length) [count, length] = [i + 1, end];
    });
    return length < Math.min(most, text.length) / LEAST_SHARE
      ? { sections: [], length: 0 }
      : { sections: sections.slice(0, count), length };
  }

  /** Splits a text into its added tokens and the text between them, without empty sections. */
  split(text: string): Section[] {
    if (this.#longest === 0) return text === '' ? [] : [{ text, added: undefined, isFirst: true }];
    const sections: { text: string; added: AddedToken | undefined; isFirst: boolean }[] = [];
    let from = 0;
    for (let at = this.#next(text, 0); at < text.length;) {
      const found = this.#at(text, at);
      if (!found) {
        at = this.#next(text, at + 1);
        continue;
      }
      const end = at + found.content.length;
      // A single-word token inside a word is no match, and no other token within its range is tried either.
      if (!found.singleWord || (!isWordBefore(text, at) && !isWordAt(text, end))) {
        sections.push({ text: text.slice(from, at), added: undefined, isFirst: from === 0 });
        sections.push({ text: found.content, added: found, isFirst: at === 0 });
        from = end;
      }
      at = this.#next(text, end);
    }
    sections.push({ text: text.slice(from), added: undefined, isFirst: from === 0 });
    sections.forEach(({ added }, i) => {
      const [before, after] = [sections[i - 1], sections[i + 1]];
      if (added?.lstrip && before && !before.added) before.text = trimmedEnd(before.text);
      if (added?.rstrip && after && !after.added) after.text = trimmedStart(after.text);
    });
    return sections.filter((section) => section.text !== '');
  }

  /** Returns the next position from `from` on where a token may begin; the text's length when there is none. */
  #next(text: string, from: number): number {
    this.#starts.lastIndex = from;
    return this.#starts.test(text) ? this.#starts.lastIndex - 1 : text.length;
  }

  #at(text: string, at: number): AddedToken | undefined {
    const group = at + 1 < text.length ? this.#longer.get(pairAt(text, at)) : undefined;
    for (const length of group?.lengths ?? []) {
      const token = group?.tokens.get(text.slice(at, at + length));
      if (token) return token;
    }
    return this.#single.get(text.charCodeAt(at));
  }
}

function pairAt(text: string, at: number): number {
  return text.charCodeAt(at) * 65_536 + text.charCodeAt(at + 1);
}

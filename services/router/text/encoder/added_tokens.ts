/** Added tokens in a text: found before anything else, the longest where several begin, as tokenizers do. */

export interface AddedToken {
  readonly id: number;
  readonly content: string;
  /** White space on that side belongs to nobody. */
  readonly lstrip: boolean;
  readonly rstrip: boolean;
}

/** A part of a text: between added tokens, or one of them. */
export interface Section {
  readonly text: string;
  readonly added: AddedToken | undefined;
}

export class AddedTokens {
  /** Longest first, by the code unit that they begin with. */
  readonly #byStart = new Map<number, AddedToken[]>();
  /** Whether an ASCII character begins one: most of a text is passed over by this. */
  readonly #starts = new Uint8Array(128);

  constructor(tokens: readonly AddedToken[]) {
    for (const token of tokens) {
      if (token.content === '') continue;
      const start = token.content.charCodeAt(0);
      this.#byStart.set(start, [...(this.#byStart.get(start) ?? []), token]);
      if (start < 128) this.#starts[start] = 1;
    }
    for (const list of this.#byStart.values()) list.sort((a, b) => b.content.length - a.content.length);
  }

  get ids(): number[] {
    return [...this.#byStart.values()].flat().map(({ id }) => id);
  }

  /** Empty sections are left out. */
  split(text: string): Section[] {
    if (this.#byStart.size === 0) return text === '' ? [] : [{ text, added: undefined }];
    const sections: { text: string; added: AddedToken | undefined }[] = [];
    let from = 0;
    for (let at = 0; at < text.length;) {
      const found = this.#at(text, at);
      if (!found) {
        at++;
        continue;
      }
      sections.push({ text: text.slice(from, at), added: undefined }, { text: found.content, added: found });
      at += found.content.length;
      from = at;
    }
    sections.push({ text: text.slice(from), added: undefined });
    sections.forEach(({ added }, i) => {
      const [before, after] = [sections[i - 1], sections[i + 1]];
      if (added?.lstrip && before && !before.added) before.text = before.text.trimEnd();
      if (added?.rstrip && after && !after.added) after.text = after.text.trimStart();
    });
    return sections.filter((section) => section.text !== '');
  }

  #at(text: string, at: number): AddedToken | undefined {
    const code = text.charCodeAt(at);
    if (code < 128 && this.#starts[code] === 0) return undefined;
    return this.#byStart.get(code)?.find(({ content }) => text.startsWith(content, at));
  }
}

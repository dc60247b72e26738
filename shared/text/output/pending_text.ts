/**
 * Text that a parser has still to read: what arrives, and before it what has to be read again, because it turned out to be something else. How much
 * is read again is bounded, so that no text takes more than time in proportion to its length.
 */

/** UTF-16 units that are read again in one answer (P1). */
const MAX_AGAIN = 1 << 20;

/** A part of the text, and the place in it. */
interface Part {
  readonly text: string;
  at: number;
}

/** The text to be read, the next part last. */
export class PendingText {
  readonly #parts: Part[] = [];
  #numAgain = 0;

  /** Whether so much has been read again that the first reading of further text has to do. */
  get isSpent(): boolean {
    return this.#numAgain > MAX_AGAIN;
  }

  /** Adds text that is read before all other. */
  add(text: string): void {
    if (text !== '') this.#parts.push({ text, at: 0 });
  }

  /** Adds text that has been read before. */
  again(text: string): void {
    this.#numAgain += text.length;
    this.add(text);
  }

  /** Returns the part that is read next; undefined when there is none. */
  next(): Part | undefined {
    for (let part = this.#parts.at(-1); part; part = this.#parts.at(-1)) {
      if (part.at < part.text.length) return part;
      this.#parts.pop();
    }
    return undefined;
  }
}

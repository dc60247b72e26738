/** The end of a block of reasoning as far as it is there, by which a call that begins within it is told from one that is mentioned. */

/** Characters in front of a marker that is quoted, and the mark of a code block. */
const QUOTES = '`"\'';
const FENCE = '```';

/** Follows the text of the reasoning. */
export class OpenReasoning {
  /** Whether reasoning goes on unless the text that is held turns out to be a call. */
  isTrial = false;
  /** Whether a call has left reasoning that was not closed. */
  isLeft = false;
  /** The last characters, the quote that is open in front of a marker, and whether a code block is open. */
  #last = '';
  #quote = '';
  #isInFence = false;

  /** Reads the next character of the reasoning. */
  push(char: string): void {
    if (char === this.#quote) this.#quote = '';
    const last = (this.#last + char).slice(-FENCE.length);
    this.#last = last === FENCE ? '' : last;
    if (last === FENCE) this.#isInFence = !this.#isInFence;
  }

  /** Begins a trial at a marker. Returns false where it is quoted, and so only mentioned. */
  try(): boolean {
    const before = this.#last.slice(-1);
    if (before !== '' && QUOTES.includes(before)) this.#quote = before;
    this.isTrial = this.#quote === '' && !this.#isInFence;
    return this.isTrial;
  }

  /** Ends a trial with a call, which leaves the reasoning. */
  leave(): void {
    if (this.isTrial) this.isLeft = true;
    this.isTrial = false;
  }
}

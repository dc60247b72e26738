/** The end of a block of reasoning as far as it is there, by which a call that begins within it is told from one that is mentioned. */

/** Characters in front of a marker that is quoted, and the mark of a code block. */
const QUOTES = '`"\'';
const FENCE_MARK = '`';
const FENCE_LENGTH = 3;

/** Follows the text of the reasoning. */
export class OpenReasoning {
  /** Whether reasoning goes on unless the text that is held turns out to be a call. */
  isTrial = false;
  /** Whether a call has left reasoning that was not closed. */
  isLeft = false;
  /** The last character, the quote that is open in front of a marker, how many marks of a code block there are, and whether a block is open. */
  #last = '';
  #quote = '';
  #numMarks = 0;
  #isInFence = false;

  /** Reads more of the reasoning: one character, or plain text. */
  push(text: string): void {
    if (text === this.#quote) this.#quote = '';
    this.#last = text.slice(-1);
    this.#numMarks = text === FENCE_MARK ? this.#numMarks + 1 : 0;
    if (this.#numMarks < FENCE_LENGTH) return;
    this.#numMarks = 0;
    this.#isInFence = !this.#isInFence;
  }

  /** Whether a character says nothing but what it is, where reasoning goes on. */
  get isPlain(): boolean {
    return this.#quote === '';
  }

  /** Begins a trial at a marker. Returns false where it is quoted, and so only mentioned. */
  try(): boolean {
    if (this.#last !== '' && QUOTES.includes(this.#last)) this.#quote = this.#last;
    this.isTrial = this.#quote === '' && !this.#isInFence;
    return this.isTrial;
  }

  /** Ends a trial with a call, which leaves the reasoning. */
  leave(): void {
    if (this.isTrial) this.isLeft = true;
    this.isTrial = false;
  }
}

/**
 * Text of every benchmark stream, known to the process that emits it and to the process that reads it: output token `index` of the
 * stream with a seed is one of {@link TOKENS}, in a cycle. All have the same length, so a length of text is a number of tokens, and a
 * text that is not expected is a gap, a repeat, or neither.
 */
import { readFileSync } from 'node:fs';
import { projectPath } from '../../support/project.ts';

/** A token: its id in the vocabulary of the repository's model, and its text. */
interface StreamToken {
  readonly id: number;
  readonly text: string;
}

/** Letters of a token, a space before them included; most words of the vocabulary have so many. */
const TEXT_LENGTH = 5;
/** Tokens between the beginnings of two streams whose seeds follow each other. */
const STRIDE = 7;

function readTokens(): StreamToken[] {
  const file = readFileSync(projectPath('config/models/harbour/tokenizer.json'), 'utf8');
  const { model } = JSON.parse(file) as { model: { vocab: Record<string, number> } };
  return Object.entries(model.vocab)
    .map(([letters, id]) => ({ id, text: letters.replace('Ġ', ' ') }))
    .filter(({ text }) => text.length === TEXT_LENGTH && /^ [a-z]+$/.test(text));
}

const TOKENS: readonly StreamToken[] = readTokens();
const CYCLE = TOKENS.map(({ text }) => text).join('');
const TWO_CYCLES = CYCLE.repeat(2);

/** Returns output token `index` of the stream with this seed. */
export function tokenOf(seed: number, index: number): StreamToken {
  const token = TOKENS[(STRIDE * seed + index) % TOKENS.length];
  if (!token) throw new Error(`no token ${index} of stream ${seed}`);
  return token;
}

/** Faults that a reader found in a stream. */
export interface StreamFaults {
  hasGap: boolean;
  hasRepeat: boolean;
  hasOtherText: boolean;
}

/** Compares the text of a stream with the expected one, and counts its tokens. After a fault it goes on from the text that came. */
export class ExpectedText {
  readonly faults: StreamFaults = { hasGap: false, hasRepeat: false, hasOtherText: false };
  /** Characters of {@link CYCLE} before the next expected one. */
  #at: number;

  constructor(seed: number) {
    this.#at = (STRIDE * seed * TEXT_LENGTH) % CYCLE.length;
  }

  /** Compares the text of an event, of a cycle at most, and returns the number of its tokens. */
  take(text: string): number {
    if (!TWO_CYCLES.startsWith(text, this.#at)) this.#resume(text);
    this.#at = (this.#at + text.length) % CYCLE.length;
    return text.length / TEXT_LENGTH;
  }

  /** Notes a gap or a repeat, the nearer one, since both lead to a token of the cycle; any other text as such. */
  #resume(text: string): void {
    const found = TWO_CYCLES.indexOf(text);
    if (found < 0 || found % TEXT_LENGTH !== 0) {
      this.faults.hasOtherText = true;
      return;
    }
    const ahead = (found - this.#at + CYCLE.length) % CYCLE.length;
    if (ahead < CYCLE.length / 2) this.faults.hasGap = true;
    else this.faults.hasRepeat = true;
    this.#at = found;
  }
}

/** Prompts of a wanted number of tokens, made from seeds: equal parts give equal tokens, so that prefixes can be shared. */
import { Random } from '../../../shared/base/random.ts';
import type { CountedWord, Vocabulary } from './vocabulary.ts';

/** A prompt as it is sent. */
export type Prompt = string | readonly number[];

/** Tokens that a seed stands for. */
export interface PromptPart {
  readonly seed: number;
  readonly numTokens: number;
}

/** Returns a seed made of others: equal ones give an equal seed. */
export function seedOf(...seeds: readonly number[]): number {
  return seeds.reduce((seed, one) => {
    // Both halves of an id of up to 53 bits.
    const mixed = Math.imul(seed ^ (one >>> 0) ^ Math.imul(Math.floor(one / 2 ** 32), 0x9e3779b1), 0x85ebca6b);
    return new Random(mixed).u32();
  }, 0x2545f491);
}

/** Makes prompts from the words or the token ids of a vocabulary. */
export class PromptMaker {
  readonly #vocabulary: Vocabulary;
  readonly #areIds: boolean;
  /** Word of the fewest tokens: it fills what is left, so that counts are exact where it has one. */
  readonly #filler: CountedWord;

  constructor(vocabulary: Vocabulary, areIds: boolean) {
    this.#vocabulary = vocabulary;
    this.#areIds = areIds && vocabulary.ids.length > 0;
    const { words } = vocabulary;
    this.#filler = words.reduce((least, word) => (word.numTokens < least.numTokens ? word : least));
  }

  /** Whether prompts are token ids, whose number is exact. */
  get areIds(): boolean {
    return this.#areIds;
  }

  /** Returns the parts, one after the other. */
  make(parts: readonly PromptPart[]): Prompt {
    if (this.#areIds) return parts.flatMap((part) => this.#idsOf(part));
    return parts.map((part) => this.text(part)).join('');
  }

  /** Returns words of a number of tokens, each with a blank before it. */
  text({ seed, numTokens }: PromptPart): string {
    const random = new Random(seed);
    const { words } = this.#vocabulary;
    let text = '';
    let left = numTokens;
    while (left > 0) {
      const word = words[random.below(words.length)] ?? words[0];
      // Counts that are means leave a rest of less than a word.
      if (left < this.#filler.numTokens / 2 && text !== '') break;
      const { text: next, numTokens: used } = word.numTokens > left ? this.#filler : word;
      text += next;
      left -= used;
    }
    return text;
  }

  #idsOf({ seed, numTokens }: PromptPart): number[] {
    const random = new Random(seed);
    const { ids } = this.#vocabulary;
    return Array.from({ length: numTokens }, () => ids[random.below(ids.length)] ?? 0);
  }
}

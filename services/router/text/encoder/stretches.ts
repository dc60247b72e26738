/** Stretches of text that were met before, and their ids: a text that begins as one before it is not encoded again. */

/** Of so many characters, about, found again by them and those just behind. */
export const STRETCH = 4_096;
export const BEHIND = 128;
/** All together at most so many (P1). */
const MAX_CHARACTERS = 16 * 2 ** 20;

/** A part of a text would keep all of the text. */
export function ownCopy(part: string): string {
  return ` ${part}`.slice(1);
}

export interface Stretch {
  readonly length: number;
  readonly ids: Uint32Array;
}

export class StretchMemory {
  readonly #stretches = new Map<string, Stretch>();
  #characters = 0;

  get(key: string): Stretch | undefined {
    const known = this.#stretches.get(key);
    if (!known) return undefined;
    this.#stretches.delete(key);
    this.#stretches.set(key, known);
    return known;
  }

  /** The oldest go. */
  keep(key: string, stretch: Stretch): void {
    if (this.#stretches.has(key)) return;
    this.#stretches.set(ownCopy(key), stretch);
    this.#characters += key.length;
    for (const oldest of this.#stretches.keys()) {
      if (this.#characters <= MAX_CHARACTERS) return;
      this.#stretches.delete(oldest);
      this.#characters -= oldest.length;
    }
  }
}

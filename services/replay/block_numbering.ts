/**
 * Block ids of generated prompts. A prompt is a list of parts (a system prompt, a message, an answer); two blocks have the same id when
 * they have the same tokens of the same parts, after the same blocks.
 */
import { Failure } from '../../shared/base/failure.ts';

/** Most different blocks of a generated trace (P1). */
const MAX_BLOCKS = 4_000_000;

/** Some tokens of a prompt. Parts with the same id have the same tokens, as far as the shorter one goes. */
export interface PromptPart {
  readonly id: number;
  readonly tokens: number;
}

/** Numbers blocks in the order in which they first appear. */
export class BlockNumbering {
  readonly #blockTokens: number;
  /** Ids by the block's content: the id before it, and ranges of parts. At most MAX_BLOCKS (P1). */
  readonly #ids = new Map<string, number>();

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
  }

  /** Returns the ids of the blocks of a prompt; the last block may be partial. @throws Failure at more than MAX_BLOCKS blocks. */
  idsOf(prompt: readonly PromptPart[]): readonly number[] {
    const ids: number[] = [];
    let content = '';
    let filled = 0;
    const close = (): void => {
      ids.push(this.#idOf(`${ids.at(-1) ?? ''}${content}`));
      [content, filled] = ['', 0];
    };
    for (const { id, tokens } of prompt) {
      for (let start = 0; start < tokens;) {
        const end = Math.min(tokens, start + this.#blockTokens - filled);
        content += `:${id},${start},${end}`;
        filled += end - start;
        start = end;
        if (filled === this.#blockTokens) close();
      }
    }
    if (filled > 0) close();
    return ids;
  }

  #idOf(content: string): number {
    const known = this.#ids.get(content);
    if (known !== undefined) return known;
    if (this.#ids.size >= MAX_BLOCKS)
      throw new Failure(
        'invalid_request',
        `a generated trace has at most ${MAX_BLOCKS.toLocaleString('en')} different blocks: ask for fewer requests or shorter prompts`,
      );
    this.#ids.set(content, this.#ids.size);
    return this.#ids.size - 1;
  }
}

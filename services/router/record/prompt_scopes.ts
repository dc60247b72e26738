/**
 * Beginnings of recent prompts, known by a hash of their token ids alone, with the scope (format and salt) under which each was seen
 * last: tells a prompt that is new from one whose blocks are known under another salt, which requests may not share.
 *
 * No token ids are kept, and the answer is for operators: a client must not learn what others have asked under another salt. Bounded
 * (P1): MAX_ENTRIES, where a newer beginning overwrites an older one at the same place.
 */
import type { Digest } from '../../../shared/kv/block_key.ts';

const MAX_ENTRIES = 1 << 17;
/** Words of an entry: two of the hash, one of the scope; 0 is free. */
const WORDS = 3;
/** Beginnings of so many blocks and fewer are all kept; of longer ones, PER_DOUBLING each time that the length doubles. */
const ALL_BLOCKS = 16;
const PER_DOUBLING = 8;
/** Odd multipliers of the two halves of the hash, from MurmurHash3. */
const MIX_A = 0xcc9e2d51;
const MIX_B = 0x1b873593;
const MIX_C = 0x85ebca6b;

/** Map from beginnings of prompts to the scope that they were seen under last. */
export class PromptScopes {
  readonly #entries = new Int32Array(WORDS * MAX_ENTRIES);

  /**
   * Returns how many leading blocks of a prompt were seen under another scope last, and with `isRecorded` records the prompt under its own.
   * `root` is the digest that its chain starts from. Takes some nanoseconds per token.
   */
  seenElsewhere(tokens: Uint32Array, numBlocks: number, blockSize: number, root: Digest, isRecorded: boolean): number {
    const entries = this.#entries;
    const scope = Number.parseInt(root.slice(0, 8), 16) | 0 || 1;
    let [a, b, numElsewhere, at] = [blockSize, 0, 0, 0];
    for (let block = 1; block <= numBlocks; block++) {
      for (const end = block * blockSize; at < end; at++) {
        const token = tokens[at]!;
        a = Math.imul(a ^ token, MIX_A);
        a ^= a >>> 15;
        b = Math.imul((b << 13) | (b >>> 19), 5) + Math.imul(token ^ a, MIX_B);
      }
      if (block !== numBlocks && !isKept(block)) continue;
      const low = Math.imul(a ^ (a >>> 16), MIX_C);
      const high = Math.imul(b ^ (b >>> 13), MIX_C) ^ (b >>> 16);
      const place = WORDS * ((low ^ (low >>> 17)) & (MAX_ENTRIES - 1));
      if (entries[place] === low && entries[place + 1] === high) {
        const its = entries[place + 2]!;
        if (its !== 0 && its !== scope) numElsewhere = block;
      }
      if (!isRecorded) continue;
      entries[place] = low;
      entries[place + 1] = high;
      entries[place + 2] = scope;
    }
    return numElsewhere;
  }
}

/** Whether the beginning of so many blocks is kept. */
function isKept(numBlocks: number): boolean {
  if (numBlocks <= ALL_BLOCKS) return true;
  const doubled = 2 ** (31 - Math.clz32(numBlocks));
  return numBlocks % (doubled / PER_DOUBLING) === 0;
}

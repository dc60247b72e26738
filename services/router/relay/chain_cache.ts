/**
 * Block chains of recent prompts: the next turn of a chat, or another chat with the same beginning, hashes only its new blocks.
 * All token ids are compared, so that a chain is never used for another prompt.
 *
 * There is one entry per first block, for the last prompt that begins with it. Bounded (P1): MAX_TOKENS in all prompts together;
 * the oldest are dropped first.
 */
import { KeyChain, type AnchoredHash, type Digest } from '../../../shared/kv/block_key.ts';

const MAX_TOKENS = 4 << 20;

interface Known {
  readonly tokens: Uint32Array;
  readonly hashes: readonly AnchoredHash[];
}

/**
 * Cache of block chains of recent prompts, so that a prompt with a known prefix hashes only its new blocks. Prompts with the same
 * first block share one entry, which the latest replaces.
 */
export class ChainCache {
  readonly #known = new Map<string, Known>();
  readonly #maxTokens: number;
  readonly #keyBits: number | undefined;
  #numTokens = 0;

  /** `keyBits`: bits of a block key, as {@link KeyChain} takes them. */
  constructor(maxTokens = MAX_TOKENS, keyBits?: number) {
    this.#maxTokens = maxTokens;
    this.#keyBits = keyBits;
  }

  get numTokens(): number {
    return this.#numTokens;
  }

  /** Returns the chain of a prompt, with the hashes of its first blocks as far as they are cached. */
  chainOf(root: Digest, blockSize: number, tokens: Uint32Array): KeyChain {
    const known = this.#known.get(nameOf(root, blockSize, tokens));
    const hashes = known ? known.hashes.slice(0, commonBlocks(known, tokens, blockSize)) : [];
    return new KeyChain(root, blockSize, hashes, this.#keyBits);
  }

  /** Caches the hashes of a prompt's blocks. The caller must not change `tokens` afterwards. */
  keep(root: Digest, blockSize: number, tokens: Uint32Array, hashes: readonly AnchoredHash[]): void {
    if (hashes.length === 0 || tokens.length > this.#maxTokens) return;
    const name = nameOf(root, blockSize, tokens);
    this.#drop(name);
    this.#known.set(name, { tokens, hashes });
    this.#numTokens += tokens.length;
    for (const oldest of this.#known.keys()) {
      if (this.#numTokens <= this.#maxTokens) break;
      this.#drop(oldest);
    }
  }

  #drop(name: string): void {
    this.#numTokens -= this.#known.get(name)?.tokens.length ?? 0;
    this.#known.delete(name);
  }
}

function nameOf(root: Digest, blockSize: number, tokens: Uint32Array): string {
  return `${root} ${bytesOf(tokens.subarray(0, blockSize)).toString('latin1')}`;
}

function bytesOf(tokens: Uint32Array): Buffer {
  return Buffer.from(tokens.buffer, tokens.byteOffset, tokens.byteLength);
}

/**
 * Returns how many blocks from the first on have a cached hash and the same token ids; a binary search that compares each id about
 * twice.
 */
function commonBlocks({ tokens: other, hashes }: Known, tokens: Uint32Array, blockSize: number): number {
  const most = Math.min(hashes.length, Math.floor(Math.min(other.length, tokens.length) / blockSize));
  const isSame = (from: number, to: number): boolean =>
    bytesOf(other.subarray(from * blockSize, to * blockSize)).equals(
      bytesOf(tokens.subarray(from * blockSize, to * blockSize)),
    );
  if (isSame(0, most)) return most;
  let [same, differs] = [0, most];
  // Blocks [0, same) are alike, and [0, differs) are not.
  while (differs - same > 1) {
    const middle = (same + differs) >> 1;
    if (isSame(same, middle)) same = middle;
    else differs = middle;
  }
  return same;
}

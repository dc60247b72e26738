/**
 * Parents of a run of blocks as bytes. Most blocks of a run follow each other in a chain, so the parent of a block is the key before it,
 * and only the others take bytes:
 *
 *   few others   [u64 position in the run][u64 complement of the parent] for each of them
 *   else         [u64 complement of the parent] for each block of the run
 *
 * The shorter form is used, and its length tells which it is. A parent of 0 is not known. Complements, because routers of earlier versions
 * take these bytes in a batch for keys of removed blocks: they must name no block.
 */
import { Failure } from '../base/failure.ts';

/** Returns the parents of the blocks `keys` as bytes; both have two words per key, the lower first. */
export function packParents(keys: Int32Array, parents: Int32Array): Buffer {
  const numBlocks = keys.length / 2;
  const others: number[] = [];
  for (let i = 0; i < numBlocks; i++) {
    const isNext = i > 0 && parents[2 * i] === keys[2 * i - 2] && parents[2 * i + 1] === keys[2 * i - 1];
    if (!isNext) others.push(i);
  }
  if (2 * others.length >= numBlocks) return bytesOf(parents.map((word) => ~word));
  const words = new Int32Array(4 * others.length);
  others.forEach((at, i) => {
    words[4 * i] = at;
    words[4 * i + 2] = ~(parents[2 * at] ?? 0);
    words[4 * i + 3] = ~(parents[2 * at + 1] ?? 0);
  });
  return bytesOf(words);
}

/**
 * Returns the parents of the blocks `keys` from their bytes, two words per key; undefined where there are none. @throws Failure
 * `invalid_request` for bytes that do not fit the keys.
 */
export function unpackParents(keys: Int32Array, bytes: Buffer): Int32Array | undefined {
  if (bytes.length === 0) return undefined;
  const isForEach = bytes.length === 4 * keys.length;
  if (!isForEach && (bytes.length % 16 !== 0 || bytes.length > 4 * keys.length)) throw unfit(keys);
  const words = new Int32Array(bytes.length / 4);
  bytes.copy(Buffer.from(words.buffer));
  if (isForEach) return words.map((word) => ~word);
  const parents = new Int32Array(keys.length);
  parents.set(keys.subarray(0, Math.max(0, keys.length - 2)), 2);
  for (let i = 0; i < words.length; i += 4) {
    const at = words[i] ?? 0;
    if (at < 0 || 2 * at >= keys.length || words[i + 1] !== 0) throw unfit(keys);
    parents[2 * at] = ~(words[i + 2] ?? 0);
    parents[2 * at + 1] = ~(words[i + 3] ?? 0);
  }
  return parents;
}

function unfit(keys: Int32Array): Failure {
  return new Failure('invalid_request', `these bytes are no parents of ${keys.length / 2} blocks`);
}

function bytesOf(words: Int32Array): Buffer {
  return Buffer.from(words.buffer, words.byteOffset, words.byteLength);
}

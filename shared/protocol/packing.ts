/**
 * Lists as raw bytes, little-endian: token ids, block keys, block hashes. Unpacking throws Failure `invalid_request` when the length
 * does not fit.
 */
import { Failure } from '../base/failure.ts';
import type { BlockKey, BlockHash, Digest } from '../kv/block_key.ts';

/** Bytes of one packed hash. */
export const HASH_BYTES = 32;

/** Returns token ids as bytes, u32 each; shares the memory of a typed array. */
export function packTokens(tokens: readonly number[] | Uint32Array): Buffer {
  const words = tokens instanceof Uint32Array ? tokens : Uint32Array.from(tokens);
  return Buffer.from(words.buffer, words.byteOffset, words.byteLength);
}

/** Returns the token ids in `bytes`. Copies, because bytes of a message need not be aligned. */
export function unpackTokens(bytes: Buffer): Uint32Array {
  if (bytes.length % 4 !== 0) throw new Failure('invalid_request', `${bytes.length} bytes are no list of token ids`);
  const tokens = new Uint32Array(bytes.length / 4);
  bytes.copy(Buffer.from(tokens.buffer));
  return tokens;
}

/** Returns numbers as bytes, f32 each; shares the memory of the array. */
export function packFloats(values: Float32Array): Buffer {
  return Buffer.from(values.buffer, values.byteOffset, values.byteLength);
}

/** Returns the f32 numbers in `bytes`, copied. */
export function unpackFloats(bytes: Buffer): Float32Array<ArrayBuffer> {
  if (bytes.length % 4 !== 0) throw new Failure('invalid_request', `${bytes.length} bytes are no list of f32 numbers`);
  const values = new Float32Array(bytes.length / 4);
  bytes.copy(Buffer.from(values.buffer));
  return values;
}

/** Keys as typed arrays take them: two words each, the lower first. */
export function keyWords(keys: readonly BlockKey[]): Int32Array {
  return new Int32Array(BigUint64Array.from(keys).buffer);
}

/** Returns the keys as bytes, u64 each. */
export function packKeys(keys: readonly BlockKey[]): Buffer {
  return Buffer.from(keyWords(keys).buffer);
}

/** Returns the keys in `bytes`, copied, two words each, the lower first. */
export function unpackKeyWords(bytes: Buffer): Int32Array {
  if (bytes.length % 8 !== 0) throw new Failure('invalid_request', `${bytes.length} bytes are no list of block keys`);
  const words = new Int32Array(bytes.length / 4);
  bytes.copy(Buffer.from(words.buffer));
  return words;
}

/** Returns the numbers as bytes, u64 each. */
export function packNumbers(numbers: readonly bigint[]): Buffer {
  return Buffer.from(BigUint64Array.from(numbers).buffer);
}

/** Returns the numbers in `bytes`, u64 each. @throws Failure `invalid_request` when the length is no multiple of 8. */
export function unpackNumbers(bytes: Buffer): bigint[] {
  if (bytes.length % 8 !== 0) throw new Failure('invalid_request', `${bytes.length} bytes are no list of numbers`);
  return Array.from({ length: bytes.length / 8 }, (_, i) => bytes.readBigUInt64LE(8 * i));
}

/** Returns block hashes as bytes: [parent u64][key u64][digest 16 bytes] each. */
export function packHashes(hashes: readonly BlockHash[]): Buffer {
  const bytes = Buffer.alloc(hashes.length * HASH_BYTES);
  hashes.forEach(({ parent, key, digest }, i) => {
    bytes.writeBigUInt64LE(parent, i * HASH_BYTES);
    bytes.writeBigUInt64LE(key, i * HASH_BYTES + 8);
    bytes.write(digest, i * HASH_BYTES + 16, 'hex');
  });
  return bytes;
}

/**
 * Returns the hashes in `bytes`, as packHashes() lays them out. @throws Failure `invalid_request` when the length is no multiple of
 * HASH_BYTES.
 */
export function unpackHashes(bytes: Buffer): BlockHash[] {
  if (bytes.length % HASH_BYTES !== 0)
    throw new Failure('invalid_request', `${bytes.length} bytes are no list of hashes`);
  return Array.from({ length: bytes.length / HASH_BYTES }, (_, i) => ({
    parent: bytes.readBigUInt64LE(i * HASH_BYTES) as BlockKey,
    key: bytes.readBigUInt64LE(i * HASH_BYTES + 8) as BlockKey,
    digest: bytes.toString('hex', i * HASH_BYTES + 16, (i + 1) * HASH_BYTES) as Digest,
  }));
}

/** Returns the 16 bytes of a digest. */
export function packDigest(digest: Digest): Buffer {
  return Buffer.from(digest, 'hex');
}

/** Returns the digest that `bytes` hold, in hex. The length is not checked. */
export function unpackDigest(bytes: Buffer): Digest {
  return bytes.toString('hex') as Digest;
}

/** The 64 bits of a seed as the wire has them: two words, in two's complement. */
export function packSeed(seed: bigint): { seedLow: number; seedHigh: number } {
  const bits = BigInt.asUintN(64, seed);
  return { seedLow: Number(bits & 0xffffffffn), seedHigh: Number(bits >> 32n) };
}

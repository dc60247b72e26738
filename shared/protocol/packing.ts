/** Lists as raw bytes, little-endian: token ids, block keys, chain links. @throws Failure for bytes that are no such list. */
import { Failure } from '../base/failure.ts';
import type { BlockKey, ChainLink, Digest } from '../kv/block_key.ts';

const LINK_BYTES = 32;

export function packTokens(tokens: readonly number[]): Buffer {
  const words = Uint32Array.from(tokens);
  return Buffer.from(words.buffer);
}

export function unpackTokens(bytes: Buffer): number[] {
  if (bytes.length % 4 !== 0) throw new Failure('invalid_request', `${bytes.length} bytes are no list of token ids`);
  return Array.from({ length: bytes.length / 4 }, (_, i) => bytes.readUInt32LE(i * 4));
}

export function packKeys(keys: readonly BlockKey[]): Buffer {
  return Buffer.from(BigUint64Array.from(keys).buffer);
}

export function unpackKeys(bytes: Buffer): BlockKey[] {
  if (bytes.length % 8 !== 0) throw new Failure('invalid_request', `${bytes.length} bytes are no list of block keys`);
  return Array.from({ length: bytes.length / 8 }, (_, i) => bytes.readBigUInt64LE(i * 8) as BlockKey);
}

/** [parent u64][key u64][digest 16 bytes] each. */
export function packLinks(links: readonly ChainLink[]): Buffer {
  const bytes = Buffer.alloc(links.length * LINK_BYTES);
  links.forEach(({ parent, key, digest }, i) => {
    bytes.writeBigUInt64LE(parent, i * LINK_BYTES);
    bytes.writeBigUInt64LE(key, i * LINK_BYTES + 8);
    bytes.write(digest, i * LINK_BYTES + 16, 'hex');
  });
  return bytes;
}

export function unpackLinks(bytes: Buffer): ChainLink[] {
  if (bytes.length % LINK_BYTES !== 0)
    throw new Failure('invalid_request', `${bytes.length} bytes are no list of links`);
  return Array.from({ length: bytes.length / LINK_BYTES }, (_, i) => ({
    parent: bytes.readBigUInt64LE(i * LINK_BYTES) as BlockKey,
    key: bytes.readBigUInt64LE(i * LINK_BYTES + 8) as BlockKey,
    digest: bytes.toString('hex', i * LINK_BYTES + 16, (i + 1) * LINK_BYTES) as Digest,
  }));
}

export function packDigest(digest: Digest): Buffer {
  return Buffer.from(digest, 'hex');
}

export function unpackDigest(bytes: Buffer): Digest {
  return bytes.toString('hex') as Digest;
}

/**
 * A block record: one format for staging, wire, DRAM and LMDB.
 *
 *   offset
 *   [0, 4)    magic "PKV1"            [48, 64)  chain digest
 *   [4, 8)    header bytes            [64, 72)  numerics class, XXH64 of its name
 *   [8, 12)   payload bytes           [72, 76)  layers
 *   [12, 16)  reserved, 0             [76, 80)  tokens
 *   [16, 32)  format digest           [80, 88)  XXH64 of the header with these eight bytes 0
 *   [32, 40)  key                     [88, 88 + 8·layers)  XXH64 of each layer's payload
 *   [40, 48)  parent key              then 0 up to a multiple of 256, where the payload starts
 *
 * All little-endian. Payload: [layer][plane k, v][token][kv_head][head_dim]. A layer has its own checksum, so that layers can
 * travel and be verified by themselves. No token ids: the disk tier is no log of prompts.
 */
import type { BlockKey, BlockHash, Digest } from './block_key.ts';
import { xxh64 } from './hash.ts';

const MAGIC = 0x31564b50;
const CHECKSUMS_AT = 88;
const ALIGNMENT = 256;

/** What all records of one format have in common. */
export interface RecordLayout {
  readonly format: Digest;
  readonly numericsClass: string;
  readonly numLayers: number;
  readonly blockSize: number;
  readonly payloadBytes: number;
}

export interface RecordHeader extends BlockHash {
  readonly format: Digest;
  readonly numLayers: number;
  readonly numTokens: number;
  readonly headerBytes: number;
  readonly payloadBytes: number;
  readonly checksums: readonly bigint[];
}

export function headerBytes(numLayers: number): number {
  return Math.ceil((CHECKSUMS_AT + 8 * numLayers) / ALIGNMENT) * ALIGNMENT;
}

export function recordBytes(layout: Pick<RecordLayout, 'numLayers' | 'payloadBytes'>): number {
  return headerBytes(layout.numLayers) + layout.payloadBytes;
}

/** Writes the header in front of a payload that is already in place; computes every checksum. */
export function sealRecord(record: Uint8Array, layout: RecordLayout, hash: BlockHash): void {
  const { numLayers, payloadBytes } = layout;
  const size = headerBytes(numLayers);
  const header = Buffer.alloc(size);
  header.writeUInt32LE(MAGIC, 0);
  header.writeUInt32LE(size, 4);
  header.writeUInt32LE(payloadBytes, 8);
  header.write(layout.format, 16, 'hex');
  header.writeBigUInt64LE(hash.key, 32);
  header.writeBigUInt64LE(hash.parent, 40);
  header.write(hash.digest, 48, 'hex');
  header.writeBigUInt64LE(xxh64(Buffer.from(layout.numericsClass)), 64);
  header.writeUInt32LE(numLayers, 72);
  header.writeUInt32LE(layout.blockSize, 76);
  layerChecksums(record, size, payloadBytes, numLayers).forEach((checksum, layer) => {
    header.writeBigUInt64LE(checksum, CHECKSUMS_AT + 8 * layer);
  });
  header.writeBigUInt64LE(xxh64(header), 80);
  record.set(header);
}

/** The header of a record, or why it is none. Looks at the header only. */
export function readHeader(record: Uint8Array): RecordHeader | { readonly fault: string } {
  if (record.byteLength < ALIGNMENT)
    return { fault: `a record has at least ${ALIGNMENT} bytes, not ${record.byteLength}` };
  const first = Buffer.from(record.buffer, record.byteOffset, ALIGNMENT);
  if (first.readUInt32LE(0) !== MAGIC) return { fault: 'no record magic' };
  const [size, payloadBytes, numLayers] = [first.readUInt32LE(4), first.readUInt32LE(8), first.readUInt32LE(72)];
  if (size !== headerBytes(numLayers) || size + payloadBytes !== record.byteLength) {
    return { fault: `lengths disagree: header ${size}, payload ${payloadBytes}, record ${record.byteLength}` };
  }
  const header = Buffer.from(record.slice(0, size));
  const checksum = header.readBigUInt64LE(80);
  header.writeBigUInt64LE(0n, 80);
  if (xxh64(header) !== checksum) return { fault: 'the header checksum differs' };
  return {
    format: header.toString('hex', 16, 32) as Digest,
    key: header.readBigUInt64LE(32) as BlockKey,
    parent: header.readBigUInt64LE(40) as BlockKey,
    digest: header.toString('hex', 48, 64) as Digest,
    numLayers,
    numTokens: header.readUInt32LE(76),
    headerBytes: size,
    payloadBytes,
    checksums: Array.from({ length: numLayers }, (_, layer) => header.readBigUInt64LE(CHECKSUMS_AT + 8 * layer)),
  };
}

/**
 * K2: undefined when the record is the wanted block and undamaged, else what is wrong with it.
 * Without `want`, only the record's own integrity is judged.
 */
export function verifyRecord(
  record: Uint8Array,
  want?: { readonly format: Digest; readonly digest: Digest },
): string | undefined {
  const header = readHeader(record);
  if ('fault' in header) return header.fault;
  if (want && header.format !== want.format) return 'it belongs to another format';
  if (want && header.digest !== want.digest) return 'its chain digest is another: the keys collide';
  const actual = layerChecksums(record, header.headerBytes, header.payloadBytes, header.numLayers);
  const damaged = actual.findIndex((checksum, layer) => checksum !== header.checksums[layer]);
  return damaged < 0 ? undefined : `the checksum of layer ${damaged} differs`;
}

function layerChecksums(record: Uint8Array, start: number, payloadBytes: number, numLayers: number): bigint[] {
  const layerBytes = payloadBytes / numLayers;
  return Array.from({ length: numLayers }, (_, layer) => {
    const at = start + layer * layerBytes;
    return xxh64(record.subarray(at, at + layerBytes));
  });
}

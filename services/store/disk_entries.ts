/**
 * Entries of the records on disk, as values of the LMDB environment, under the byte offset of the record (u64 big-endian).
 *
 *   value   order of use (f64) ‖ number of the key (u64; 0: clear) ‖ body, sealed under that key
 *   body    key, parent, digest (16), format (16), tenant (16), numerics class, content hash, bytes (u32), kind (u8)
 *
 * Keys and digests are hashes of tokens, against which a guess of a prompt can be tested, so they are sealed as records are. A sealed
 * environment shows the number of records, their places, which of them have one tenant, and their order of use.
 */
import type { BlockKey, Digest, TenantId } from '../../shared/kv/block_key.ts';
import type { DiskEntry, StoredEntry } from './disk_process.ts';
import type { KeyList } from './key_list.ts';
import { seal, SEAL_BYTES, unseal } from './sealed_box.ts';

const NUMBER_AT = 8;
const BODY_AT = 16;
const BODY_BYTES = 85;
const PURPOSE = { entry: 1, record: 2 } as const;

/** Returns the bytes that are authenticated with a sealed record: what it is, whose it is, and where it lies. */
export function recordAad(entry: Omit<DiskEntry, 'parent' | 'numerics' | 'contentHash' | 'isState'>): Buffer {
  const { key, digest, format, tenant, keyNumber, at, bytes } = entry;
  const aad = Buffer.alloc(77);
  aad.writeUInt8(PURPOSE.record, 0);
  aad.writeBigUInt64LE(BigInt(at), 1);
  aad.writeBigUInt64LE(keyNumber, 9);
  aad.writeBigUInt64LE(key, 17);
  aad.write(digest, 25, 'hex');
  aad.write(format, 41, 'hex');
  aad.write(tenant, 57, 'hex');
  aad.writeUInt32LE(bytes, 73);
  return aad;
}

function entryAad(at: bigint, keyNumber: bigint): Buffer {
  const aad = Buffer.alloc(17);
  aad.writeUInt8(PURPOSE.entry, 0);
  aad.writeBigUInt64LE(at, 1);
  aad.writeBigUInt64LE(keyNumber, 9);
  return aad;
}

/** Returns the LMDB key of the record at a byte offset. */
export function entryId(at: number): Buffer {
  const id = Buffer.alloc(8);
  id.writeBigUInt64BE(BigInt(at));
  return id;
}

/** Returns the byte offset that {@link entryId} made an LMDB key of. */
export function placeOf(id: Uint8Array): number {
  return Number(new DataView(id.buffer, id.byteOffset, id.length).getBigUint64(0));
}

/** Returns an entry as it is stored; the disk process sets its order of use. `keys` has the key of its number. */
export function encodeEntry(entry: DiskEntry, keys: KeyList | undefined): StoredEntry {
  const { keyNumber, at } = entry;
  const body = Buffer.alloc(BODY_BYTES);
  body.writeBigUInt64LE(entry.key, 0);
  body.writeBigUInt64LE(entry.parent, 8);
  body.write(entry.digest, 16, 'hex');
  body.write(entry.format, 32, 'hex');
  body.write(entry.tenant, 48, 'hex');
  body.writeBigUInt64LE(entry.numerics, 64);
  body.writeBigUInt64LE(entry.contentHash, 72);
  body.writeUInt32LE(entry.bytes, 80);
  body[84] = entry.isState ? 1 : 0;
  const head = Buffer.alloc(BODY_AT);
  head.writeBigUInt64LE(keyNumber, NUMBER_AT);
  const sealing = keys?.byNumber(keyNumber);
  const kept = sealing ? seal(sealing.key, entryAad(BigInt(at), keyNumber), body) : body;
  return { id: entryId(at), value: Buffer.concat([head, kept]) };
}

/**
 * Returns the entry that is stored as `stored`, undefined when it is none: its tenant was forgotten, or it is not authentic. `keys` is
 * undefined in an environment that is in clear.
 */
export function decodeEntry({ id, value }: StoredEntry, keys: KeyList | undefined): DiskEntry | undefined {
  if (id.length !== 8 || value.length !== BODY_AT + BODY_BYTES + (keys ? SEAL_BYTES : 0)) return undefined;
  const at = BigInt(placeOf(id));
  const kept = Buffer.from(value.buffer, value.byteOffset, value.length);
  const keyNumber = kept.readBigUInt64LE(NUMBER_AT);
  const sealing = keys?.byNumber(keyNumber);
  if (keys && !sealing) return undefined;
  const stored = kept.subarray(BODY_AT);
  const body = sealing ? unseal(sealing.key, entryAad(at, keyNumber), stored) : stored;
  if (!body) return undefined;
  return {
    key: body.readBigUInt64LE(0) as BlockKey,
    parent: body.readBigUInt64LE(8) as BlockKey,
    digest: body.toString('hex', 16, 32) as Digest,
    format: body.toString('hex', 32, 48) as Digest,
    tenant: sealing?.tenant ?? (body.toString('hex', 48, 64) as TenantId),
    numerics: body.readBigUInt64LE(64),
    contentHash: body.readBigUInt64LE(72),
    bytes: body.readUInt32LE(80),
    isState: body[84] === 1,
    keyNumber,
    at: Number(at),
  };
}

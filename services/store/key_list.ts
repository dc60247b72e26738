/**
 * List of the keys under which a store's records are sealed, one random key per tenant (zeros: those who share). It lies next to the
 * environment (`lmdb.keys`), sealed under the key of `--disk-key`. A tenant whose key is taken out of it is forgotten: its records cannot
 * be read again, wherever copies of them are, except with a copy of this list.
 *
 *   file    magic (8) ‖ id of the disk key (16) ‖ sealed { entries }      entry   tenant (16) ‖ number (8) ‖ key (32)
 *
 * The file is replaced as a whole: written, flushed, renamed, its folder flushed; then the bytes of the old one are overwritten. Bounded
 * (P1): MAX_KEYS.
 */
import { hash, randomBytes } from 'node:crypto';
import { closeSync, constants, fstatSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import type { TenantId } from '../../shared/kv/block_key.ts';
import { mayPass } from './disk_errors.ts';
import { overwrite } from './erase.ts';
import { KEY_BYTES, seal, unseal } from './sealed_box.ts';

/** Tenants with a key, at most: a list of 3.5 MiB. */
export const MAX_KEYS = 65_536;
const MAGIC = Buffer.from('PSTKEYS1');
const ID_BYTES = 16;
const HEAD_BYTES = MAGIC.length + ID_BYTES;
const TENANT_BYTES = 16;
const NUMBER_BYTES = 8;
const ENTRY_BYTES = TENANT_BYTES + NUMBER_BYTES + KEY_BYTES;

/** A key, and the tenant whose records it seals. */
export interface TenantKey {
  readonly tenant: TenantId;
  /** Random number that names the key on disk, never 0. A tenant that was forgotten and returns has another. */
  readonly number: bigint;
  readonly key: Buffer;
}

/** The disk key is missing, is another than that of the records, or their list of keys cannot be read. No record is touched then. */
export class KeyFault extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'KeyFault';
  }
}

/** Returns the path of the list of keys of the environment at `path`. */
export function keyListOf(path: string): string {
  return `${path}.keys`;
}

/** The keys of a store's records, and the file that has them. */
export class KeyList {
  readonly #path: string;
  readonly #diskKey: Uint8Array;
  readonly #byTenant = new Map<TenantId, TenantKey>();
  readonly #byNumber = new Map<bigint, TenantKey>();

  private constructor(path: string, diskKey: Uint8Array) {
    this.#path = path;
    this.#diskKey = diskKey;
  }

  /** Makes an empty list, and writes it down. */
  static create(path: string, diskKey: Uint8Array): KeyList {
    const list = new KeyList(path, diskKey);
    list.#write();
    return list;
  }

  /** Reads the list at `path`. @throws KeyFault when it was written under another key, or is not whole; Error when it cannot be read now. */
  static read(path: string, diskKey: Uint8Array): KeyList {
    const file = readList(path);
    const list = new KeyList(path, diskKey);
    const head = file.subarray(0, HEAD_BYTES);
    if (!head.subarray(0, MAGIC.length).equals(MAGIC) || head.length < HEAD_BYTES) throw damaged(path);
    if (!head.subarray(MAGIC.length).equals(idOf(diskKey))) {
      throw new KeyFault(
        `the records next to ${path} were written under another key: give --disk-key the file of that time; ` +
          'or move the store’s data folder away, and it begins empty under this key',
      );
    }
    const entries = unseal(diskKey, head, file.subarray(HEAD_BYTES));
    if (!entries || entries.length % ENTRY_BYTES !== 0) throw damaged(path);
    for (let at = 0; at < entries.length; at += ENTRY_BYTES) {
      const entry = entries.subarray(at, at + ENTRY_BYTES);
      list.#add({
        tenant: entry.toString('hex', 0, TENANT_BYTES) as TenantId,
        number: entry.readBigUInt64LE(TENANT_BYTES),
        key: entry.subarray(TENANT_BYTES + NUMBER_BYTES),
      });
    }
    return list;
  }

  get size(): number {
    return this.#byTenant.size;
  }

  /** The key of this number; undefined when its tenant was forgotten. */
  byNumber(number: bigint): TenantKey | undefined {
    return this.#byNumber.get(number);
  }

  byTenant(tenant: TenantId): TenantKey | undefined {
    return this.#byTenant.get(tenant);
  }

  /**
   * Makes keys for those of the tenants that have none, as long as there is room, and flushes the list to the disk before it returns. When
   * there is none, keys of tenants that are not in `used` go. @throws Error when the list cannot be written; it is as it was then.
   */
  make(tenants: ReadonlySet<TenantId>, used: () => ReadonlySet<TenantId>): void {
    const fresh = [...tenants].filter((tenant) => !this.#byTenant.has(tenant));
    if (fresh.length === 0) return;
    const before = [...this.#byTenant.values()];
    if (this.size + fresh.length > MAX_KEYS) {
      const kept = used();
      for (const key of before) if (!kept.has(key.tenant) && !tenants.has(key.tenant)) this.#remove(key);
    }
    for (const tenant of fresh.slice(0, Math.max(0, MAX_KEYS - this.size)))
      this.#add({ tenant, number: randomBytes(NUMBER_BYTES).readBigUInt64LE() || 1n, key: randomBytes(KEY_BYTES) });
    this.#writeOr(before);
  }

  /** Deletes the key of a tenant from the list and the disk. Returns whether there was one. @throws Error when the list cannot be written. */
  forget(tenant: TenantId): boolean {
    const key = this.#byTenant.get(tenant);
    if (!key) return false;
    const before = [...this.#byTenant.values()];
    this.#remove(key);
    this.#writeOr(before);
    return true;
  }

  #add(key: TenantKey): void {
    this.#byTenant.set(key.tenant, key);
    this.#byNumber.set(key.number, key);
  }

  #remove({ tenant, number }: TenantKey): void {
    this.#byTenant.delete(tenant);
    this.#byNumber.delete(number);
  }

  /** Writes the list down, or takes its keys back to `before`. */
  #writeOr(before: readonly TenantKey[]): void {
    try {
      this.#write();
    } catch (error) {
      this.#byTenant.clear();
      this.#byNumber.clear();
      for (const key of before) this.#add(key);
      throw error;
    }
  }

  #write(): void {
    const head = Buffer.concat([MAGIC, idOf(this.#diskKey)]);
    const entries = Buffer.alloc(this.size * ENTRY_BYTES);
    [...this.#byTenant.values()].forEach(({ tenant, number, key }, i) => {
      entries.write(tenant, i * ENTRY_BYTES, 'hex');
      entries.writeBigUInt64LE(number, i * ENTRY_BYTES + TENANT_BYTES);
      entries.set(key, i * ENTRY_BYTES + TENANT_BYTES + NUMBER_BYTES);
    });
    replace(this.#path, Buffer.concat([head, seal(this.#diskKey, head, entries)]));
  }
}

/** Returns the content of a list. @throws KeyFault when it is no file, Error when reading fails for a reason that may pass */
function readList(path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    throw mayPass(error) ? error : damaged(path);
  }
}

/** Replaces a file as a whole, flushed to the disk, and overwrites the bytes of the old one. */
function replace(path: string, content: Uint8Array): void {
  const fresh = `${path}.new`;
  const file = openSync(fresh, constants.O_WRONLY | constants.O_CREAT | constants.O_TRUNC, 0o600);
  try {
    for (let done = 0; done < content.length;) done += writeSync(file, content, done, content.length - done, done);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
  const old = opened(path);
  try {
    renameSync(fresh, path);
    flushFolder(dirname(path));
    if (old === undefined) return;
    overwrite(old, fstatSync(old).size);
    fsyncSync(old);
  } finally {
    if (old !== undefined) closeSync(old);
  }
}

function opened(path: string): number | undefined {
  try {
    return openSync(path, 'r+');
  } catch {
    // There is no list yet, or it cannot be written in place: then its bytes stay until the file system uses them again.
    return undefined;
  }
}

/** Flushes the names in a folder to the disk. */
export function flushFolder(path: string): void {
  // Windows opens no folders, and flushes names by itself.
  if (process.platform === 'win32') return;
  const folder = openSync(path, 'r');
  try {
    fsyncSync(folder);
  } finally {
    closeSync(folder);
  }
}

/** Returns the id of a disk key, which tells another key from damage, and says nothing about the key. */
function idOf(diskKey: Uint8Array): Buffer {
  return hash('sha256', Buffer.concat([Buffer.from('penstock disk key\0'), diskKey]), 'buffer').subarray(0, ID_BYTES);
}

function damaged(path: string): KeyFault {
  return new KeyFault(
    `the list of keys ${path} is damaged, and no record can be read without it: bring it back from a backup; ` +
      'or move the store’s data folder away, and it begins empty',
  );
}

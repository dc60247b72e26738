/**
 * The process that owns the LMDB environment, the index of the records in the file next to it (records_file.ts). LMDB maps its own file,
 * so a damaged page can crash the process that reads or deletes entries. Hence a process of its own, which the store can start again.
 *
 *   entries  byte offset of a record (u64 big-endian) → order of use (f64), then what disk_entries.ts keeps of it, sealed where there is a
 *            disk key: this process has no key
 *   meta     'boot' → id of the machine's boot, 'clean' → 1 after an orderly shutdown, 'version' → of tables and records,
 *            'session' → id of the one process that may write
 *
 * S1: a committed entry and its record survive kill -9, because both are in the page cache at least. Power loss can tear them, so an
 * environment is trusted only in the boot that wrote it or after a clean shutdown, and every record is verified when read.
 */
import { closeSync, existsSync, fsyncSync, mkdirSync, openSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { open, type Database, type RootDatabase } from 'lmdb';
import { bootId } from '../../shared/base/boot_id.ts';
import { newId } from '../../shared/base/identity.ts';
import { messageOf } from '../../shared/base/failure.ts';
import type { BlockKey, Digest, TenantId } from '../../shared/kv/block_key.ts';

/** Index entry of a record on disk. `numerics` (the numerics class) and `contentHash` are defined in record.ts. */
export interface DiskEntry {
  readonly key: BlockKey;
  readonly digest: Digest;
  readonly format: Digest;
  readonly bytes: number;
  /** Whether the record holds a recurrent state, not a block. */
  readonly isState: boolean;
  readonly numerics: bigint;
  readonly contentHash: bigint;
  /** Key of the block before. */
  readonly parent: BlockKey;
  readonly tenant: TenantId;
  /** Number of the key under which the record is sealed (key_list.ts); 0 for a record in clear. */
  readonly keyNumber: bigint;
  /** Byte offset of the record in the file of records. */
  readonly at: number;
}

/** An entry as the environment has it: its LMDB key and value. The first eight bytes of the value are the order of use. */
export interface StoredEntry {
  readonly id: Uint8Array;
  readonly value: Uint8Array;
}

interface Environment {
  readonly root: RootDatabase<Buffer, Buffer>;
  readonly entries: Database<Buffer, Buffer>;
  readonly meta: Database<Buffer, Buffer>;
  readonly path: string;
}

/** Version of the layout of tables and records. Raise it with every change of either: an environment of another version is set aside. */
const VERSION = 4;
/** Least bytes of a value: the order of use. */
const ORDER_BYTES = 8;
/** Entries that one call of `entries` returns, at most. */
const PAGE_ENTRIES = 4_096;

const SESSION = Buffer.from('session');
/** Id of this process, stored under SESSION: only the process that opened the environment last may write. */
const session = newId();

let environment: Environment | undefined;
let order = 0;
let recovered: StoredEntry[] = [];

function disk(): Environment {
  if (!environment) throw new Error('the disk tier is not open');
  return environment;
}

/**
 * Runs `work` in one transaction. When another process has opened the environment meanwhile, nothing changes and this process kills
 * itself: its successor has already read the entries.
 */
function change(work: (entries: Environment['entries']) => void): void {
  const { root, meta, entries } = disk();
  const isOurs = root.transactionSync(() => {
    const isSame = meta.get(SESSION)?.toString() === session;
    if (isSame) work(entries);
    return isSame;
  });
  if (!isOurs) process.kill(process.pid, 'SIGKILL');
}

function openEnvironment(path: string): Environment {
  mkdirSync(path, { recursive: true });
  const root = open<Buffer, Buffer>({ path, noSync: true, encoding: 'binary', keyEncoding: 'binary', maxDbs: 4 });
  const table = (name: string): Database<Buffer, Buffer> =>
    root.openDB({ name, encoding: 'binary', keyEncoding: 'binary' });
  return { root, entries: table('entries'), meta: table('meta'), path };
}

/** LMDB's magic number, in the first meta page. */
const LMDB_MAGIC = 0xbeefc0de;
const MAGIC_AT = 24;

/** Why the file is no LMDB environment; undefined when it is one, or is not there. */
function notLmdb(path: string): string | undefined {
  if (!existsSync(path)) return undefined;
  const head = Buffer.alloc(MAGIC_AT + 4);
  const file = openSync(path, 'r');
  try {
    const length = readSync(file, head, 0, head.length, 0);
    const isEnvironment = length === head.length && head.readUInt32LE(MAGIC_AT) === LMDB_MAGIC;
    return isEnvironment ? undefined : 'data.mdb is no LMDB environment';
  } finally {
    closeSync(file);
  }
}

/** Returns why the entries cannot be trusted, or undefined when they can. */
function distrust({ meta, entries }: Environment, boot: string): string | undefined {
  const writtenIn = meta.get(Buffer.from('boot'))?.toString();
  if (writtenIn === undefined) return undefined;
  if (meta.get(Buffer.from('version'))?.[0] !== VERSION) return 'another version of Penstock wrote it';
  if (writtenIn === boot) return undefined;
  if (meta.get(Buffer.from('clean'))?.[0] === 1) return undefined;
  return entries.getKeysCount() > 0 ? 'the machine went down without a clean shutdown' : undefined;
}

/** Marks the environment as written in this boot, not yet cleanly closed, and writable by this process only. */
function signIn({ root, meta }: Environment, boot: string): void {
  root.transactionSync(() => {
    meta.putSync(SESSION, Buffer.from(session));
    meta.putSync(Buffer.from('boot'), Buffer.from(boot));
    meta.putSync(Buffer.from('clean'), Buffer.from([0]));
    meta.putSync(Buffer.from('version'), Buffer.from([VERSION]));
  });
}

function orderOf(value: Uint8Array): number {
  return new DataView(value.buffer, value.byteOffset, ORDER_BYTES).getFloat64(0, true);
}

function setOrder(value: Uint8Array): void {
  new DataView(value.buffer, value.byteOffset, ORDER_BYTES).setFloat64(0, order++, true);
}

function readEntries({ entries }: Environment): StoredEntry[] {
  const found: (StoredEntry & { order: number })[] = [];
  for (const { key, value } of entries.getRange({})) {
    if (value.length < ORDER_BYTES) continue;
    found.push({ id: Buffer.from(key), value: Buffer.from(value), order: orderOf(value) });
  }
  found.sort((a, b) => a.order - b.order);
  order = (found.at(-1)?.order ?? 0) + 1;
  return found.map(({ id, value }) => ({ id, value }));
}

const methods = {
  /** Opens or makes the environment. `damage` says why what is there cannot be used. */
  open(path: string): { readonly numEntries: number; readonly damage: string | undefined } {
    const boot = bootId();
    const damage = notLmdb(join(path, 'data.mdb'));
    if (damage !== undefined) return { numEntries: 0, damage };
    environment = openEnvironment(path);
    const distrusted = distrust(environment, boot);
    if (distrusted !== undefined) return { numEntries: 0, damage: distrusted };
    signIn(environment, boot);
    recovered = readEntries(environment);
    return { numEntries: recovered.length, damage: undefined };
  },

  /** Returns up to PAGE_ENTRIES of the entries that `open` found, from index `from` on, least recently used first. */
  entries(from: number): readonly StoredEntry[] {
    const page = recovered.slice(from, from + PAGE_ENTRIES);
    if (from + PAGE_ENTRIES >= recovered.length) recovered = [];
    return page;
  },

  /** Adds entries for records that are in the file, in one transaction: all of them, or none when it fails. */
  commit(committed: readonly StoredEntry[]): void {
    change((entries) => {
      for (const { id, value } of committed) {
        const fresh = Buffer.from(value);
        setOrder(fresh);
        entries.putSync(Buffer.from(id), fresh);
      }
    });
  },

  /** Makes these entries the most recently used, in the order of `ids`. Unknown ones are skipped. */
  touch(ids: readonly Uint8Array[]): void {
    change((entries) => {
      for (const id of ids.map((one) => Buffer.from(one))) {
        const entry = entries.get(id);
        if (!entry || entry.length < ORDER_BYTES) continue;
        const fresh = Buffer.from(entry);
        setOrder(fresh);
        entries.putSync(id, fresh);
      }
    });
  },

  remove(ids: readonly Uint8Array[]): void {
    change((entries) => {
      for (const id of ids) entries.removeSync(Buffer.from(id));
    });
  },

  /** Closes the environment in order: sets its `clean` mark and flushes it to the disk. */
  async close(): Promise<void> {
    const { root, meta, path } = disk();
    meta.putSync(Buffer.from('clean'), Buffer.from([1]));
    await root.close();
    const file = openSync(join(path, 'data.mdb'), 'r+');
    fsyncSync(file);
    closeSync(file);
    environment = undefined;
  },
};

/** Methods of the disk process, which the store's disk thread calls over IPC. */
export type DiskProcessMethods = typeof methods;

/** Answer of the disk process to one call: a value, or the message of an error. */
export interface DiskAnswer {
  readonly id: number;
  readonly value?: unknown;
  readonly error?: string;
}

const handlers: Readonly<Record<string, (argument: never) => unknown>> = methods;

if (process.send) {
  const send = process.send.bind(process);
  // Sending fails when the store has died; the 'disconnect' event then ends this process.
  const answer = (one: DiskAnswer): void => {
    send(one, () => undefined);
  };
  process.title = 'penstock store disk';
  // LMDB's files are for this user alone, as the file of records is.
  process.umask(0o077);
  // Only the store ends this process: signals from a terminal are ignored. Without a store there is nothing to serve, so a disconnect
  // exits.
  process.on('SIGINT', () => undefined);
  process.on('SIGTERM', () => undefined);
  process.on('disconnect', () => process.exit(0));
  process.on('message', (message) => {
    const { id, method, argument } = message as { id: number; method: string; argument: unknown };
    const run = handlers[method];
    Promise.resolve()
      .then(() => run?.(argument as never))
      .then(
        (value) => {
          answer({ id, value });
        },
        (error: unknown) => {
          answer({ id, error: messageOf(error) });
        },
      );
  });
}

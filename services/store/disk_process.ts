/**
 * The process that owns the LMDB environment. LMDB maps its file: a damaged page can end the process that reads or deletes, so
 * that is this one, and the store starts another.
 *
 *   blocks   key (u64 big-endian) → record        entries  key → digest, format, bytes, order of arrival
 *   meta     'boot' → id of the machine's boot, 'clean' → 1 after an orderly shutdown
 *
 * S1: a commit that returned survives kill -9: it is in the page cache at least. What power loss can tear is wiped: an environment
 * is trusted only in the boot that wrote it or after a clean shutdown, and every record is verified when read.
 */
import { closeSync, existsSync, fsyncSync, mkdirSync, openSync, readFileSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { uptime } from 'node:os';
import { open, type Database, type RootDatabase } from 'lmdb';
import { systemClock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import type { BlockKey, Digest } from '../../shared/kv/block_key.ts';

export interface DiskEntry {
  readonly key: BlockKey;
  readonly digest: Digest;
  readonly bytes: number;
}

/** A record on its way to disk. */
export interface StagedRecord {
  readonly key: BlockKey;
  readonly digest: Digest;
  readonly format: Digest;
  readonly record: Uint8Array;
}

interface Environment {
  readonly root: RootDatabase<Buffer, Buffer>;
  readonly blocks: Database<Buffer, Buffer>;
  readonly entries: Database<Buffer, Buffer>;
  readonly meta: Database<Buffer, Buffer>;
  readonly path: string;
}

const ENTRY_BYTES = 44;
/** Entries in one message. */
const PAGE_ENTRIES = 4_096;

let environment: Environment | undefined;
let order = 0;
let recovered: DiskEntry[] = [];
/** Of the transaction to come; bounded by the batches of the store. */
let staged: StagedRecord[] = [];

function disk(): Environment {
  if (!environment) throw new Error('the disk tier is not open');
  return environment;
}

function keyBytes(key: BlockKey): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(key);
  return bytes;
}

function openEnvironment(path: string): Environment {
  mkdirSync(path, { recursive: true });
  const root = open<Buffer, Buffer>({ path, noSync: true, encoding: 'binary', keyEncoding: 'binary', maxDbs: 4 });
  const table = (name: string): Database<Buffer, Buffer> =>
    root.openDB({ name, encoding: 'binary', keyEncoding: 'binary' });
  return { root, blocks: table('blocks'), entries: table('entries'), meta: table('meta'), path };
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

function bootId(): string {
  try {
    return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  } catch {
    // Elsewhere: the minute the machine started, which a reboot changes.
    return `boot-${Math.round((systemClock.wallMs() / 1000 - uptime()) / 60)}`;
  }
}

/** Why the environment cannot be trusted, if it cannot. */
function distrust({ meta, entries }: Environment, boot: string): string | undefined {
  const writtenIn = meta.get(Buffer.from('boot'))?.toString();
  if (writtenIn === undefined || writtenIn === boot) return undefined;
  if (meta.get(Buffer.from('clean'))?.[0] === 1) return undefined;
  return entries.getKeysCount() > 0 ? 'the machine went down without a clean shutdown' : undefined;
}

/** Written in this boot, and not ended in order yet. */
function signIn({ root, meta }: Environment, boot: string): void {
  root.transactionSync(() => {
    meta.putSync(Buffer.from('boot'), Buffer.from(boot));
    meta.putSync(Buffer.from('clean'), Buffer.from([0]));
  });
}

function readEntries({ entries }: Environment): DiskEntry[] {
  const found: (DiskEntry & { order: number })[] = [];
  for (const { key, value } of entries.getRange({})) {
    if (key.length !== 8 || value.length !== ENTRY_BYTES) continue;
    found.push({
      key: key.readBigUInt64BE() as BlockKey,
      digest: value.toString('hex', 0, 16) as Digest,
      bytes: value.readUInt32LE(32),
      order: value.readDoubleLE(36),
    });
  }
  found.sort((a, b) => a.order - b.order);
  order = (found.at(-1)?.order ?? 0) + 1;
  return found.map(({ key, digest, bytes }) => ({ key, digest, bytes }));
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
    recovered = readEntries(environment);
    signIn(environment, boot);
    return { numEntries: recovered.length, damage: undefined };
  },

  /** A page of what was found at the opening, oldest first. */
  entries(from: number): readonly DiskEntry[] {
    const page = recovered.slice(from, from + PAGE_ENTRIES);
    if (from + PAGE_ENTRIES >= recovered.length) recovered = [];
    return page;
  },

  stage(record: StagedRecord): void {
    staged.push(record);
  },

  /** Everything staged in one transaction; nothing of it when it fails. */
  commit(): void {
    const records = staged;
    staged = [];
    const { root, blocks, entries } = disk();
    root.transactionSync(() => {
      for (const { key, digest, format, record } of records) {
        const entry = Buffer.alloc(ENTRY_BYTES);
        entry.write(digest, 0, 'hex');
        entry.write(format, 16, 'hex');
        entry.writeUInt32LE(record.length, 32);
        entry.writeDoubleLE(order++, 36);
        blocks.putSync(keyBytes(key), Buffer.from(record.buffer, record.byteOffset, record.length));
        entries.putSync(keyBytes(key), entry);
      }
    });
  },

  get(key: BlockKey): Uint8Array | undefined {
    return disk().blocks.get(keyBytes(key));
  },

  remove(keys: readonly BlockKey[]): void {
    const { root, blocks, entries } = disk();
    root.transactionSync(() => {
      for (const key of keys) {
        blocks.removeSync(keyBytes(key));
        entries.removeSync(keyBytes(key));
      }
    });
  },

  /** An orderly end: what is committed is on the disk, and says so. */
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

export type DiskProcessMethods = typeof methods;

export interface DiskAnswer {
  readonly id: number;
  readonly value?: unknown;
  readonly error?: string;
}

const handlers: Readonly<Record<string, (argument: never) => unknown>> = methods;

if (process.send) {
  const send = process.send.bind(process);
  process.title = 'penstock store disk';
  // The store ends this process; a terminal's Ctrl-C is not meant for it, and without a store there is nobody to serve.
  process.on('SIGINT', () => undefined);
  process.on('SIGTERM', () => undefined);
  process.on('disconnect', () => process.exit(0));
  process.on('message', (message) => {
    const { id, method, argument } = message as { id: number; method: string; argument: unknown };
    const run = handlers[method];
    Promise.resolve()
      .then(() => run?.(argument as never))
      .then(
        (value) => send({ id, value } satisfies DiskAnswer),
        (error: unknown) => send({ id, error: messageOf(error) } satisfies DiskAnswer),
      );
  });
}

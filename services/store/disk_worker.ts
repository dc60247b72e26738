/**
 * The store's mover thread: LMDB and checksums, so that the control thread never waits for a disk.
 *
 *   blocks   key (u64 big-endian) → record        entries  key → digest, namespace, bytes, order of arrival
 *   meta     'boot' → id of the machine's boot, 'clean' → 1 after an orderly shutdown
 *
 * S1: a put that returned survives kill -9: it is committed, in the page cache at least. What power loss can tear is wiped: an
 * environment is trusted only in the boot that wrote it or after a clean shutdown, and every record is verified when read.
 * LMDB gets ordinary Buffers: one over a SharedArrayBuffer is stored wrong without an error (lmdb 3.5.6).
 */
import {
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { uptime } from 'node:os';
import { open, type Database, type RootDatabase } from 'lmdb';
import { systemClock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { serveCalls } from '../../shared/base/worker_calls.ts';
import type { BlockKey, Digest } from '../../shared/kv/block_key.ts';
import { readHeader, verifyRecord } from '../../shared/kv/record.ts';
import { slotBytes, type SlabMemory } from '../../shared/kv/slab.ts';

export interface DiskEntry {
  readonly key: BlockKey;
  readonly digest: Digest;
  readonly bytes: number;
}

interface Environment {
  readonly root: RootDatabase<Buffer, Buffer>;
  readonly blocks: Database<Buffer, Buffer>;
  readonly entries: Database<Buffer, Buffer>;
  readonly meta: Database<Buffer, Buffer>;
  readonly path: string;
}

const ENTRY_BYTES = 44;
/** Openings in a row that did not come back before the environment is given up. */
const MAX_FALLEN = 2;

let environment: Environment | undefined;
let slab: SlabMemory | undefined;
let order = 0;

function disk(): Environment {
  if (!environment) throw new Error('the disk tier is not open');
  return environment;
}

/** A copy of a slot in ordinary memory. */
function copyOf(slot: number, bytes: number): Buffer {
  if (!slab) throw new Error('the mover has no slab yet');
  return Buffer.from(slotBytes(slab, slot).subarray(0, bytes));
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
  const length = readSync(file, head, 0, head.length, 0);
  closeSync(file);
  const isEnvironment = length === head.length && head.readUInt32LE(MAGIC_AT) === LMDB_MAGIC;
  return isEnvironment ? undefined : 'data.mdb is no LMDB environment';
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
    if (value.length !== ENTRY_BYTES) continue;
    found.push({
      key: key.readBigUInt64BE() as BlockKey,
      digest: value.toString('hex', 0, 16) as Digest,
      bytes: value.readUInt32LE(32),
      order: value.readDoubleLE(36),
    });
  }
  found.sort((a, b) => a.order - b.order);
  order = (found.at(-1)?.order ?? 0) + 1;
  return found;
}

const methods = {
  attach(memory: SlabMemory): void {
    slab = memory;
  },

  /** Opens or makes the environment. `wiped` says why old content was thrown away. Entries come oldest first. */
  async open(path: string): Promise<{ entries: DiskEntry[]; wiped: string | undefined }> {
    const boot = bootId();
    const mark = `${path}.opening`;
    let entries: DiskEntry[] = [];
    // LMDB maps the file: a damaged one can end the process. So look first, and count openings that did not come back; one may
    // have been a kill -9, two in a row are the file.
    const numFallen = existsSync(mark) ? Number(readFileSync(mark, 'utf8')) || 1 : 0;
    let wiped = numFallen >= MAX_FALLEN ? 'opening it has ended the process twice' : notLmdb(join(path, 'data.mdb'));
    if (wiped === undefined) {
      try {
        mkdirSync(path, { recursive: true });
        writeFileSync(mark, String(numFallen + 1));
        environment = openEnvironment(path);
        wiped = distrust(environment, boot);
        entries = wiped === undefined ? readEntries(environment) : [];
        if (wiped === undefined) signIn(environment, boot);
      } catch (error) {
        // A disk without a free page is one of the reasons; what is wiped is room.
        wiped = messageOf(error);
      }
    }
    if (wiped !== undefined) {
      await environment?.root.close();
      rmSync(path, { recursive: true, force: true });
      environment = openEnvironment(path);
      entries = [];
      signIn(environment, boot);
    }
    rmSync(mark, { force: true });
    return { entries, wiped };
  },

  /** Undefined when the slot holds the wanted block, undamaged (K2); else what is wrong. */
  verify({
    slot,
    bytes,
    want,
  }: {
    slot: number;
    bytes: number;
    want: { namespace: Digest; digest: Digest };
  }): string | undefined {
    return verifyRecord(copyOf(slot, bytes), want);
  },

  /**
   * Commits records in one transaction; returns the keys that are durable now. A slot that changed hands meanwhile fails its
   * digest and is left out. @throws Error when the disk is full or broken; nothing of the batch is stored then.
   */
  put(blocks: readonly { slot: number; bytes: number; key: BlockKey; digest: Digest }[]): BlockKey[] {
    const records = blocks.flatMap(({ slot, bytes, key, digest }) => {
      const record = copyOf(slot, bytes);
      const header = readHeader(record);
      if ('fault' in header || header.digest !== digest || verifyRecord(record) !== undefined) return [];
      const entry = Buffer.alloc(ENTRY_BYTES);
      entry.write(digest, 0, 'hex');
      entry.write(header.namespace, 16, 'hex');
      entry.writeUInt32LE(bytes, 32);
      entry.writeDoubleLE(order++, 36);
      return [{ key, record, entry }];
    });
    const { root, blocks: table, entries } = disk();
    root.transactionSync(() => {
      for (const { key, record, entry } of records) {
        table.putSync(keyBytes(key), record);
        entries.putSync(keyBytes(key), entry);
      }
    });
    return records.map(({ key }) => key);
  },

  /** Brings a record up into a slot. Undefined when it is there, undamaged; else what is wrong with what was stored. */
  get({ key, digest, slot }: { key: BlockKey; digest: Digest; slot: number }): string | undefined {
    const record = disk().blocks.get(keyBytes(key));
    if (!record) return 'it is not in the environment';
    const header = readHeader(record);
    if ('fault' in header) return header.fault;
    const fault = verifyRecord(record, { namespace: header.namespace, digest });
    if (fault !== undefined) return fault;
    if (!slab || record.length > slab.slotBytes) return `its ${record.length} bytes do not fit a slot`;
    slotBytes(slab, slot).set(record);
    return undefined;
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

export type DiskMethods = typeof methods;

serveCalls(methods);

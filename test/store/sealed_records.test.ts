/**
 * Records under a disk key, with the tier's real threads and process: nothing in clear, nothing moved or changed unnoticed, no record deleted
 * under a wrong key, no clear text left. Budget: 20 s.
 */
import assert from 'node:assert/strict';
import {
  cpSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { silentLog } from '../../shared/base/log.ts';
import type { Thread } from '../../shared/base/threads.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { chainOf, tenantIdOf, type BlockHash, type Digest } from '../../shared/kv/block_key.ts';
import { sealRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { Slab, slotBytes, slotLength } from '../../shared/kv/slab.ts';
import { keyListOf } from '../../services/store/key_list.ts';
import { DiskTier, type DiskWrite } from '../../services/store/disk_tier.ts';
import type { DiskReader, start as startReader } from '../../services/store/disk_reader.ts';
import { RECORDS, type DiskThread, type start } from '../../services/store/disk_thread.ts';
import { temporaryFolder } from '../support/cluster.ts';
import { evenSpec } from '../support/kv.ts';

const format = 'ab'.repeat(16) as Digest;
const KEY = Buffer.alloc(32, 0x4b);
const layoutOf = (payloadBytes: number): RecordLayout => ({
  format,
  numericsClass: 'test',
  spec: evenSpec({ numLayers: 2, blockSize: 4, payloadBytes }),
});
const small = layoutOf(8_192);
/** Records of several parts. */
const large = layoutOf(200_000);
const urlOf = (name: string): URL => new URL(`../../dist/services/store/${name}.js`, import.meta.url);
const folder = temporaryFolder();
const path = join(folder.path, 'lmdb');
const records = join(path, RECORDS);

/** A tier with its threads, as a store opens it. */
class Opened {
  readonly slab = new Slab(40 * slotLength(large.spec.slotBytes));
  readonly #worker: Thread<DiskThread>;
  readonly #readers: readonly Thread<DiskReader>[];
  readonly #stopped = new AbortController();
  readonly tier: DiskTier;
  wiped: string | undefined;
  hasKeyFault = false;

  private constructor(diskKey: Uint8Array | undefined) {
    const onDeath = assert.fail;
    const pid = new Int32Array(new SharedArrayBuffer(4));
    this.#worker = workerThreads.spawn<typeof start>({ url: urlOf('disk_worker') }, { pid }, { onDeath });
    const url = urlOf('disk_reader');
    this.#readers = [workerThreads.spawn<typeof startReader>({ url }, { diskKey }, { onDeath })];
    this.tier = new DiskTier({
      worker: this.#worker,
      readers: this.#readers,
      records: () => records,
      open: async () => {
        const opened = await this.#worker.call('open', { path, budgetBytes: 64 << 20, diskKey });
        this.wiped = opened.wiped;
        this.hasKeyFault = opened.hasKeyFault;
        return opened;
      },
      clock: systemClock,
      signal: this.#stopped.signal,
      budgetBytes: 64 << 20,
      log: silentLog,
      onStored: () => undefined,
      onRemoved: () => undefined,
    });
  }

  static async with(diskKey: Uint8Array | undefined): Promise<Opened> {
    const opened = new Opened(diskKey);
    await opened.#worker.call('attach', opened.slab.memory);
    for (const reader of opened.#readers) await reader.call('attach', opened.slab.memory);
    await opened.tier.start();
    last = opened;
    return opened;
  }

  /** A sealed record in a slot; its payload repeats MARK. */
  record(hash: BlockHash, layout = small): DiskWrite {
    const bytes = layout.spec.slotBytes;
    const slot = this.slab.allocate(bytes)!;
    const record = slotBytes(this.slab.memory, slot, bytes);
    for (let i = 0; i < bytes; i++) record[i] = MARK[i % MARK.length]!;
    sealRecord(record, layout, hash);
    return { hash, format, slot, bytes };
  }

  async reads(hash: BlockHash): Promise<boolean> {
    const slot = this.slab.allocate(large.spec.slotBytes)!;
    const isThere = await this.tier.get(hash, slot);
    if (isThere) expect(slotBytes(this.slab.memory, slot, 1_000).includes(MARK[0]!)).toBe(true);
    this.slab.release(slot);
    return isThere;
  }

  /** Ends like a store that drains; with `isKilled`, like one that is killed. */
  async close(isKilled = false): Promise<void> {
    last = undefined;
    this.#stopped.abort();
    if (!isKilled) await this.#worker.call('close', undefined);
    await Promise.all([this.#worker, ...this.#readers].map((thread) => thread.close()));
  }
}

const MARK = Buffer.from('what only the owner may read');
const hashOf = (i: number, tenant = ''): BlockHash => {
  const [hash] = chainOf(format, 4, [i, i, i, i]);
  return tenant === '' ? hash! : { ...hash!, tenant: tenantIdOf(tenant) };
};
let last: Opened | undefined;

beforeEach(folder.remove);
afterEach(async () => {
  await last?.close(true);
  folder.remove();
});

/** All bytes of all files of the tier. */
function allBytes(): Buffer {
  const files = readdirSync(folder.path, { recursive: true, withFileTypes: true }).filter((one) => one.isFile());
  return Buffer.concat(files.map((file) => readFileSync(join(file.parentPath, file.name))));
}

async function filled(key: Uint8Array | undefined): Promise<Opened> {
  const opened = await Opened.with(key);
  await opened.tier.put([
    ...[1, 2].map((i) => opened.record(hashOf(i))),
    opened.record(hashOf(3, 'a')),
    opened.record(hashOf(4, 'b'), large),
  ]);
  expect(opened.tier.size).toBe(4);
  return opened;
}

test.each([[undefined], [KEY]])(
  'no byte of a record, no name of it and no tenant is on disk in clear: key %o',
  async (key) => {
    const opened = await filled(key);
    await opened.close();
    const bytes = allBytes();
    const names = [1, 3].map((i) => hashOf(i));
    const words = Buffer.alloc(8);
    const [first] = names;
    words.writeBigUInt64LE(first!.key);
    const secrets = [MARK, ...names.map(({ digest }) => Buffer.from(digest, 'hex')), words, Buffer.from(format, 'hex')];
    const isIn = [...secrets, Buffer.from(tenantIdOf('a'), 'hex')].map((secret) => bytes.includes(secret));
    expect(new Set(isIn)).toEqual(new Set([key === undefined]));
    const again = await Opened.with(key);
    expect(again.tier.size).toBe(4);
    for (const i of [1, 2, 3, 4]) expect(await again.reads(hashOf(i)), `block ${i}`).toBe(true);
  },
);

test('a killed store finds its sealed records again, each tenant under its own key', async () => {
  const opened = await filled(KEY);
  await opened.close(true);
  const again = await Opened.with(KEY);
  for (const i of [1, 2, 3, 4]) expect(await again.reads(hashOf(i)), `block ${i}`).toBe(true);
  expect(again.tier.entryOf(hashOf(3))?.tenant).toBe(tenantIdOf('a'));
  const numbers = [1, 2, 3, 4].map((i) => again.tier.entryOf(hashOf(i))!.keyNumber);
  expect(new Set(numbers).size).toBe(3);
  expect(numbers[0]).toBe(numbers[1]);
});

test('under another key, under none, or without a whole list of keys nothing is read and nothing is deleted', async () => {
  await (await filled(KEY)).close();
  const list = keyListOf(path);
  const whole = readFileSync(list);
  const before = allBytes();
  const flipped = Buffer.from(whole);
  flipped[flipped.length - 1]! ^= 1;
  for (const [key, content, why] of [
    [Buffer.alloc(32, 1), whole, /written under another key/],
    [undefined, whole, /are encrypted: start the store with/],
    [KEY, whole.subarray(0, -56), /is damaged.*bring it back from a backup/],
    [KEY, flipped, /is damaged/],
    [KEY, undefined, /is not there.*bring it back from a backup/],
  ] as const) {
    if (content) writeFileSync(list, content);
    else rmSync(list);
    const opened = await Opened.with(key);
    expect([opened.tier.fault, opened.hasKeyFault]).toEqual([expect.stringMatching(why), true]);
    await opened.close(true);
    expect(existsSync(`${path}.damaged`)).toBe(false);
  }
  writeFileSync(list, whole);
  expect(allBytes().equals(before)).toBe(true);
  const again = await Opened.with(KEY);
  expect(again.tier.size).toBe(4);
});

test('a folder in the place of the list of keys is no whole list: no record is set aside for it', async () => {
  await (await filled(KEY)).close();
  const list = keyListOf(path);
  const whole = readFileSync(list);
  rmSync(list);
  mkdirSync(list);
  const opened = await Opened.with(KEY);
  expect([opened.tier.fault, opened.hasKeyFault]).toEqual([expect.stringMatching(/is damaged/), true]);
  await opened.close(true);
  rmSync(list, { recursive: true });
  writeFileSync(list, whole);
  const again = await Opened.with(KEY);
  expect(again.tier.size).toBe(4);
});

test.each([[undefined], [KEY]])(
  'a file in the place of the folder is set aside as it is, and the tier begins anew: key %o',
  async (key) => {
    await (await filled(key)).close();
    // The second time what was set aside is a file, too.
    for (const content of ['not a folder', 'again none']) {
      rmSync(path, { recursive: true });
      writeFileSync(path, content);
      const opened = await Opened.with(key);
      expect([opened.tier.fault, opened.tier.size]).toEqual([undefined, 0]);
      expect(readFileSync(`${path}.damaged`, 'utf8')).toBe(content);
      await opened.tier.put([opened.record(hashOf(1))]);
      expect(await opened.reads(hashOf(1))).toBe(true);
      await opened.close();
    }
  },
);

test('records in clear, damaged ones too, are overwritten and deleted when there is a key', async () => {
  await (await filled(undefined)).close(true);
  writeFileSync(join(path, 'data.mdb'), Buffer.alloc(65_536, 0x5a));
  await (await filled(undefined)).close(true);
  const kept = join(folder.path, 'kept');
  const copies = [path, `${path}.damaged`].map((from, i) => [join(from, RECORDS), `${kept}${i}`] as const);
  for (const [from, to] of copies) linkSync(from, to);
  for (const [, to] of copies) expect(readFileSync(to).includes(MARK)).toBe(true);
  const opened = await Opened.with(KEY);
  expect([opened.wiped, opened.tier.size]).toEqual([expect.stringMatching(/were in clear, and were overwritten/), 0]);
  for (const [, to] of copies) expect(readFileSync(to).every((byte) => byte === 0)).toBe(true);
  await opened.tier.put([opened.record(hashOf(1))]);
  await opened.close();
  expect(allBytes().includes(MARK)).toBe(false);
  const again = await Opened.with(KEY);
  expect([again.wiped, again.tier.size]).toEqual([undefined, 1]);
});

test('a record that was moved on the disk, or changed by one bit, is dropped', async () => {
  const opened = await filled(KEY);
  const place = (i: number): number => opened.tier.entryOf(hashOf(i))!.at;
  const file = readFileSync(records);
  const length = 44 + small.spec.slotBytes;
  const [first, second] = [place(1), place(2)].map((at) => Buffer.from(file.subarray(at, at + length)));
  file.set(first!, place(2));
  file.set(second!, place(1));
  file[place(4) + 150_000]! ^= 4;
  writeFileSync(records, file);
  for (const i of [1, 2, 4]) expect(await opened.reads(hashOf(i)), `block ${i}`).toBe(false);
  expect(await opened.reads(hashOf(3))).toBe(true);
  expect([opened.tier.size, opened.tier.numFailures]).toEqual([1, 3]);
});

test('a tenant that was forgotten is gone, from a backup without the list of keys too; others stay, and it may return', async () => {
  const opened = await filled(KEY);
  await opened.close();
  const backup = join(folder.path, 'backup');
  cpSync(path, backup, { recursive: true });
  const again = await Opened.with(KEY);
  expect(await again.tier.forget(tenantIdOf('a'))).toEqual({
    bytes: new Map([[hashOf(3).key, small.spec.slotBytes]]),
    isFinal: true,
  });
  expect(again.tier.has(hashOf(3))).toBe(false);
  expect(await again.tier.forget(tenantIdOf('a'))).toEqual({ bytes: new Map(), isFinal: true });
  for (const i of [1, 2, 4]) expect(await again.reads(hashOf(i)), `block ${i}`).toBe(true);
  await again.close();
  rmSync(path, { recursive: true });
  renameSync(backup, path);
  const restored = await Opened.with(KEY);
  expect([restored.tier.fault, restored.tier.size, restored.tier.has(hashOf(3))]).toEqual([undefined, 3, false]);
  await restored.tier.put([restored.record(hashOf(3, 'a'))]);
  expect(await restored.reads(hashOf(3))).toBe(true);
  // The reader knew the tenant's key when it went, and reads the new one.
  await restored.tier.forget(tenantIdOf('a'));
  await restored.tier.put([restored.record(hashOf(3, 'a'))]);
  for (const i of [1, 2, 3, 4]) expect(await restored.reads(hashOf(i)), `block ${i}`).toBe(true);
});

test('without a key the records of a forgotten tenant are overwritten, and the answer says that copies can be read', async () => {
  const opened = await Opened.with(undefined);
  await opened.tier.put([opened.record(hashOf(3, 'a'))]);
  expect(readFileSync(records).includes(MARK)).toBe(true);
  expect((await opened.tier.forget(tenantIdOf('a'))).isFinal).toBe(false);
  expect(readFileSync(records).includes(MARK)).toBe(false);
  expect(opened.tier.size).toBe(0);
});

test('a put that is under way when its tenant is forgotten leaves nothing, and a disk that cannot be used is said', async () => {
  const opened = await filled(KEY);
  const putting = opened.tier.put([10, 11, 12].map((i) => opened.record(hashOf(i, 'a'))));
  await opened.tier.forget(tenantIdOf('a'));
  await putting;
  expect([opened.tier.size, opened.tier.has(hashOf(10))]).toEqual([3, false]);
  await opened.close(true);
  const wrong = await Opened.with(Buffer.alloc(32, 1));
  await expect(wrong.tier.forget(tenantIdOf('a'))).rejects.toThrow(/its disk cannot be used now: .*another key/);
});

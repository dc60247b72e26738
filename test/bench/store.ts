/**
 * A store's disk tier, as the store uses it, on a real disk: against the same bytes written to and read from a plain file in the same run.
 * Within the page cache, and beyond it: written with fdatasync, read after the pages were let go. In turns with a tier under a disk key.
 */
import { randomBytes } from 'node:crypto';
import { close, fdatasync, open, read, rmSync, write } from 'node:fs';
import { mkdtemp } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { systemClock } from '../../shared/base/clock.ts';
import { silentLog } from '../../shared/base/log.ts';
import type { Thread } from '../../shared/base/threads.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import type { BlockHash } from '../../shared/kv/block_key.ts';
import { sealRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { Slab, slotBytes, slotLength } from '../../shared/kv/slab.ts';
import { DiskTier, type DiskWrite } from '../../services/store/disk_tier.ts';
import type { DiskReader, start as startReader } from '../../services/store/disk_reader.ts';
import { keyListOf } from '../../services/store/key_list.ts';
import { RECORDS, type DiskThread, type start } from '../../services/store/disk_thread.ts';
import { MAX_BATCH, MAX_BATCH_BYTES } from '../../services/store/write_behind.ts';
import { percentile, withReference, type Figure } from './figures.ts';
import { projectPath } from '../support/project.ts';
import { letGo } from './page_cache.ts';
import { layoutOf, recordsOf } from './transfer_records.ts';

export interface StoreBenchOptions {
  /** On the disk that is to be measured. */
  readonly folder: string;
  readonly recordKiBs: readonly number[];
  readonly totalBytes: number;
  /** Blocks of a store that is killed and started. */
  readonly numRecovered: number;
  readonly onFigure: (figure: Figure) => void;
}

const GB = 1e9;
/** Reads that are under way at once. */
const NUM_READERS = 16;
const RECOVERED_KIB = 4;
/** Unmeasured reads before reads are measured, while threads compile their code. */
const WARM_UPS = 3;
/** Rounds of each access method, in turns, because the speed of a shared disk changes by the second. */
const ROUNDS = 3;

const [openFile, closeFile, syncFile] = [promisify(open), promisify(close), promisify(fdatasync)];
const [readFrom, writeTo] = [promisify(read), promisify(write)];

export async function benchStore(options: StoreBenchOptions): Promise<Figure[]> {
  const figures: Figure[] = [];
  const push = (figure: Figure): void => {
    figures.push(figure);
    options.onFigure(figure);
  };
  const folder = await mkdtemp(join(options.folder, 'penstock-store-bench-'));
  try {
    for (const recordKiB of options.recordKiBs) await benchSize(recordKiB, options, folder, push);
    await benchRecovery(options.numRecovered, folder, push);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  return figures;
}

/** A tier with its real thread and process. */
class Opened {
  readonly tier: DiskTier;
  readonly #worker: Thread<DiskThread>;
  readonly #readers: readonly Thread<DiskReader>[];
  readonly #stopped: AbortController;

  private constructor(
    tier: DiskTier,
    worker: Thread<DiskThread>,
    readers: readonly Thread<DiskReader>[],
    stopped: AbortController,
  ) {
    this.tier = tier;
    this.#readers = readers;
    this.#worker = worker;
    this.#stopped = stopped;
  }

  static async at(path: string, slab: Slab, budgetBytes: number, diskKey?: Uint8Array): Promise<Opened> {
    const pid = new Int32Array(new SharedArrayBuffer(4));
    const url = pathToFileURL(projectPath('dist/services/store/disk_worker.js'));
    const onDeath = (error: Error): never => {
      throw error;
    };
    const worker = workerThreads.spawn<typeof start>({ url }, { pid }, { onDeath });
    const reader = { url: pathToFileURL(projectPath('dist/services/store/disk_reader.js')) };
    const readers = [1, 2, 3, 4].map(() => workerThreads.spawn<typeof startReader>(reader, { diskKey }, { onDeath }));
    await worker.call('attach', slab.memory);
    for (const one of readers) await one.call('attach', slab.memory);
    const stopped = new AbortController();
    const tier = new DiskTier({
      worker,
      readers,
      records: () => join(path, RECORDS),
      clock: systemClock,
      signal: stopped.signal,
      budgetBytes,
      log: silentLog,
      open: () => worker.call('open', { path, budgetBytes, diskKey }),
      onStored: () => undefined,
      onRemoved: () => undefined,
    });
    await tier.start();
    if (tier.fault !== undefined) throw new Error(tier.fault);
    return new Opened(tier, worker, readers, stopped);
  }

  /** Closes like a store that ends; without `inOrder`, like a store that is killed. */
  async close(inOrder: boolean): Promise<void> {
    this.#stopped.abort();
    if (inOrder) await this.#worker.call('close', undefined);
    await Promise.all([this.#worker, ...this.#readers].map((thread) => thread.close()));
  }
}

/** Records in slots, as many as a few transactions take; each is put under many names. */
class Sealed {
  readonly slab: Slab;
  readonly bytes: number;
  /** In one transaction, as a store that has much to write does. */
  readonly numTogether: number;
  readonly hashes: readonly BlockHash[];
  readonly #layout: RecordLayout;
  readonly #all: readonly BlockHash[];
  readonly #slots: readonly number[];

  constructor(recordKiB: number, count: number) {
    this.#layout = layoutOf(recordKiB);
    // Twice: those that are measured, and others to write while they are read.
    const { bytes, hashes } = recordsOf(this.#layout, 2 * count);
    this.hashes = hashes.slice(0, count);
    this.#all = hashes;
    this.bytes = bytes;
    this.numTogether = Math.min(MAX_BATCH, Math.floor(MAX_BATCH_BYTES / bytes));
    this.slab = new Slab((this.numTogether + 2 * NUM_READERS) * slotLength(bytes));
    this.#slots = Array.from({ length: this.numTogether }, () => this.slab.allocate(bytes) ?? 0);
    for (const slot of this.#slots) slotBytes(this.slab.memory, slot, bytes).fill(0x5b);
  }

  /** The next batch, sealed. */
  batch(from: number): DiskWrite[] {
    return this.#all.slice(from, from + this.numTogether).map((hash, i) => {
      const slot = this.#slots[i] ?? 0;
      sealRecord(slotBytes(this.slab.memory, slot, this.bytes), this.#layout, hash);
      return { hash, format: this.#layout.format, slot, bytes: this.bytes };
    });
  }
}

async function benchSize(
  recordKiB: number,
  { totalBytes }: StoreBenchOptions,
  folder: string,
  push: (figure: Figure) => void,
): Promise<void> {
  const name = `store/${recordKiB} KiB`;
  const sealed = new Sealed(recordKiB, Math.ceil(totalBytes / (recordKiB * 1_024)));
  const { bytes, hashes, slab } = sealed;
  const numBytes = hashes.length * bytes;
  const speeds: Record<string, number[]> = {};
  const note = (what: string, total: number, ms: number): void => {
    (speeds[what] ??= []).push((total / ms) * (1_000 / GB));
  };
  const latencies: { readonly alone: number[]; readonly loaded: number[] } = { alone: [], loaded: [] };
  for (let round = 0; round < ROUNDS; round++) {
    const path = join(folder, `tier-${recordKiB}-${round}`);
    const plainPath = join(folder, `plain-${recordKiB}`);
    const plain = await openFile(plainPath, 'w+');
    const view = new Uint8Array(new SharedArrayBuffer(bytes));
    const writeMs = await timed(async () => {
      for (let i = 0; i < hashes.length; i++) await writeTo(plain, view, 0, bytes, i * bytes);
    });
    note('plain write', numBytes, writeMs);
    note('plain write, fdatasync', numBytes, writeMs + (await timed(() => syncFile(plain))));
    await readPlain(plain, bytes, hashes.length);
    note('plain read', numBytes, await timed(() => readPlain(plain, bytes, hashes.length)));
    letGo(plainPath);
    note('plain read, not cached', numBytes, await timed(() => readPlain(plain, bytes, hashes.length)));
    await closeFile(plain);
    rmSync(plainPath);

    const opened = await Opened.at(path, slab, 2 * numBytes + (64 << 20));
    let putMs = 0;
    for (let from = 0; from < hashes.length; from += sealed.numTogether) {
      // The transfer thread seals elsewhere while this is written.
      const batch = sealed.batch(from).slice(0, hashes.length - from);
      putMs += await timed(() => opened.tier.put(batch));
    }
    const file = await openFile(join(path, RECORDS), 'r+');
    note('put', numBytes, putMs);
    note('put, fdatasync', numBytes, putMs + (await timed(() => syncFile(file))));
    await closeFile(file);
    // Threads that have just begun have their code to compile, which a store that runs has done already.
    for (let i = 0; i < WARM_UPS; i++) await readTier(opened.tier, sealed, []);
    note('get', numBytes, await timed(() => readTier(opened.tier, sealed, latencies.alone)));
    letGo(join(path, RECORDS));
    note('get, not cached', numBytes, await timed(() => readTier(opened.tier, sealed, [])));
    // Reads while others are written.
    const reading = readTier(opened.tier, sealed, latencies.loaded);
    for (let i = 0; i < hashes.length / 2; i += sealed.numTogether)
      await opened.tier.put(sealed.batch(hashes.length + i));
    await reading;
    await opened.close(true);
    rmSync(path, { recursive: true, force: true });
    await benchEncrypted(sealed, path, note);
  }
  const best = (what: string): number => percentile(speeds[what] ?? [], 0.5);
  for (const [own, reference] of [
    ['put', 'plain write'],
    ['put, fdatasync', 'plain write, fdatasync'],
    ['get', 'plain read'],
    ['get, not cached', 'plain read, not cached'],
    ['put, encrypted', 'put'],
    ['get, encrypted', 'get'],
    ['get, not cached, encrypted', 'get, not cached'],
  ] as const)
    push(withReference(`${name}/${own}`, best(own), 'GB/s', reference, best(reference)));
  for (const [what, times] of Object.entries(latencies))
    for (const share of [0.5, 0.99])
      push({ name: `${name}/get, ${what}, p${100 * share}`, value: percentile(times, share), unit: 'ms' });
}

/** The same under a disk key. */
async function benchEncrypted(
  sealed: Sealed,
  path: string,
  note: (what: string, total: number, ms: number) => void,
): Promise<void> {
  const { hashes, bytes, slab } = sealed;
  const numBytes = hashes.length * bytes;
  const opened = await Opened.at(path, slab, 2 * numBytes + (64 << 20), randomBytes(32));
  let putMs = 0;
  for (let from = 0; from < hashes.length; from += sealed.numTogether) {
    const batch = sealed.batch(from).slice(0, hashes.length - from);
    putMs += await timed(() => opened.tier.put(batch));
  }
  note('put, encrypted', numBytes, putMs);
  for (let i = 0; i < WARM_UPS; i++) await readTier(opened.tier, sealed, []);
  note('get, encrypted', numBytes, await timed(() => readTier(opened.tier, sealed, [])));
  letGo(join(path, RECORDS));
  note('get, not cached, encrypted', numBytes, await timed(() => readTier(opened.tier, sealed, [])));
  await opened.close(true);
  rmSync(path, { recursive: true, force: true });
  rmSync(keyListOf(path));
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const startMs = performance.now();
  await work();
  return performance.now() - startMs;
}

/** Reads the records plainly, with as many parallel reads as the tier gets. */
async function readPlain(file: number, bytes: number, count: number): Promise<void> {
  let next = 0;
  const one = async (): Promise<void> => {
    const view = new Uint8Array(new SharedArrayBuffer(bytes));
    while (next < count) await readFrom(file, view, 0, bytes, next++ * bytes);
  };
  await Promise.all(Array.from({ length: NUM_READERS }, one));
}

async function readTier(tier: DiskTier, { slab, bytes, hashes }: Sealed, latencies: number[]): Promise<void> {
  let next = 0;
  const one = async (): Promise<void> => {
    const slot = slab.allocate(bytes);
    if (slot === undefined) throw new Error('no slot to read into');
    for (let hash = hashes[next++]; hash; hash = hashes[next++]) {
      const startMs = performance.now();
      if (!(await tier.get(hash, slot))) throw new Error('a record is not there');
      latencies.push(performance.now() - startMs);
    }
    slab.release(slot);
  };
  await Promise.all(Array.from({ length: NUM_READERS }, one));
}

async function benchRecovery(count: number, folder: string, push: (figure: Figure) => void): Promise<void> {
  const path = join(folder, 'recovered');
  const sealed = new Sealed(RECOVERED_KIB, count);
  const budgetBytes = 4 * count * sealed.bytes;
  const filled = await Opened.at(path, sealed.slab, budgetBytes);
  for (let from = 0; from < count; from += sealed.numTogether)
    await filled.tier.put(sealed.batch(from).slice(0, count - from));
  await filled.close(false);
  const startMs = performance.now();
  const opened = await Opened.at(path, sealed.slab, budgetBytes);
  const ms = performance.now() - startMs;
  if (opened.tier.size !== count) throw new Error(`${opened.tier.size} of ${count} blocks were recovered`);
  push({ name: `store/recovery of ${count} blocks`, value: ms, unit: 'ms' });
  await opened.close(true);
}

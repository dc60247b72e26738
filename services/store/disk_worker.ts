/**
 * The store's disk thread: writes records from the slab into their file, and owns the disk process that knows which are there, so that
 * the control thread never waits for a disk.
 *
 * An environment that ends its process, or in which a write or a delete fails other than for want of room, is set aside (renamed,
 * one is kept) and begun anew: `generation` counts that, and who keeps an index of it compares. One that cannot be opened at all
 * is a fault that passes or does not; the store serves from DRAM and asks again.
 */
import { existsSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { systemClock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import type { BlockKey, Digest } from '../../shared/kv/block_key.ts';
import { contentHashOf, readHeader } from '../../shared/kv/record.ts';
import { slotBytes, type SlabMemory } from '../../shared/kv/slab.ts';
import { DiskChild, DiskProcessDeath } from './disk_child.ts';
import type { DiskEntry } from './disk_process.ts';
import { isForRoom, mayPass } from './disk_errors.ts';
import { RecordsFile } from './records_file.ts';

/** The file of records, in the folder of the environment. */
export const RECORDS = 'records';
/** Processes in a row that ended from outside while they opened. */
const MAX_OPENINGS = 3;
/** Openings in a row that did not come back: pages that point in a circle, not a machine that slept. */
const MAX_HANGS = 2;
/** The file of records may be so much longer than what is in it: records of several sizes leave gaps. */
const CHURN = 1.25;
const MIN_CHURN_BYTES = 64 << 20;

/** The disk thread: writes records into the file, commits them through the disk process, and sets a damaged environment aside. */
export class DiskThread {
  /** [pid of the disk process] i32: for whoever ends this thread while that one hangs. */
  readonly #pidCell: Int32Array;
  #slab: SlabMemory | undefined;
  #child: DiskChild | undefined;
  #file: RecordsFile | undefined;
  /** Records that the environment names, by key. */
  readonly #entries = new Map<BlockKey, DiskEntry>();
  #path = '';
  #maxBytes = 0;
  /** Counts the environments of this process: another one has nothing of what the one before had. */
  #generation = 0;
  /** Why there is no environment now. */
  #fault: string | undefined = 'it is not open yet';

  constructor(pidCell: Int32Array) {
    this.#pidCell = pidCell;
  }

  #recordIn(slot: number, bytes: number): Uint8Array {
    if (!this.#slab) throw new Error('the disk thread has no slab yet');
    return slotBytes(this.#slab, slot, bytes);
  }

  get #records(): RecordsFile {
    if (!this.#file) throw new Error('the disk tier has no file of records');
    return this.#file;
  }

  /** Opens what is there. @throws DiskProcessDeath; Error when it cannot be opened. @returns what is wrong with it, if anything. */
  async #openOnce(): Promise<{ readonly damage: string | undefined; readonly entries: DiskEntry[] }> {
    await this.#ended();
    this.#child = new DiskChild(systemClock);
    Atomics.store(this.#pidCell, 0, this.#child.pid);
    const { numEntries, damage } = await this.#child.call('open', this.#path);
    const entries: DiskEntry[] = [];
    while (damage === undefined && entries.length < numEntries) {
      entries.push(...(await this.#child.call('entries', entries.length)));
    }
    // The environment may be another one now: the old file and its entries no longer count.
    this.#file?.close();
    this.#file = undefined;
    this.#entries.clear();
    if (damage !== undefined) return { damage, entries };
    try {
      this.#file = new RecordsFile(join(this.#path, RECORDS), this.#maxBytes, entries);
    } catch (error) {
      if (mayPass(error)) throw error;
      return { damage: messageOf(error), entries };
    }
    for (const entry of entries) this.#entries.set(entry.key, entry);
    return { damage, entries };
  }

  /** The last disk process is gone. @throws Error when it is not: no other may open what it has open. */
  async #ended(): Promise<void> {
    if (this.#child && !(await this.#child.end())) throw new Error('EBUSY: the last disk process has not ended yet');
  }

  /** Until it is open, set aside and begun anew, or given up for now. */
  async #openEnvironment(): Promise<{ readonly entries: DiskEntry[]; readonly wiped: string | undefined }> {
    let wiped: string | undefined;
    let numHangs = 0;
    for (let numOpenings = 0; ; numOpenings++) {
      let reason: string;
      try {
        const { damage, entries } = await this.#openOnce();
        if (damage === undefined) {
          this.#fault = undefined;
          this.#generation++;
          return { entries, wiped };
        }
        reason = damage;
      } catch (error) {
        reason = messageOf(error);
        const isDeath = error instanceof DiskProcessDeath;
        const isHanging = isDeath && error.isHang && ++numHangs >= MAX_HANGS;
        if (isDeath && !error.isDamage && !isHanging && numOpenings < MAX_OPENINGS) continue;
        if (!isHanging && !isDamaged(error)) {
          this.#fault = reason;
          return { entries: [], wiped };
        }
      }
      // Begun anew and still no good: the disk is the reason, not what lay on it.
      if (wiped !== undefined) {
        this.#fault = reason;
        return { entries: [], wiped };
      }
      wiped = reason;
      try {
        await this.#setAside();
      } catch (error) {
        this.#fault = `${wiped}; it cannot be set aside: ${messageOf(error)}`;
        return { entries: [], wiped: undefined };
      }
    }
  }

  /** One damaged environment is kept, for whoever wants to know why. */
  async #setAside(): Promise<void> {
    await this.#ended();
    if (!existsSync(this.#path)) return;
    rmSync(`${this.#path}.damaged`, { recursive: true, force: true });
    renameSync(this.#path, `${this.#path}.damaged`);
  }

  /** The disk process, opened again where it ended from outside. @throws Error when there is none. */
  async #disk(): Promise<DiskChild> {
    if (this.#fault === undefined && this.#child?.isAlive === false) {
      // Killed from outside while nobody asked: what it had committed is there (S1), and the index still says so.
      const known = this.#generation;
      const { wiped } = await this.#openEnvironment();
      if (wiped === undefined) this.#generation = known;
      // The caller keeps an index of the environment, and must learn that the old entries are gone.
      else throw new BegunAnew(wiped);
    }
    if (this.#fault !== undefined || !this.#child) throw new Error(`the disk tier is not usable: ${this.#fault}`);
    return this.#child;
  }

  /**
   * Runs it on the environment, and once more when the process was ended from outside under it: nothing of it was committed, or all.
   * What ends the process by itself, or a write that fails other than for want of room, sets the environment aside.
   */
  async #onDisk<T>(work: (child: DiskChild) => Promise<T>): Promise<T> {
    for (let isRepeated = false; ; isRepeated = true) {
      try {
        return await work(await this.#disk());
      } catch (error) {
        if (error instanceof BegunAnew) throw error;
        const isDeath = error instanceof DiskProcessDeath;
        if (isDeath && !error.isDamage && !isRepeated) continue;
        // A machine that was asleep looks like a hang, once.
        const isDamage = isDeath
          ? error.isDamage || error.isHang
          : this.#fault === undefined && this.#child?.isAlive === true && !isForRoom(error);
        if (!isDamage) throw error;
        const reason = messageOf(error);
        try {
          await this.#setAside();
          await this.#openEnvironment();
        } catch (second) {
          this.#fault = messageOf(second);
        }
        throw new BegunAnew(reason, { cause: error });
      }
    }
  }

  attach(memory: SlabMemory): void {
    this.#slab = memory;
  }

  /** Opens or makes the environment. `wiped` says why old content was set aside, `fault` why there is none. Oldest first. */
  async open({
    path,
    budgetBytes,
  }: {
    readonly path: string;
    readonly budgetBytes: number;
  }): Promise<{ entries: DiskEntry[]; wiped: string | undefined; fault: string | undefined; generation: number }> {
    this.#path = path;
    this.#maxBytes = CHURN * budgetBytes + MIN_CHURN_BYTES;
    const { entries, wiped } = await this.#openEnvironment();
    return { entries, wiped, fault: this.#fault, generation: this.#generation };
  }

  state(): { fault: string | undefined; generation: number } {
    return { fault: this.#fault, generation: this.#generation };
  }

  /**
   * Writes records and commits them in one transaction; returns those that are durable now, and in which environment. Calls come one by
   * one. A slot that changed hands meanwhile is left out. @throws Error when the disk is full or broken; nothing of the batch is stored then.
   */
  put(
    blocks: readonly { slot: number; bytes: number; key: BlockKey; digest: Digest }[],
  ): Promise<{ stored: DiskEntry[]; generation: number }> {
    return this.#onDisk(async (to) => {
      const records = this.#records;
      const held: DiskEntry[] = [];
      const stored: DiskEntry[] = [];
      try {
        for (const { slot, bytes, key, digest } of blocks) {
          const record = this.#recordIn(slot, bytes);
          const header = readHeader(record);
          const known = this.#entries.get(key);
          // Committed by a try whose answer was lost.
          if (known?.digest === digest) held.push(known);
          if ('fault' in header || header.digest !== digest || known) continue;
          const { format, numerics } = header;
          const at = records.write(record);
          stored.push({ key, digest, format, bytes, numerics, contentHash: contentHashOf(record), at });
        }
        await to.call('commit', stored);
      } catch (error) {
        // Another file has none of them.
        if (records === this.#file) records.free(stored.map(({ at }) => at));
        throw error;
      }
      for (const entry of stored) this.#entries.set(entry.key, entry);
      return { stored: [...held, ...stored], generation: this.#generation };
    });
  }

  /** Makes these entries the most recently used, in the order of `keys`. */
  touch(keys: readonly BlockKey[]): Promise<void> {
    return this.#onDisk((to) => to.call('touch', keys));
  }

  remove(keys: readonly BlockKey[]): Promise<void> {
    return this.#onDisk(async (to) => {
      await to.call('remove', keys);
      const gone = keys.flatMap((key) => this.#entries.get(key) ?? []);
      for (const key of keys) this.#entries.delete(key);
      this.#records.free(gone.map(({ at }) => at));
    });
  }

  async close(): Promise<void> {
    // In this order: what the environment names is there.
    this.#file?.sync();
    if (this.#fault === undefined && this.#child?.isAlive) await this.#child.call('close', undefined);
    await this.#child?.end();
    this.#file?.close();
    this.#file = undefined;
  }
}

function isDamaged(error: unknown): boolean {
  return error instanceof DiskProcessDeath ? error.isDamage : !mayPass(error);
}

/** The environment is another one now, and has nothing of what the one before had. */
class BegunAnew extends Error {
  constructor(reason: string, options?: ErrorOptions) {
    super(`the disk tier was damaged and is begun anew: ${reason}`, options);
    this.name = 'BegunAnew';
  }
}

/** Creates the object that the disk thread serves. `pid` is a shared cell that receives the pid of the disk process. */
export function start({ pid }: { readonly pid: Int32Array }): DiskThread {
  return new DiskThread(pid);
}

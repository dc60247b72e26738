/**
 * The store's disk thread: writes records from the slab into their file, and owns the disk process that indexes them. With a thread
 * of its own, the control thread never waits for a disk.
 *
 * An environment is damaged when it crashes its process, or when a write or delete fails other than for want of room. The thread
 * renames it (only the last damaged one is kept) and creates a new one with the next `generation`, by which the control thread
 * notices that its index is void. An environment that cannot be opened at all is a `fault`: the store serves from DRAM and opens it
 * again later. One that has never been made is made for its first records, and its process starts then.
 */
import { existsSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { systemClock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import type { BlockKey, Digest, TenantId } from '../../shared/kv/block_key.ts';
import { readHeader } from '../../shared/kv/record.ts';
import { slotBytes, type SlabMemory } from '../../shared/kv/slab.ts';
import { DiskChild, DiskProcessDeath } from './disk_child.ts';
import { encodeEntry, entryId } from './disk_entries.ts';
import type { DiskEntry } from './disk_process.ts';
import { BegunAnew, isForRoom, mayPass } from './disk_errors.ts';
import { KeyFault, type KeyList } from './key_list.ts';
import { hasBegun, openKeys, type OpenedKeys } from './open_keys.ts';
import { recoverEntries } from './disk_recovery.ts';
import { writeRecord, type FreshRecord } from './record_writer.ts';
import { RecordsFile } from './records_file.ts';

/** The file of records, in the folder of the environment. */
export const RECORDS = 'records';
/** Retries of an opening whose disk process was ended from outside. */
const MAX_OPENINGS = 3;
/** Hung openings in a row that count as damage, such as pages that form a cycle. A single hang may be a machine that was suspended. */
const MAX_HANGS = 2;
/**
 * Factor of the byte budget, with MIN_CHURN_BYTES added, that limits the length of the file of records. The file needs the surplus
 * because records of several sizes leave gaps.
 */
const CHURN = 1.25;
const MIN_CHURN_BYTES = 64 << 20;

/** The folder of an environment, its budget, and the key of `--disk-key` where there is one. */
interface DiskPlace {
  readonly path: string;
  readonly budgetBytes: number;
  readonly diskKey?: Uint8Array | undefined;
}

/** The disk thread: writes records into the file, commits them through the disk process, and sets a damaged environment aside. */
export class DiskThread {
  /** [pid of the disk process] i32: lets the store kill that process when this thread hangs. */
  readonly #pidCell: Int32Array;
  #slab: SlabMemory | undefined;
  #child: DiskChild | undefined;
  #file: RecordsFile | undefined;
  /** Records that the environment names, by key. */
  readonly #entries = new Map<BlockKey, DiskEntry>();
  #where: DiskPlace = { path: '', budgetBytes: 0 };
  /** Keys of the records; undefined while they are in clear. */
  #keys: KeyList | undefined;
  #hasKeyFault = false;
  /** Number of the current environment. A new environment has none of the entries of the one before. */
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

  /**
   * Starts a disk process, and opens the environment and its file of records. Returns the entries, or in `damage` why the content
   * cannot be used; `erased` says why it was deleted. @throws DiskProcessDeath; KeyFault when the disk key is not that of the records; Error
   * when the environment cannot be opened now.
   */
  async #openOnce(): Promise<Opened> {
    await this.#ended();
    const { keys, erased } = openKeys(this.#where.path, this.#where.diskKey);
    this.#keys = keys;
    this.#child = new DiskChild(systemClock);
    Atomics.store(this.#pidCell, 0, this.#child.pid);
    const { numEntries, damage } = await this.#child.call('open', this.#where.path);
    const entries = damage === undefined ? await recoverEntries(this.#child, numEntries, keys) : [];
    // The environment may be another one now: the old file and its entries no longer count.
    this.#file?.close();
    this.#file = undefined;
    this.#entries.clear();
    if (damage !== undefined) return { damage, entries, erased };
    try {
      this.#file = new RecordsFile(
        join(this.#where.path, RECORDS),
        CHURN * this.#where.budgetBytes + MIN_CHURN_BYTES,
        entries,
      );
    } catch (error) {
      if (mayPass(error)) throw error;
      return { damage: messageOf(error), entries, erased };
    }
    for (const entry of entries) this.#entries.set(entry.key, entry);
    return { damage, entries, erased };
  }

  /** Ends the previous disk process. @throws Error when it does not exit: no second process may open the same environment. */
  async #ended(): Promise<void> {
    if (this.#child && !(await this.#child.end())) throw new Error('EBUSY: the last disk process has not ended yet');
  }

  /**
   * Opens the environment. Retries when the process was ended from outside; sets a damaged environment aside and creates a new one.
   * Sets `#fault` when neither helps. `wiped` says why old content was set aside.
   */
  async #openEnvironment(): Promise<{ readonly entries: DiskEntry[]; readonly wiped: string | undefined }> {
    let wiped: string | undefined;
    let numHangs = 0;
    for (let numOpenings = 0; ; numOpenings++) {
      let reason: string;
      try {
        this.#hasKeyFault = false;
        const { damage, entries, erased } = await this.#openOnce();
        if (damage === undefined) {
          this.#fault = undefined;
          this.#generation++;
          return { entries, wiped: wiped ?? erased };
        }
        reason = damage;
      } catch (error) {
        reason = messageOf(error);
        this.#hasKeyFault = error instanceof KeyFault;
        const isDeath = error instanceof DiskProcessDeath;
        const isHanging = isDeath && error.isHang && ++numHangs >= MAX_HANGS;
        if (isDeath && !error.isDamage && !isHanging && numOpenings < MAX_OPENINGS) continue;
        if (!isHanging && !isDamaged(error)) {
          this.#fault = reason;
          return { entries: [], wiped };
        }
      }
      // A new environment failed as well: the cause is the disk, not its content.
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

  /** Renames the environment to `.damaged` for later analysis, in place of an earlier one. */
  async #setAside(): Promise<void> {
    await this.#ended();
    if (!existsSync(this.#where.path)) return;
    rmSync(`${this.#where.path}.damaged`, { recursive: true, force: true });
    renameSync(this.#where.path, `${this.#where.path}.damaged`);
  }

  /**
   * Returns the disk process, started for the first records, or again when it was ended from outside. @throws BegunAnew when the
   * environment had to be created anew, Error when there is none.
   */
  async #disk(): Promise<DiskChild> {
    if (this.#fault === undefined && this.#child?.isAlive !== true) {
      // Killed from outside between two calls: its committed entries survive (S1), so the control thread's index stays valid.
      const known = this.#generation;
      const hasEntries = existsSync(this.#where.path);
      const { wiped } = await this.#openEnvironment();
      if (wiped === undefined || !hasEntries) this.#generation = known;
      // The caller keeps an index of the environment, and must learn that the old entries are gone.
      else throw new BegunAnew(wiped);
    }
    if (this.#fault !== undefined || !this.#child) throw new Error(`the disk tier is not usable: ${this.#fault}`);
    return this.#child;
  }

  /**
   * Runs `work` on the environment, and once more when the process was ended from outside meanwhile: a transaction was committed
   * completely or not at all. Damage sets the environment aside: a crash of the process, or a failure other than for want of room.
   * @throws BegunAnew then.
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

  /**
   * Opens the environment; one without records is created with the first. `entries` are in order of use, oldest first. `wiped` says why old
   * content was set aside or erased, `fault` why there is no environment; with `hasKeyFault` an operator has to give another disk key.
   */
  async open(where: DiskPlace): Promise<{
    entries: DiskEntry[];
    wiped: string | undefined;
    fault: string | undefined;
    hasKeyFault: boolean;
    generation: number;
  }> {
    this.#where = where;
    // Only at the start: an environment that could not be created is tried here, as one that exists is.
    if (this.#generation === 0 && !hasBegun(where.path, where.diskKey)) {
      [this.#fault, this.#hasKeyFault] = [undefined, false];
      return { entries: [], wiped: undefined, fault: undefined, hasKeyFault: false, generation: ++this.#generation };
    }
    const { entries, wiped } = await this.#openEnvironment();
    return { entries, wiped, fault: this.#fault, hasKeyFault: this.#hasKeyFault, generation: this.#generation };
  }

  state(): { fault: string | undefined; generation: number } {
    return { fault: this.#fault, generation: this.#generation };
  }

  /**
   * Writes records and commits their entries in one transaction. Returns the entries that are durable now, and the generation of their
   * environment. A slot that holds another block by now is left out, and with a disk key a record whose tenant has no room in the list of
   * keys. Calls must not overlap. @throws Error when the disk is full or broken; no record of the batch is stored then.
   */
  put(
    blocks: readonly { slot: number; bytes: number; key: BlockKey; digest: Digest }[],
  ): Promise<{ stored: DiskEntry[]; generation: number }> {
    return this.#onDisk(async (to) => {
      const records = this.#records;
      const held: DiskEntry[] = [];
      const stored: DiskEntry[] = [];
      try {
        const fresh: FreshRecord[] = [];
        for (const { slot, bytes, key, digest } of blocks) {
          const record = this.#recordIn(slot, bytes);
          const header = readHeader(record);
          const known = this.#entries.get(key);
          // Committed by a try whose answer was lost.
          if (known?.digest === digest) held.push(known);
          if (!('fault' in header) && header.digest === digest && !known) fresh.push({ record, header, key });
        }
        this.#makeKeys(fresh.map(({ header }) => header.tenant));
        for (const one of fresh) {
          const entry = writeRecord(records, this.#keys, one);
          if (entry) stored.push(entry);
        }
        await to.call(
          'commit',
          stored.map((entry) => encodeEntry(entry, this.#keys)),
        );
      } catch (error) {
        // A new file of records has no ranges for these records.
        if (records === this.#file) records.free(stored.map(({ at }) => at));
        throw error;
      }
      for (const entry of stored) this.#entries.set(entry.key, entry);
      return { stored: [...held, ...stored], generation: this.#generation };
    });
  }

  /** Makes the keys of these tenants, and has them on the disk, before a record is written under them. @throws Error when they cannot be. */
  #makeKeys(tenants: readonly TenantId[]): void {
    const used = (): Set<TenantId> => new Set([...this.#entries.values()].map(({ tenant }) => tenant));
    this.#keys?.make(new Set(tenants), used);
  }

  #idsOf(keys: readonly BlockKey[]): Buffer[] {
    return keys.flatMap((key) => this.#entries.get(key) ?? []).map(({ at }) => entryId(at));
  }

  /** Makes these entries the most recently used, in the order of `keys`. */
  touch(keys: readonly BlockKey[]): Promise<void> {
    return this.#onDisk((to) => to.call('touch', this.#idsOf(keys)));
  }

  remove(keys: readonly BlockKey[]): Promise<void> {
    return this.#onDisk(async (to) => {
      await to.call('remove', this.#idsOf(keys));
      const gone = keys.flatMap((key) => this.#entries.get(key) ?? []);
      for (const key of keys) this.#entries.delete(key);
      this.#records.free(gone.map(({ at }) => at));
    });
  }

  /**
   * Deletes the records of a tenant, and its key first, with which no copy of them can be read any more. Records in clear are overwritten; a
   * damaged environment in clear is deleted. Returns whether they were sealed. @throws Error when a file cannot be written.
   */
  forget(tenant: TenantId): Promise<{ isSealed: boolean }> {
    return this.#onDisk(async (to) => {
      this.#keys?.forget(tenant);
      const gone = [...this.#entries.values()].filter((entry) => entry.tenant === tenant);
      await to.call(
        'remove',
        gone.map(({ at }) => entryId(at)),
      );
      for (const { key } of gone) this.#entries.delete(key);
      if (!this.#keys) {
        this.#records.erase(gone);
        rmSync(`${this.#where.path}.damaged`, { recursive: true, force: true });
      }
      this.#records.free(gone.map(({ at }) => at));
      return { isSealed: this.#keys !== undefined };
    });
  }

  async close(): Promise<void> {
    // Records are flushed before the environment is marked clean, so that every entry has its record on disk.
    this.#file?.sync();
    if (this.#fault === undefined && this.#child?.isAlive) await this.#child.call('close', undefined);
    await this.#child?.end();
    this.#file?.close();
    this.#file = undefined;
  }
}

function isDamaged(error: unknown): boolean {
  if (error instanceof KeyFault) return false;
  return error instanceof DiskProcessDeath ? error.isDamage : !mayPass(error);
}

interface Opened extends Pick<OpenedKeys, 'erased'> {
  readonly damage: string | undefined;
  readonly entries: DiskEntry[];
}

/** Creates the object that the disk thread serves. `pid` is a shared cell that receives the pid of the disk process. */
export function start({ pid }: { readonly pid: Int32Array }): DiskThread {
  return new DiskThread(pid);
}

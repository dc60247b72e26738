/**
 * The store's disk thread: records between the slab and the disk process, so that the control thread never waits for a disk and
 * never copies for one.
 *
 * An environment that ends its process, or in which a write or a delete fails other than for want of room, is set aside (renamed,
 * one is kept) and begun anew: `generation` counts that, and who keeps an index of it compares. One that cannot be opened at all
 * is a fault that passes or does not; the store serves from DRAM and asks again.
 *
 * LMDB gets ordinary Buffers: one over a SharedArrayBuffer is stored wrong without an error (lmdb 3.5.6).
 */
import { existsSync, renameSync, rmSync } from 'node:fs';
import { systemClock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import type { BlockKey, Digest } from '../../shared/kv/block_key.ts';
import { readHeader, verifyRecord } from '../../shared/kv/record.ts';
import { slotBytes, type SlabMemory } from '../../shared/kv/slab.ts';
import { DiskChild, DiskProcessDeath } from './disk_child.ts';
import type { DiskEntry } from './disk_process.ts';
import { isForRoom, mayPass } from './disk_errors.ts';

/** Processes in a row that ended from outside while they opened. */
const MAX_OPENINGS = 3;
/** Openings in a row that did not come back: pages that point in a circle, not a machine that slept. */
const MAX_HANGS = 2;

export class DiskThread {
  /** [pid of the disk process] i32: for whoever ends this thread while that one hangs. */
  readonly #pidCell: Int32Array;
  #slab: SlabMemory | undefined;
  #child: DiskChild | undefined;
  #path = '';
  /** Counts the environments of this process: another one has nothing of what the one before had. */
  #generation = 0;
  /** Why there is no environment now. */
  #fault: string | undefined = 'it is not open yet';

  constructor(pidCell: Int32Array) {
    this.#pidCell = pidCell;
  }

  /** A copy of a slot in ordinary memory. */
  #copyOf(slot: number, bytes: number): Buffer {
    if (!this.#slab) throw new Error('the disk thread has no slab yet');
    return Buffer.from(slotBytes(this.#slab, slot).subarray(0, bytes));
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
      // Who keeps an index of it must hear of it.
      else throw new BegunAnew(wiped);
    }
    if (this.#fault !== undefined || !this.#child) throw new Error(`the disk tier is not usable: ${this.#fault}`);
    return this.#child;
  }

  /**
   * Runs it on the environment, and once more when the process was ended from outside under it: nothing of it was committed, or all.
   * What ends the process by itself, or a write that fails other than for want of room, sets the environment aside.
   */
  async #onDisk<T>(isWrite: boolean, work: (child: DiskChild) => Promise<T>): Promise<T> {
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
          : isWrite && this.#fault === undefined && this.#child?.isAlive === true && !isForRoom(error);
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
  async open(
    at: string,
  ): Promise<{ entries: DiskEntry[]; wiped: string | undefined; fault: string | undefined; generation: number }> {
    this.#path = at;
    const { entries, wiped } = await this.#openEnvironment();
    return { entries, wiped, fault: this.#fault, generation: this.#generation };
  }

  state(): { fault: string | undefined; generation: number } {
    return { fault: this.#fault, generation: this.#generation };
  }

  /**
   * Commits records in one transaction; returns the keys that are durable now. A slot that changed hands meanwhile fails its
   * digest and is left out. @throws Error when the disk is full or broken; nothing of the batch is stored then.
   */
  put(blocks: readonly { slot: number; bytes: number; key: BlockKey; digest: Digest }[]): Promise<BlockKey[]> {
    return this.#onDisk(true, async (to) => {
      const stored: BlockKey[] = [];
      for (const { slot, bytes, key, digest } of blocks) {
        const record = this.#copyOf(slot, bytes);
        const header = readHeader(record);
        if ('fault' in header || header.digest !== digest || verifyRecord(record) !== undefined) continue;
        // One at a time: a batch of large records is not held three times over.
        await to.call('stage', { key, digest, format: header.format, record });
        stored.push(key);
      }
      await to.call('commit', undefined);
      return stored;
    });
  }

  /** Brings a record up into a slot. Undefined when it is there, undamaged; else what is wrong with what was stored. */
  async get({ key, digest, slot }: { key: BlockKey; digest: Digest; slot: number }): Promise<string | undefined> {
    const record = await this.#onDisk(false, (from) => from.call('get', key));
    if (!record) return 'it is not in the environment';
    const header = readHeader(record);
    if ('fault' in header) return header.fault;
    const wrong = verifyRecord(record, { format: header.format, digest });
    if (wrong !== undefined) return wrong;
    if (!this.#slab || record.length > this.#slab.slotBytes) return `its ${record.length} bytes do not fit a slot`;
    slotBytes(this.#slab, slot).set(record);
    return undefined;
  }

  remove(keys: readonly BlockKey[]): Promise<void> {
    return this.#onDisk(true, (from) => from.call('remove', keys));
  }

  async close(): Promise<void> {
    if (this.#fault === undefined && this.#child?.isAlive) await this.#child.call('close', undefined);
    await this.#child?.end();
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

export function start({ pid }: { readonly pid: Int32Array }): DiskThread {
  return new DiskThread(pid);
}

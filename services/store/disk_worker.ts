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
import { workerData } from 'node:worker_threads';
import { existsSync, renameSync, rmSync } from 'node:fs';
import { systemClock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { serveCalls } from '../../shared/base/worker_calls.ts';
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

/** [pid of the disk process] i32: for whoever ends this thread while that one hangs. */
const pidCell = (workerData as { pid?: Int32Array } | null)?.pid;

let slab: SlabMemory | undefined;
let child: DiskChild | undefined;
let path = '';
/** Counts the environments of this process: another one has nothing of what the one before had. */
let generation = 0;
/** Why there is no environment now. */
let fault: string | undefined = 'it is not open yet';

/** A copy of a slot in ordinary memory. */
function copyOf(slot: number, bytes: number): Buffer {
  if (!slab) throw new Error('the disk thread has no slab yet');
  return Buffer.from(slotBytes(slab, slot).subarray(0, bytes));
}

/** Opens what is there. @throws DiskProcessDeath; Error when it cannot be opened. @returns what is wrong with it, if anything. */
async function openOnce(): Promise<{ readonly damage: string | undefined; readonly entries: DiskEntry[] }> {
  await ended();
  child = new DiskChild(systemClock);
  if (pidCell) Atomics.store(pidCell, 0, child.pid);
  const { numEntries, damage } = await child.call('open', path);
  const entries: DiskEntry[] = [];
  while (damage === undefined && entries.length < numEntries) {
    entries.push(...(await child.call('entries', entries.length)));
  }
  return { damage, entries };
}

/** The last disk process is gone. @throws Error when it is not: no other may open what it has open. */
async function ended(): Promise<void> {
  if (child && !(await child.end())) throw new Error('EBUSY: the last disk process has not ended yet');
}

function isDamaged(error: unknown): boolean {
  return error instanceof DiskProcessDeath ? error.isDamage : !mayPass(error);
}

/** Until it is open, set aside and begun anew, or given up for now. */
async function openEnvironment(): Promise<{ readonly entries: DiskEntry[]; readonly wiped: string | undefined }> {
  let wiped: string | undefined;
  let numHangs = 0;
  for (let numOpenings = 0; ; numOpenings++) {
    let reason: string;
    try {
      const { damage, entries } = await openOnce();
      if (damage === undefined) {
        fault = undefined;
        generation++;
        return { entries, wiped };
      }
      reason = damage;
    } catch (error) {
      reason = messageOf(error);
      const isDeath = error instanceof DiskProcessDeath;
      const isHanging = isDeath && error.isHang && ++numHangs >= MAX_HANGS;
      if (isDeath && !error.isDamage && !isHanging && numOpenings < MAX_OPENINGS) continue;
      if (!isHanging && !isDamaged(error)) {
        fault = reason;
        return { entries: [], wiped };
      }
    }
    // Begun anew and still no good: the disk is the reason, not what lay on it.
    if (wiped !== undefined) {
      fault = reason;
      return { entries: [], wiped };
    }
    wiped = reason;
    try {
      await setAside();
    } catch (error) {
      fault = `${wiped}; it cannot be set aside: ${messageOf(error)}`;
      return { entries: [], wiped: undefined };
    }
  }
}

/** One damaged environment is kept, for whoever wants to know why. */
async function setAside(): Promise<void> {
  await ended();
  if (!existsSync(path)) return;
  rmSync(`${path}.damaged`, { recursive: true, force: true });
  renameSync(path, `${path}.damaged`);
}

/** The environment is another one now, and has nothing of what the one before had. */
class BegunAnew extends Error {
  constructor(reason: string, options?: ErrorOptions) {
    super(`the disk tier was damaged and is begun anew: ${reason}`, options);
    this.name = 'BegunAnew';
  }
}

/** The disk process, opened again where it ended from outside. @throws Error when there is none. */
async function disk(): Promise<DiskChild> {
  if (fault === undefined && child?.isAlive === false) {
    // Killed from outside while nobody asked: what it had committed is there (S1), and the index still says so.
    const known = generation;
    const { wiped } = await openEnvironment();
    if (wiped === undefined) generation = known;
    // Who keeps an index of it must hear of it.
    else throw new BegunAnew(wiped);
  }
  if (fault !== undefined || !child) throw new Error(`the disk tier is not usable: ${fault}`);
  return child;
}

/**
 * Runs it on the environment, and once more when the process was ended from outside under it: nothing of it was committed, or all.
 * What ends the process by itself, or a write that fails other than for want of room, sets the environment aside.
 */
async function onDisk<T>(isWrite: boolean, work: (child: DiskChild) => Promise<T>): Promise<T> {
  for (let isRepeated = false; ; isRepeated = true) {
    try {
      return await work(await disk());
    } catch (error) {
      if (error instanceof BegunAnew) throw error;
      const isDeath = error instanceof DiskProcessDeath;
      if (isDeath && !error.isDamage && !isRepeated) continue;
      // A machine that was asleep looks like a hang, once.
      const isDamage = isDeath
        ? error.isDamage || error.isHang
        : isWrite && fault === undefined && child?.isAlive === true && !isForRoom(error);
      if (!isDamage) throw error;
      const reason = messageOf(error);
      try {
        await setAside();
        await openEnvironment();
      } catch (second) {
        fault = messageOf(second);
      }
      throw new BegunAnew(reason, { cause: error });
    }
  }
}

const methods = {
  attach(memory: SlabMemory): void {
    slab = memory;
  },

  /** Opens or makes the environment. `wiped` says why old content was set aside, `fault` why there is none. Oldest first. */
  async open(
    at: string,
  ): Promise<{ entries: DiskEntry[]; wiped: string | undefined; fault: string | undefined; generation: number }> {
    path = at;
    const { entries, wiped } = await openEnvironment();
    return { entries, wiped, fault, generation };
  },

  state(): { fault: string | undefined; generation: number } {
    return { fault, generation };
  },

  /**
   * Commits records in one transaction; returns the keys that are durable now. A slot that changed hands meanwhile fails its
   * digest and is left out. @throws Error when the disk is full or broken; nothing of the batch is stored then.
   */
  put(blocks: readonly { slot: number; bytes: number; key: BlockKey; digest: Digest }[]): Promise<BlockKey[]> {
    return onDisk(true, async (to) => {
      const stored: BlockKey[] = [];
      for (const { slot, bytes, key, digest } of blocks) {
        const record = copyOf(slot, bytes);
        const header = readHeader(record);
        if ('fault' in header || header.digest !== digest || verifyRecord(record) !== undefined) continue;
        // One at a time: a batch of large records is not held three times over.
        await to.call('stage', { key, digest, namespace: header.namespace, record });
        stored.push(key);
      }
      await to.call('commit', undefined);
      return stored;
    });
  },

  /** Brings a record up into a slot. Undefined when it is there, undamaged; else what is wrong with what was stored. */
  async get({ key, digest, slot }: { key: BlockKey; digest: Digest; slot: number }): Promise<string | undefined> {
    const record = await onDisk(false, (from) => from.call('get', key));
    if (!record) return 'it is not in the environment';
    const header = readHeader(record);
    if ('fault' in header) return header.fault;
    const wrong = verifyRecord(record, { namespace: header.namespace, digest });
    if (wrong !== undefined) return wrong;
    if (!slab || record.length > slab.slotBytes) return `its ${record.length} bytes do not fit a slot`;
    slotBytes(slab, slot).set(record);
    return undefined;
  },

  remove(keys: readonly BlockKey[]): Promise<void> {
    return onDisk(true, (from) => from.call('remove', keys));
  },

  async close(): Promise<void> {
    if (fault === undefined && child?.isAlive) await child.call('close', undefined);
    await child?.end();
  },
};

export type DiskMethods = typeof methods;

serveCalls(methods);

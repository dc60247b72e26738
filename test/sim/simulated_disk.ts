/**
 * A store's disk and the thread before it. What was committed survives the process; what was not is lost, or was never there. The
 * disk may be full, slow, gone for a while, or return rot.
 */
import type { Clock } from '../../shared/base/clock.ts';
import type { BlockKey, Digest } from '../../shared/kv/block_key.ts';
import { contentHashOf, isStateRecord, readHeader, tenantOf, verifyRecord } from '../../shared/kv/record.ts';
import { slotBytes, type SlabMemory } from '../../shared/kv/slab.ts';
import type { DiskEntry } from '../../services/store/disk_process.ts';
import type { DiskRead } from '../../services/store/disk_reader.ts';
import type { DiskThread } from '../../services/store/disk_thread.ts';

interface Committed {
  readonly digest: Digest;
  readonly record: Buffer;
  /** Entry of the record, as it was committed, whatever has become of the record since. */
  readonly said: Omit<DiskEntry, 'key' | 'digest'>;
}

/** Disk of one store, through all its incarnations. */
export class SimDisk {
  readonly committed = new Map<BlockKey, Committed>();
  /** Thrown by every write while it is there. */
  writeError: string | undefined;
  /** Fault that every opening reports while this is set. */
  openError: string | undefined;
  slowness = 1;
  /** Committed since the machine last wrote everything through, oldest first. */
  readonly #volatile: BlockKey[] = [];

  commit(key: BlockKey, committed: Committed): void {
    this.committed.delete(key);
    this.committed.set(key, committed);
    this.#volatile.push(key);
    if (this.#volatile.length > MAX_VOLATILE) this.#volatile.shift();
  }

  /** The power of its machine fails: what was committed last is lost, torn or there. A kill of the process does nothing of this. */
  powerCut(pick: (bound: number) => number): void {
    for (const key of this.#volatile.splice(0)) {
      const fate = pick(3);
      const one = this.committed.get(key);
      if (fate === 0) this.committed.delete(key);
      else if (fate === 1) one?.record.fill(0, pick(one.record.length));
    }
  }

  /** A bit of a record is another now. */
  rot(pick: (bound: number) => number): void {
    const all = [...this.committed.values()];
    const one = all[pick(all.length)];
    if (!one) return;
    const at = pick(one.record.length);
    one.record[at] = (one.record[at] ?? 0) ^ (1 << pick(8));
  }
}

/** A store's reader of it; records are known by their digest. */
export class SimDiskReader {
  readonly #disk: SimDisk;
  readonly #clock: Clock;
  #slab: SlabMemory | undefined;

  constructor(disk: SimDisk, clock: Clock) {
    this.#disk = disk;
    this.#clock = clock;
  }

  attach(memory: SlabMemory): void {
    this.#slab = memory;
  }

  async read({ reads }: { readonly reads: readonly DiskRead[] }): Promise<(string | undefined)[]> {
    const faults: (string | undefined)[] = [];
    for (const { bytes, format, digest, slot } of reads) {
      await this.#clock.sleep(READ_MS * this.#disk.slowness);
      const found = [...this.#disk.committed.values()].find((one) => one.digest === digest);
      if (!found || !this.#slab) {
        faults.push('the file of records ends before the record does');
        continue;
      }
      const record = slotBytes(this.#slab, slot, bytes);
      record.set(found.record.subarray(0, bytes));
      faults.push(verifyRecord(record, { format, digest }));
    }
    return faults;
  }
}

type SimOpened = Awaited<ReturnType<DiskThread['open']>> & { readonly wiped: undefined };

/** Records that a power cut may take back. */
const MAX_VOLATILE = 8;
const WRITE_MS = 0.3;
const READ_MS = 0.1;

function ofRecord(record: Buffer): Omit<DiskEntry, 'key' | 'digest'> {
  return {
    format: record.toString('hex', 16, 32) as Digest,
    bytes: record.length,
    isState: isStateRecord(record),
    numerics: record.readBigUInt64LE(64),
    contentHash: contentHashOf(record),
    parent: record.readBigUInt64LE(40) as BlockKey,
    tenant: tenantOf(record),
    keyNumber: 0n,
    at: 0,
  };
}

/** Disk thread of a store, as the store's control thread sees it. */
export class SimDiskThread {
  readonly #disk: SimDisk;
  readonly #clock: Clock;
  #slab: SlabMemory | undefined;
  #fault: string | undefined = 'it is not open yet';
  #generation = 0;

  readonly #onCommit: (digest: Digest, record: Buffer) => void;

  /** `onCommit` is told of every record that is on disk from now on. */
  constructor(disk: SimDisk, clock: Clock, onCommit: (digest: Digest, record: Buffer) => void) {
    this.#onCommit = onCommit;
    this.#disk = disk;
    this.#clock = clock;
  }

  attach(memory: SlabMemory): void {
    this.#slab = memory;
  }

  async open(): Promise<SimOpened> {
    await this.#clock.sleep(WRITE_MS * this.#disk.slowness);
    this.#fault = this.#disk.openError;
    if (this.#fault !== undefined) {
      return { entries: [], wiped: undefined, fault: this.#fault, hasKeyFault: false, generation: this.#generation };
    }
    this.#generation++;
    const entries = [...this.#disk.committed].map(([key, { digest, said }]) => ({ key, digest, ...said }));
    return { entries, wiped: undefined, fault: this.#fault, hasKeyFault: false, generation: this.#generation };
  }

  state(): { fault: string | undefined; generation: number } {
    return { fault: this.#fault, generation: this.#generation };
  }

  async put(
    blocks: readonly { slot: number; bytes: number; key: BlockKey; digest: Digest }[],
  ): Promise<{ stored: DiskEntry[]; generation: number }> {
    const staged: [BlockKey, Committed][] = [];
    for (const { slot, bytes, key, digest } of blocks) {
      await this.#clock.sleep(READ_MS * this.#disk.slowness);
      const record = Buffer.from(slotBytes(this.#memory, slot, bytes));
      const header = readHeader(record);
      if ('fault' in header || header.digest !== digest || verifyRecord(record) !== undefined) continue;
      staged.push([key, { digest, record, said: ofRecord(record) }]);
    }
    await this.#clock.sleep(WRITE_MS * this.#disk.slowness);
    if (this.#disk.writeError) throw new Error(this.#disk.writeError);
    for (const [key, committed] of staged) {
      this.#disk.commit(key, committed);
      this.#onCommit(committed.digest, committed.record);
    }
    const stored = staged.map(([key, { digest, said }]) => ({ key, digest, ...said }));
    return { stored, generation: this.#generation };
  }

  /** The order in which they are found at the next opening. */
  async touch(keys: readonly BlockKey[]): Promise<void> {
    await this.#clock.sleep(WRITE_MS * this.#disk.slowness);
    for (const key of keys) {
      const found = this.#disk.committed.get(key);
      if (found && this.#disk.committed.delete(key)) this.#disk.committed.set(key, found);
    }
  }

  async remove(keys: readonly BlockKey[]): Promise<void> {
    await this.#clock.sleep(WRITE_MS * this.#disk.slowness);
    for (const key of keys) this.#disk.committed.delete(key);
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  get #memory(): SlabMemory {
    if (!this.#slab) throw new Error('the disk thread has no slab yet');
    return this.#slab;
  }
}

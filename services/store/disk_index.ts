/** Records of the disk tier as the control thread knows them: by key, in order of use, with the bytes that they take of the budget. */
import type { BlockHash, BlockKey, TenantId } from '../../shared/kv/block_key.ts';
import { LeastRecentlyUsed, type EvictionPolicy } from '../../shared/kv/eviction.ts';
import { FormatCounts } from '../../shared/kv/format_counts.ts';
import { StateShare } from '../../shared/kv/state_share.ts';
import { aligned } from '../../shared/kv/extent_allocator.ts';
import type { DiskEntry } from './disk_process.ts';
import { PAGE_BYTES } from './records_file.ts';
import { SEAL_BYTES } from './sealed_box.ts';

/** Budget of the tier, and callbacks for entries that enter or leave the index. */
export interface DiskIndexOptions {
  readonly budgetBytes: number;
  readonly onStored: (entry: Pick<DiskEntry, 'key' | 'parent'>) => void;
  readonly onRemoved: (key: BlockKey) => void;
}

/** Index of the records on disk: entries by key, in order of use, with the bytes that they take in the file. */
export class DiskIndex {
  readonly formats = new FormatCounts();
  readonly #options: DiskIndexOptions;
  readonly #entries = new Map<BlockKey, DiskEntry>();
  readonly #eviction: EvictionPolicy<BlockKey> = new LeastRecentlyUsed();
  readonly #states: StateShare;
  #usedBytes = 0;

  constructor(options: DiskIndexOptions) {
    this.#options = options;
    this.#states = new StateShare(options.budgetBytes);
  }

  get size(): number {
    return this.#entries.size;
  }

  /** Bytes of the file that all records take, in whole pages. */
  get usedBytes(): number {
    return this.#usedBytes;
  }

  has(key: BlockKey): boolean {
    return this.#entries.has(key);
  }

  get(key: BlockKey): DiskEntry | undefined {
    return this.#entries.get(key);
  }

  /** Returns the entry of a block; undefined when its key is absent, or names a block with another digest. */
  entryOf({ key, digest }: BlockHash): DiskEntry | undefined {
    const entry = this.#entries.get(key);
    return entry?.digest === digest ? entry : undefined;
  }

  touch(key: BlockKey): void {
    this.#eviction.touch(key);
    this.#states.touch(key);
  }

  /** Adds an entry. A key has one entry: a second one changes nothing. */
  add(entry: DiskEntry): void {
    if (this.#entries.has(entry.key)) return;
    this.#entries.set(entry.key, entry);
    this.#eviction.insert(entry.key);
    this.formats.add(entry.format, entry.bytes);
    this.#usedBytes += pagedBytes(entry.bytes);
    if (entry.isState) this.#states.add(entry.key, pagedBytes(entry.bytes));
    this.#options.onStored(entry);
  }

  forget(key: BlockKey): void {
    const entry = this.#entries.get(key);
    if (!entry) return;
    this.#entries.delete(key);
    this.#eviction.remove(key);
    this.formats.remove(entry.format, entry.bytes);
    this.#usedBytes -= pagedBytes(entry.bytes);
    this.#states.remove(key);
    this.#options.onRemoved(key);
  }

  /** Returns the keys of a tenant's records. */
  keysOf(tenant: TenantId): BlockKey[] {
    return [...this.#entries.values()].flatMap((entry) => (entry.tenant === tenant ? [entry.key] : []));
  }

  clear(): void {
    for (const key of [...this.#entries.keys()]) this.forget(key);
  }

  /** Returns the states that have to go because states take more than their part of the budget; those in `kept` stay. */
  excessStates(kept: ReadonlySet<BlockKey>): BlockKey[] {
    return this.#states.excess((key) => !kept.has(key));
  }

  /** Keys that have to go so that no more than `limitBytes` are used, the longest unused first. */
  victims(limitBytes: number): BlockKey[] {
    const victims: BlockKey[] = [];
    let used = this.#usedBytes;
    for (const key of this.#eviction.inOrder()) {
      if (used <= limitBytes) break;
      used -= pagedBytes(this.#entries.get(key)?.bytes ?? 0);
      victims.push(key);
    }
    return victims;
  }
}

/** Bytes of the file that a record of `bytes` takes, with the room for its seal. */
export function pagedBytes(bytes: number): number {
  return aligned(SEAL_BYTES + bytes, PAGE_BYTES);
}

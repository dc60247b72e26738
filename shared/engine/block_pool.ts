/**
 * Device blocks: who uses which, and which full ones can be hit again.
 *
 *   free ──allocate──► used ──seal──► used, keyed ──release──► cached ──reuse──► used
 *                        └──release──► free                       └──evict──► used by another
 *
 * E1: free + cached + used = all, after every call. K3: a sealed block is never written again; its owner has moved on.
 * K2 for local hits: a key whose digest differs is a miss.
 */
import assert from 'node:assert/strict';
import type { BlockKey, BlockHash, TenantId } from '../kv/block_key.ts';
import { LeastRecentlyUsed, type EvictionPolicy } from '../kv/eviction.ts';
import type { EvictionClass } from '../kv/kv_spec.ts';
import { newTierCounters } from '../kv/tier_counters.ts';
import type { BlockResidency } from './block_residency.ts';

/** The device's KV blocks: allocation, reference counts, prefix hits by block hash, and eviction. */
export class BlockPool {
  readonly numBlocks: number;
  readonly counters = newTierCounters();
  readonly #free: number[];
  readonly #numRefs: Uint32Array;
  readonly #hashOf: (BlockHash | undefined)[];
  readonly #byKey = new Map<BlockKey, number>();
  /** Keyed blocks that nobody uses. */
  readonly #cached: EvictionPolicy<number>;
  readonly #hooks: { readonly onRemoved: (key: BlockKey) => void; readonly residency: BlockResidency | undefined };

  /**
   * `eviction` says which of the keyed blocks that nobody uses goes first; the one that was used longest ago by default. `residency`
   * follows how long blocks stay; undefined: nobody asks.
   */
  constructor(
    numBlocks: number,
    onRemoved: (key: BlockKey) => void,
    eviction: EvictionPolicy<number> = new LeastRecentlyUsed(),
    residency?: BlockResidency,
  ) {
    this.numBlocks = numBlocks;
    this.#cached = eviction;
    this.#free = Array.from({ length: numBlocks }, (_, i) => numBlocks - 1 - i);
    this.#numRefs = new Uint32Array(numBlocks);
    this.#hashOf = new Array<BlockHash | undefined>(numBlocks).fill(undefined);
    this.#hooks = { onRemoved, residency };
  }

  /** Blocks that an allocation may take: free ones and cached ones. */
  get numAvailable(): number {
    return this.#free.length + this.#cached.size;
  }

  /** Full blocks under a key. */
  get numKeyed(): number {
    return this.#byKey.size;
  }

  /** Full blocks under a key that nobody uses. */
  get numCached(): number {
    return this.#cached.size;
  }

  keys(): Iterable<BlockKey> {
    return this.#byKey.keys();
  }

  isUsed(block: number): boolean {
    return this.#numRefs[block]! > 0;
  }

  /** The block of this very hash, or undefined. */
  find(hash: BlockHash): number | undefined {
    const block = this.#byKey.get(hash.key);
    return block !== undefined && this.#hashOf[block]?.digest === hash.digest ? block : undefined;
  }

  /** The hash under which this very block was sealed, which names its kind and tenant too, or undefined. */
  nameOf(hash: BlockHash): BlockHash | undefined {
    const block = this.find(hash);
    return block === undefined ? undefined : this.#hashOf[block];
  }

  /** Number of leading blocks of `hashes` that are here. */
  numHeld(hashes: readonly BlockHash[]): number {
    const missing = hashes.findIndex((hash) => this.find(hash) === undefined);
    return missing < 0 ? hashes.length : missing;
  }

  /**
   * All or nothing: the longest run of `hashes` that is here, then fresh blocks up to `numBlocks` in all. Every block of the
   * answer is referenced once. Undefined, and nothing changed, when there is not enough room.
   */
  acquire(
    hashes: readonly BlockHash[],
    numBlocks: number,
  ): { readonly blocks: number[]; readonly numHits: number } | undefined {
    const blocks: number[] = [];
    const most = Math.min(hashes.length, numBlocks);
    let numIdleHits = 0;
    while (blocks.length < most) {
      const block = this.find(hashes[blocks.length]!);
      if (block === undefined) break;
      if (this.#numRefs[block] === 0) numIdleHits++;
      blocks.push(block);
    }
    const numHits = blocks.length;
    if (numBlocks - numHits > this.numAvailable - numIdleHits) return undefined;
    this.counters.hits += numHits;
    this.counters.misses += most - numHits;
    const { residency } = this.#hooks;
    for (const block of blocks) {
      this.reference(block);
      residency?.accessed(block);
    }
    while (blocks.length < numBlocks) blocks.push(this.#allocate());
    return { blocks, numHits };
  }

  /** One fresh block, referenced, or undefined. */
  grow(): number | undefined {
    return this.numAvailable > 0 ? this.#allocate() : undefined;
  }

  reference(block: number): void {
    if (this.#numRefs[block] === 0) assert(this.#cached.remove(block), `block ${block} has no owner and is not cached`);
    this.#numRefs[block]!++;
  }

  /**
   * Drops one reference of each block. Later blocks of a run are evicted first, so that its head stays longest. `evictionClass` 0
   * marks blocks outside every attention window of the sequence that releases them; they are evicted before all others.
   */
  release(blocks: readonly number[], evictionClass: EvictionClass = 1): void {
    for (let i = blocks.length - 1; i >= 0; i--) {
      const block = blocks[i]!;
      assert(this.#numRefs[block]! > 0, `block ${block} is released more often than it was referenced`);
      if (--this.#numRefs[block]! > 0) continue;
      if (this.#hashOf[block]) this.#cached.insert(block, evictionClass);
      else this.#free.push(block);
    }
  }

  /**
   * Puts a run's cached blocks into the eviction order that {@link release} gives a whole run, so that its head stays longest. Needed
   * after blocks were released one by one as the run grew.
   */
  renew(hashes: readonly BlockHash[]): void {
    for (let i = hashes.length - 1; i >= 0; i--) {
      const block = this.find(hashes[i]!);
      if (block !== undefined) this.#cached.touch(block);
    }
  }

  /** Names a block that became full. False when another block holds this key already; this one then stays private. */
  seal(block: number, hash: BlockHash): boolean {
    assert(this.#numRefs[block]! > 0, `block ${block} is sealed without an owner`);
    if (this.#hashOf[block]) return false;
    this.counters.offered++;
    if (this.#byKey.has(hash.key)) return false;
    this.counters.stored++;
    this.#byKey.set(hash.key, block);
    this.#hashOf[block] = hash;
    return true;
  }

  /** Frees the blocks of a tenant that nobody uses. Returns their number, and that of those that are used and stay. */
  forget(tenant: TenantId): { readonly numFreed: number; readonly numUsed: number } {
    const own = [...this.#byKey.values()].filter((block) => this.#hashOf[block]?.tenant === tenant);
    const idle = own.filter((block) => !this.isUsed(block));
    for (const block of idle) {
      this.#cached.remove(block);
      this.#unname(block);
      this.#free.push(block);
    }
    return { numFreed: idle.length, numUsed: own.length - idle.length };
  }

  /** Takes the name of a block whose content is given up. */
  #unname(block: number): void {
    const hash = this.#hashOf[block]!;
    this.#byKey.delete(hash.key);
    this.#hashOf[block] = undefined;
    this.#hooks.residency?.evicted(block);
    this.#hooks.onRemoved(hash.key);
  }

  #allocate(): number {
    let block = this.#free.pop();
    if (block === undefined) {
      block = this.#cached.victim();
      assert(block !== undefined, 'a block is taken only when one is available');
      this.#cached.remove(block);
      this.counters.evictions++;
      this.#unname(block);
    }
    this.#hooks.residency?.allocated(block);
    this.#numRefs[block] = 1;
    return block;
  }

  /** E1, and that every index agrees with every other. The simulation asks after every event: messages are made when they are needed. */
  checkIntegrity(): void {
    let numUsed = 0;
    for (let block = 0; block < this.numBlocks; block++) {
      const hash = this.#hashOf[block];
      if (hash && this.#byKey.get(hash.key) !== block) assert.fail(`block ${block} is not under its key`);
      const isUsed = this.#numRefs[block]! > 0;
      if (isUsed) numUsed++;
      if (!this.#cached.has(block)) continue;
      if (isUsed) assert.fail(`block ${block} is used and cached`);
      if (!hash) assert.fail(`block ${block} is cached without a key`);
    }
    const sum = this.#free.length + this.#cached.size + numUsed;
    if (sum !== this.numBlocks)
      assert.fail(`E1: ${this.#free.length} free + ${this.#cached.size} cached + ${numUsed} used`);
    assert.equal(new Set(this.#free).size, this.#free.length, 'a block is free twice');
  }
}

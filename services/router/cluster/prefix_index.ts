/**
 * Who holds which blocks, in which tiers. Soft state, fed by block events.
 *
 * A question is a chain of hashes; the answer is, per holder, how long a run from the first block it has. Bounded (P1) by
 * MAX_KEYS: beyond it new keys are not indexed, and what is not indexed is computed or found by its holder itself.
 */
import type { BlockKey, BlockHash } from '../../../shared/kv/block_key.ts';
import { tiers, type BlockRun } from '../../../shared/protocol/block_events.ts';

const MAX_KEYS = 8_000_000;
/** An entry is holder number · 8 + one bit per tier. */
const TIER_BITS = 8;
/** Looked at by one call: some tens of microseconds. */
const SWEEP_ENTRIES = 512;

export class PrefixIndex {
  readonly #maxKeys: number;
  readonly #entries = new Map<BlockKey, number[]>();
  readonly #numbers = new Map<string, number>();
  readonly #holders = new Map<number, string>();
  #nextNumber = 1;
  /** Under way while entries of forgotten holders may be left. */
  #sweep: Iterator<[BlockKey, number[]], undefined> | undefined;

  constructor(maxKeys = MAX_KEYS) {
    this.#maxKeys = maxKeys;
  }

  get size(): number {
    return this.#entries.size;
  }

  apply(holder: string, { operation, tier, keys }: BlockRun): void {
    const number = this.#numberOf(holder);
    const bit = 1 << tiers.indexOf(tier);
    this.#sweepSome(SWEEP_ENTRIES + keys.length);
    for (const key of keys) {
      if (operation === 'stored') this.#store(key, number, bit);
      else this.#remove(key, number, bit);
    }
  }

  #numberOf(holder: string): number {
    let number = this.#numbers.get(holder);
    if (number === undefined) {
      number = this.#nextNumber++;
      this.#numbers.set(holder, number);
      this.#holders.set(number, holder);
    }
    return number;
  }

  #store(key: BlockKey, number: number, bit: number): void {
    const list = this.#entries.get(key);
    if (!list) {
      if (this.#entries.size < this.#maxKeys) this.#entries.set(key, [number * TIER_BITS + bit]);
      return;
    }
    const at = list.findIndex((entry) => Math.floor(entry / TIER_BITS) === number);
    if (at < 0) list.push(number * TIER_BITS + bit);
    else list[at] = number * TIER_BITS + (((list[at] ?? 0) % TIER_BITS) | bit);
  }

  #remove(key: BlockKey, number: number, bits: number): void {
    const list = this.#entries.get(key);
    const at = list?.findIndex((entry) => Math.floor(entry / TIER_BITS) === number) ?? -1;
    if (!list || at < 0) return;
    const left = ((list[at] ?? 0) % TIER_BITS) & ~bits;
    if (left > 0) list[at] = number * TIER_BITS + left;
    else list.splice(at, 1);
    if (list.length === 0) this.#entries.delete(key);
  }

  /**
   * Forgets everything a holder had: it is lost, or about to be told anew. At once for every question; its entries are swept out
   * a few at a time, because a scan of millions would stop every stream.
   */
  removeHolder(holder: string): void {
    const number = this.#numbers.get(holder);
    if (number === undefined) return;
    this.#numbers.delete(holder);
    this.#holders.delete(number);
    this.#sweep = this.#entries.entries();
    this.#sweepSome(SWEEP_ENTRIES);
  }

  /** Looks at up to `limit` entries of the sweep that is under way. */
  #sweepSome(limit: number): void {
    for (let i = 0; i < limit && this.#sweep; i++) {
      const step = this.#sweep.next();
      if (step.done) {
        this.#sweep = undefined;
        return;
      }
      const [key, list] = step.value;
      const kept = list.filter((entry) => this.#holders.has(Math.floor(entry / TIER_BITS)));
      if (kept.length === 0) this.#entries.delete(key);
      else if (kept.length < list.length) this.#entries.set(key, kept);
    }
  }

  /** Per holder, the number of blocks it has without a hole from the first on; holders of none are left out. */
  runs(hashes: readonly BlockHash[]): Map<string, number> {
    this.#sweepSome(SWEEP_ENTRIES);
    const runs = new Map<string, number>();
    let active: Set<number> | undefined;
    for (const [index, { key }] of hashes.entries()) {
      const here = new Set((this.#entries.get(key) ?? []).map((entry) => Math.floor(entry / TIER_BITS)));
      active = active === undefined ? here : new Set([...active].filter((number) => here.has(number)));
      if (active.size === 0) break;
      for (const number of active) {
        const holder = this.#holders.get(number);
        if (holder !== undefined) runs.set(holder, index + 1);
      }
    }
    return runs;
  }
}

/**
 * Announces on the bus which blocks a holder stores and removes, and keeps the current set for snapshots.
 *
 * Changes are batched for BATCH_MS; batches carry consecutive sequence numbers. Changes within a batch keep their order, so a key
 * that was stored and then removed is announced in that order. Memory is bounded (P1) by the tiers that the announcer mirrors.
 */
import type { Clock } from '../base/clock.ts';
import type { BlockHash, BlockKey } from '../kv/block_key.ts';
import { encodeBlockBatch, type BlockRun, type Tier } from '../protocol/block_events.ts';
import { keyWords } from '../protocol/packing.ts';

const BATCH_MS = 10;

/** Publishes the keys that a holder stores and removes, in numbered batches, and keeps the current set for snapshots. */
export class Announcer {
  readonly #holder: string;
  readonly #publish: (batch: Buffer) => void;
  readonly #clock: Clock;
  readonly #signal: AbortSignal;
  /** Keys of each tier, with the keys of their parents. */
  readonly #keys = new Map<Tier, Map<BlockKey, BlockKey>>();
  #runs: { operation: BlockRun['operation']; tier: Tier; keys: BlockKey[]; parents: BlockKey[] }[] = [];
  #sequence = 0;

  constructor(holder: string, publish: (batch: Buffer) => void, clock: Clock, signal: AbortSignal) {
    this.#holder = holder;
    this.#publish = publish;
    this.#clock = clock;
    this.#signal = signal;
  }

  /** Sequence number of the last published batch; 0 before the first. */
  get sequence(): number {
    return this.#sequence;
  }

  has(tier: Tier, key: BlockKey): boolean {
    return this.#keys.get(tier)?.has(key) ?? false;
  }

  /** Announces a block; a parent of 0 is not known. */
  stored(tier: Tier, { key, parent }: Pick<BlockHash, 'key' | 'parent'>): void {
    const keys = this.#keys.get(tier) ?? new Map<BlockKey, BlockKey>();
    if (keys.has(key)) return;
    this.#keys.set(tier, keys.set(key, parent));
    this.#runOf('stored', tier, key).parents.push(parent);
  }

  removed(tier: Tier, key: BlockKey): void {
    if (this.#keys.get(tier)?.delete(key)) this.#runOf('removed', tier, key);
  }

  /** Adds a key to the run of its operation and tier. @returns the run */
  #runOf(operation: BlockRun['operation'], tier: Tier, key: BlockKey): { parents: BlockKey[] } {
    let last = this.#runs.at(-1);
    // The first change of a batch starts the timer, so an idle holder has none.
    if (last === undefined) void this.#flushLater();
    if (last?.operation !== operation || last.tier !== tier)
      this.#runs.push((last = { operation, tier, keys: [], parents: [] }));
    last.keys.push(key);
    return last;
  }

  async #flushLater(): Promise<void> {
    await this.#clock.sleep(BATCH_MS, this.#signal);
    if (!this.#signal.aborted) this.flush();
  }

  flush(): void {
    if (this.#runs.length === 0) return;
    const runs = this.#runs.map(({ keys, parents, ...run }) => ({
      ...run,
      keys: keyWords(keys),
      parents: parents.some((parent) => parent !== 0n) ? keyWords(parents) : undefined,
    }));
    this.#runs = [];
    this.#sequence++;
    this.#publish(encodeBlockBatch({ holder: this.#holder, sequence: this.#sequence, runs }));
  }

  /** Returns all keys by tier, with those of their parents, as of the last published batch, after publishing pending changes. */
  snapshot(): { epoch: string; sequence: number; tiers: Iterable<readonly [Tier, ReadonlyMap<BlockKey, BlockKey>]> } {
    this.flush();
    return { epoch: this.#holder, sequence: this.#sequence, tiers: this.#keys };
  }
}

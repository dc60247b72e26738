/**
 * Announces on the bus which blocks a holder stores and removes, and keeps the current set for snapshots.
 *
 * Changes are batched for BATCH_MS; batches carry consecutive sequence numbers. Changes within a batch keep their order, so a key
 * that was stored and then removed is announced in that order. Memory is bounded (P1) by the tiers that the announcer mirrors.
 */
import type { Clock } from '../base/clock.ts';
import type { BlockKey } from '../kv/block_key.ts';
import { encodeBlockBatch, type BlockRun, type Tier } from '../protocol/block_events.ts';
import { keyWords } from '../protocol/packing.ts';

const BATCH_MS = 10;

/** Publishes the keys that a holder stores and removes, in numbered batches, and keeps the current set for snapshots. */
export class Announcer {
  readonly #holder: string;
  readonly #publish: (batch: Buffer) => void;
  readonly #clock: Clock;
  readonly #signal: AbortSignal;
  readonly #keys = new Map<Tier, Set<BlockKey>>();
  #runs: { operation: BlockRun['operation']; tier: Tier; keys: BlockKey[] }[] = [];
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

  stored(tier: Tier, key: BlockKey): void {
    const set = this.#keys.get(tier) ?? new Set();
    if (set.has(key)) return;
    this.#keys.set(tier, set.add(key));
    this.#add('stored', tier, key);
  }

  removed(tier: Tier, key: BlockKey): void {
    if (this.#keys.get(tier)?.delete(key)) this.#add('removed', tier, key);
  }

  #add(operation: BlockRun['operation'], tier: Tier, key: BlockKey): void {
    const last = this.#runs.at(-1);
    // The first change of a batch starts the timer, so an idle holder has none.
    if (last === undefined) void this.#flushLater();
    if (last?.operation === operation && last.tier === tier) last.keys.push(key);
    else this.#runs.push({ operation, tier, keys: [key] });
  }

  async #flushLater(): Promise<void> {
    await this.#clock.sleep(BATCH_MS, this.#signal);
    if (!this.#signal.aborted) this.flush();
  }

  flush(): void {
    if (this.#runs.length === 0) return;
    const runs = this.#runs.map(({ keys, ...run }) => ({ ...run, keys: keyWords(keys) }));
    this.#runs = [];
    this.#sequence++;
    this.#publish(encodeBlockBatch({ holder: this.#holder, sequence: this.#sequence, runs }));
  }

  /** Returns all keys by tier as of the last published batch, after publishing pending changes. */
  snapshot(): { epoch: string; sequence: number; tiers: Iterable<readonly [Tier, Iterable<BlockKey>]> } {
    this.flush();
    return { epoch: this.#holder, sequence: this.#sequence, tiers: this.#keys };
  }
}

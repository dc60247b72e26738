/**
 * Offers computed blocks to their home stores. A store fetches the blocks that it lacks, so an offer carries no payload.
 *
 * Hashes are collected for GATHER_MS, which also lets a waiting decode instance read the blocks first. Bounds (P1): MAX_QUEUED
 * hashes, and one offer in flight per store. Blocks beyond these bounds are not offered, which loses nothing but cache hits.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import type { AnchoredHash, Digest } from '../kv/block_key.ts';
import { xxh64 } from '../base/xxh64.ts';
import { askOnce, type Network } from '../net/network.ts';
import { kindOf, type RecordKind } from '../kv/record.ts';
import type { Member } from '../protocol/membership.ts';
import { packDigest, packHashes, packNumbers } from '../protocol/packing.ts';

const GATHER_MS = 30;
const MAX_QUEUED = 8_192;
/** One offer names at most so many blocks: 32 KiB of hashes, a few seconds of transfer. */
const MAX_HASHES_PER_OFFER = 1_024;
const OFFER_TIMEOUT_MS = 60_000;

/** Rendezvous hashing (Thaler and Ravishankar, 1998): when a store leaves, only its own blocks find a new home. */
export function homeStore(anchor: bigint, stores: readonly Member[]): Member | undefined {
  const weight = (store: Member): bigint => {
    const name = Buffer.from(store.name);
    const bytes = Buffer.alloc(8 + name.length);
    bytes.writeBigUInt64LE(anchor);
    name.copy(bytes, 8);
    return xxh64(bytes);
  };
  return stores.reduce<Member | undefined>(
    (best, store) => (best === undefined || weight(store) > weight(best) ? store : best),
    undefined,
  );
}

/** A block to offer, with its content hash, by which the store notices that it holds other contents under the same name. */
interface Offered {
  readonly hash: AnchoredHash;
  readonly contentHash: bigint;
}

/** Network, limits and identity of an Offers. */
export interface OfferOptions {
  readonly network: Network;
  readonly clock: Clock;
  readonly log: Log;
  readonly format: Digest;
  /** Id of the numerics class of this instance's KV (numericsId in record.ts). */
  readonly numerics: bigint;
  /** Bytes of a record of each kind. */
  readonly recordBytes: Readonly<Record<RecordKind, number>>;
  /** Address of this instance's Blocks service, from which stores fetch offered blocks. */
  readonly source: string;
  readonly stores: () => readonly Member[];
  /** Ends offers that are on their way. */
  readonly signal: AbortSignal;
}

/** Offers computed blocks to their home stores in batches. */
export class Offers {
  readonly #options: OfferOptions;
  /**
   * Queued blocks by the address of their home store and by the kind of record, which have one size in an offer; in order of arrival. A
   * block's store is derived once, and again when the stores change.
   */
  #queues = new Map<string, { readonly store: Member; readonly record: RecordKind; offered: Offered[] }>();
  #numQueued = 0;
  /** The stores that the queues were made for. */
  #stores = '';
  #isGathering = false;
  readonly #stopped: AbortSignal;
  readonly #busy = new Map<string, Promise<void>>();

  constructor(options: OfferOptions) {
    this.#options = options;
    this.#stopped = options.signal;
  }

  /**
   * Queues a block for its home store, unless MAX_QUEUED blocks are queued. `contentHash` is the content hash of its record
   * (record.ts).
   */
  add(hash: AnchoredHash, contentHash: bigint): void {
    if (this.#numQueued >= MAX_QUEUED) return;
    this.#rehome();
    if (this.#enqueue({ hash, contentHash }, this.#options.stores()) && !this.#isGathering) void this.#gather();
  }

  #enqueue(block: Offered, stores: readonly Member[]): boolean {
    const store = homeStore(block.hash.anchor, stores);
    if (!store) return false;
    const record = kindOf(block.hash);
    const name = `${record} ${store.address}`;
    const queue = this.#queues.get(name) ?? { store, record, offered: [] };
    queue.offered.push(block);
    this.#queues.set(name, queue);
    this.#numQueued++;
    return true;
  }

  /** Assigns queued blocks to home stores again when the stores have changed. */
  #rehome(): void {
    const stores = this.#options.stores();
    const names = stores.map(({ name, address }) => `${name} ${address}`).join();
    if (names === this.#stores) return;
    this.#stores = names;
    const waiting = [...this.#queues.values()].flatMap(({ offered }) => offered);
    this.#queues = new Map();
    this.#numQueued = 0;
    for (const block of waiting) this.#enqueue(block, stores);
  }

  /** Resolves when every queued block has been offered and every offer is answered or has failed. */
  async drained(): Promise<void> {
    while (this.#isGathering || this.#busy.size > 0) {
      await this.#options.clock.sleep(GATHER_MS);
      await Promise.all(this.#busy.values());
    }
  }

  async #gather(): Promise<void> {
    this.#isGathering = true;
    while (this.#numQueued > 0) {
      await this.#options.clock.sleep(GATHER_MS);
      this.#rehome();
      for (const [name, { store, record, offered }] of [...this.#queues]) {
        if (this.#busy.has(store.address)) continue;
        const batch = offered.splice(0, MAX_HASHES_PER_OFFER);
        this.#numQueued -= batch.length;
        if (offered.length === 0) this.#queues.delete(name);
        const offer = this.#offer(store, record, batch).finally(() => this.#busy.delete(store.address));
        this.#busy.set(store.address, offer);
      }
    }
    this.#isGathering = false;
  }

  async #offer(store: Member, record: RecordKind, offered: readonly Offered[]): Promise<void> {
    const { network, log, format, numerics, source } = this.#options;
    const recordBytes = this.#options.recordBytes[record];
    const hashes = packHashes(offered.map(({ hash }) => hash));
    const contentHashes = packNumbers(offered.map(({ contentHash }) => contentHash));
    try {
      const reply = await askOnce(
        network,
        store.address,
        'offer',
        {
          context: null,
          format: packDigest(format),
          hashes,
          recordBytes,
          source,
          contentHashes,
          numerics: packNumbers([numerics]),
        },
        { signal: this.#stopped, timeoutMs: OFFER_TIMEOUT_MS },
      );
      log.debug({ store: store.name, offered: offered.length, ...reply }, 'offered');
    } catch (error) {
      log.warn(
        { store: store.name, blocks: offered.length, error: messageOf(error) },
        'a store refused an offer, or did not answer',
      );
    }
  }
}

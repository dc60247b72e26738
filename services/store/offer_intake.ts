/**
 * Takes offers: fetches the lacking blocks from the holder that offers them, verifies and keeps them, and answers. Blocks are
 * written to disk after the answer, or before it with `--disk-writes through`; `durable` in the answer counts the committed ones
 * (S1). Offered blocks that are already in DRAM and not on disk are written too.
 *
 * Bounds (P1): MAX_OFFERS at once, of MAX_OFFERED blocks each. Further offers are refused as `overloaded`, and their holder drops
 * them. A block that two holders offer at the same time is fetched once.
 */
import { messageOf } from '../../shared/base/failure.ts';
import { Failure } from '../../shared/base/failure.ts';
import { pause } from '../../shared/base/pause.ts';
import type { Log } from '../../shared/base/log.ts';
import type { BlockKey, BlockHash } from '../../shared/kv/block_key.ts';
import { slotBytes } from '../../shared/kv/slab.ts';
import { openFetch, type FetchLine, type FetchStream } from '../../shared/net/fetch/fetch.ts';
import type { Slots } from '../../shared/net/fetch/transfer.ts';
import type { OfferReply, OfferRequest } from '../../shared/protocol/messages.ts';
import { HASH_BYTES, unpackDigest, unpackHashes, unpackNumbers } from '../../shared/protocol/packing.ts';
import type { DiskWrite } from './disk_tier.ts';
import type { StoreConfig } from './options.ts';
import type { StoreTiers } from './tiers.ts';
import { WriteBehind } from './write_behind.ts';

const MAX_OFFERS = 64;
/** Blocks of one offer, at most. */
const MAX_OFFERED = 1_024;
const FETCH_TIMEOUT_MS = 60_000;
const FETCH_PATIENCE_MS = 12_000;
/**
 * Milliseconds between two attempts to acquire a DRAM slot while records on their way to disk pin all of them; at most MAX_SLOT_PAUSES
 * pauses.
 */
const SLOT_PAUSE_MS = 20;
const MAX_SLOT_PAUSES = 500;
/** Records that are put on their way to disk together. A batch also takes the records that arrived with its last one. */
const WRITE_BATCH = 32;
/** Greatest record size in bytes that an offer may name. No KV block is that large. */
const MAX_RECORD_BYTES = 1 << 30;

/** Accepts offers: fetches the blocks that are lacking, keeps them in DRAM, and writes them to disk. */
export class OfferIntake {
  readonly #tiers: StoreTiers;
  readonly #line: FetchLine;
  readonly #log: Log;
  readonly #behind: WriteBehind;
  readonly #isThrough: boolean;
  /** Fetches of other offers, by the key of the block that they bring. Each promise resolves when the offer's fetch has ended. */
  readonly #arriving = new Map<BlockKey, Promise<unknown>>();
  numOpen = 0;

  constructor(tiers: StoreTiers, line: FetchLine, log: Log, diskWrites: StoreConfig['disk_writes']) {
    this.#behind = new WriteBehind(tiers);
    this.#isThrough = diskWrites === 'through';
    this.#tiers = tiers;
    this.#line = line;
    this.#log = log;
  }

  /** @throws Failure when the offer is malformed or there is no room for it. */
  async accept(offer: OfferRequest, signal: AbortSignal): Promise<OfferReply> {
    if (this.numOpen >= MAX_OFFERS)
      throw new Failure('overloaded', `the store is already handling ${MAX_OFFERS} offers`);
    if (offer.hashes.length > MAX_OFFERED * HASH_BYTES)
      throw new Failure('invalid_request', `an offer names at most ${MAX_OFFERED} blocks`);
    const offered = unpackHashes(offer.hashes);
    if (offer.recordBytes <= 0 || offer.recordBytes > MAX_RECORD_BYTES || !/^[^\s/]+:\d+$/.test(offer.source)) {
      throw new Failure(
        'invalid_request',
        'an offer needs a record size of 1 byte to 1 GiB, and a source of the form HOST:PORT',
      );
    }
    this.#tiers.checkSize(offer.recordBytes);
    this.#compare(offer, offered);
    const lacking = offered.filter((hash) => this.#tiers.lacks(hash) && !this.#arriving.has(hash.key));
    const isLacking = new Set(lacking);
    const others = offered.flatMap(({ key }) => this.#arriving.get(key) ?? []);
    this.#tiers.noteDuplicates(offered.filter((hash) => !isLacking.has(hash)));
    this.numOpen++;
    const fetched = this.#fetchAll(offer, lacking, signal);
    const drained = fetched.catch(() => undefined);
    for (const { key } of lacking) this.#arriving.set(key, drained);
    try {
      const stored = await fetched;
      // A block that another offer brings is held only when that offer's fetch has ended.
      await Promise.all(others);
      await this.#writeDown(offered, signal);
      const durable = offered.filter((hash) => this.#tiers.disk.has(hash)).length;
      const held = offered.filter((hash) => !isLacking.has(hash) && !this.#tiers.lacks(hash)).length;
      return { stored, held, durable };
    } finally {
      this.numOpen--;
      for (const { key } of lacking) this.#arriving.delete(key);
    }
  }

  /**
   * Compares the content hashes of an offer with those of held blocks. Within one numerics class a block has one content (E2), so a
   * difference, which is counted and logged, means that one of the two was computed wrongly.
   */
  #compare(offer: OfferRequest, offered: readonly BlockHash[]): void {
    const contentHashes = unpackNumbers(offer.contentHashes);
    const [numerics] = unpackNumbers(offer.numerics);
    if (contentHashes.length !== offered.length || numerics === undefined) {
      throw new Failure(
        'invalid_request',
        `an offer of ${offered.length} blocks says what each of them holds: one content hash per block, and a numerics class`,
      );
    }
    const others = offered.filter((hash, i) => {
      const held = this.#tiers.identityOf(hash);
      return held?.numerics === numerics && held.contentHash !== contentHashes[i];
    });
    const [first] = others;
    if (!first) return;
    this.#tiers.numDivergent += others.length;
    this.#log.error(
      { source: offer.source, blocks: others.length, first: first.digest },
      'an instance offers KV that differs from the KV held here for the same tokens: one of the two was computed wrongly',
    );
  }

  /** Resolves when every accepted record is committed or dropped, or `signal` aborts. */
  drained(signal: AbortSignal): Promise<void> {
    return this.#behind.until(0, signal);
  }

  /** Writes the blocks that are in DRAM and not on disk, in batches. */
  async #writeDown(hashes: readonly BlockHash[], signal: AbortSignal): Promise<void> {
    for (let at = 0; at < hashes.length; at += WRITE_BATCH) {
      const writes = hashes.slice(at, at + WRITE_BATCH).flatMap((hash) => this.#tiers.writeOf(hash) ?? []);
      await this.#write(writes, signal);
    }
  }

  /** Commits the writes, or queues them and waits while more than half of DRAM is queued. */
  async #write(writes: readonly DiskWrite[], signal: AbortSignal): Promise<void> {
    if (this.#isThrough) {
      await this.#tiers.commit(writes);
      return;
    }
    this.#behind.add(writes);
    await this.#behind.until(this.#tiers.slab.numBytes / 2, signal);
  }

  /**
   * Fetches the lacking blocks and returns how many were stored. A fetch ends at the first block that its holder has lost; the next
   * fetch begins after that block.
   */
  async #fetchAll(offer: OfferRequest, lacking: readonly BlockHash[], signal: AbortSignal): Promise<number> {
    let stored = 0;
    for (let next = 0; next < lacking.length && !signal.aborted;) {
      const { numAccepted, numSeen } = await this.#fetchRun(offer, lacking.slice(next), signal);
      stored += numAccepted;
      next += numSeen + 1;
    }
    return stored;
  }

  async #fetchRun(
    offer: OfferRequest,
    hashes: readonly BlockHash[],
    signal: AbortSignal,
  ): Promise<{ numAccepted: number; numSeen: number }> {
    const { recordBytes: bytes } = offer;
    const format = unpackDigest(offer.format);
    const stream = this.#open(offer, hashes, signal);
    let arrived: DiskWrite[] = [];
    const flush = async (): Promise<void> => {
      const writes = arrived;
      arrived = [];
      await this.#write(writes, signal);
    };
    const slots = this.#slotsOf(bytes, flush, signal);
    let [numAccepted, numSeen] = [0, 0];
    try {
      for await (const incoming of stream.records(slots)) {
        for (const { index, slot, fault } of incoming) {
          numSeen++;
          const hash = hashes[index];
          if (!hash || fault !== undefined) {
            this.#log.warn({ source: offer.source, fault }, 'an offered record is unusable');
            slots.release(slot);
            continue;
          }
          const write = this.#tiers.accept({ hash, format, slot, bytes });
          numAccepted++;
          if (write) arrived.push(write);
        }
        if (arrived.length >= WRITE_BATCH) await flush();
      }
    } catch (error) {
      this.#log.warn({ source: offer.source, error: messageOf(error) }, 'an offer could not be fetched');
      numSeen = hashes.length;
    }
    await flush();
    return { numAccepted, numSeen };
  }

  #open(offer: OfferRequest, hashes: readonly BlockHash[], signal: AbortSignal): FetchStream {
    const context = {
      requestId: 'offer',
      tenant: '',
      priority: 0,
      traceId: '',
      router: '',
      placement: 0,
      expectedTokens: 0,
    };
    return openFetch(this.#line, offer.source, {
      context: { ...context, timeoutMs: FETCH_TIMEOUT_MS },
      format: unpackDigest(offer.format),
      hashes,
      signal,
      slotBytes: offer.recordBytes,
      waitMs: 0,
      timeoutMs: FETCH_TIMEOUT_MS,
      patienceMs: FETCH_PATIENCE_MS,
    });
  }

  /**
   * Returns the DRAM slots of a fetch. While none is free, `acquire` waits for records to be written to disk; `flush` queues the
   * records of this offer.
   */
  #slotsOf(bytes: number, flush: () => Promise<void>, signal: AbortSignal): Slots {
    const { dram, slab } = this.#tiers;
    const acquireLater = async (): Promise<number> => {
      for (let i = 0; i < MAX_SLOT_PAUSES && !signal.aborted; i++) {
        await flush();
        const slot = dram.acquireSlot(bytes);
        if (slot !== undefined) return slot;
        await pause(this.#line.clock, this.#line.random, SLOT_PAUSE_MS, signal);
      }
      throw new Failure('overloaded', 'every DRAM slot is in use');
    };
    return {
      acquire: () => dram.acquireSlot(bytes) ?? acquireLater(),
      bytes: (slot) => slotBytes(slab.memory, slot, bytes),
      release: (slot) => {
        dram.releaseSlot(slot);
      },
    };
  }
}

/**
 * Blocks that an instance serves to others: records in its outbox (host memory), and blocks that are only in its device.
 *
 *   device ──export──► slot ──seal (transfer thread)──► outbox ──► fetch streams, offers to the home store
 *          └─frames, while it computes─► the same slot ──headers──► fetch streams that wait for them
 *
 * Every announced block can be read: a read of a block that is only in the device tier makes the engine export the block. A read may also
 * wait for a block that a prefill is about to compute, and may come before that prefill does.
 */
import { Condition } from '../base/condition.ts';
import type { Clock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import { messageOf } from '../base/failure.ts';
import type { AnchoredHash, BlockKey, BlockHash } from '../kv/block_key.ts';
import { RecordCache, type RecordInPlace, type BorrowedRecord } from '../kv/record_cache.ts';
import { WantedKeys } from '../kv/wanted_keys.ts';
import { recordShapeOf, type RecordLayout } from '../kv/record.ts';
import type { Slab } from '../kv/slab.ts';
import type { Announcer } from '../node/announcer.ts';
import type { BlockSource, InFlightFrames } from '../net/block_source.ts';
import { borrowsOfStream } from '../net/fetch/transfer_bounds.ts';
import type { TransferThread } from '../net/transfer_thread/transfer_thread.ts';
import type { LoopEvent, ToEngine } from '../engine/engine_messages.ts';
import { ExportCredits } from './export_credits.ts';
import { InFlightBlocks } from './in_flight_blocks.ts';

/** A block that vanishes and comes back this often while it is read is given up. */
const MAX_EXPORT_TRIES = 3;
/** The engine answers an export between two steps; if it does not, the reader computes. */
const EXPORT_TIMEOUT_MS = 10_000;
/** Requests whose prefill has ended, remembered for fetches that come late (P1). */
const MAX_DONE = 4_096;

/** Memory, threads and callbacks of an Outbox. */
export interface OutboxOptions {
  readonly layout: RecordLayout;
  readonly slab: Slab;
  /** Number of record slots in the slab. */
  readonly numSlots: number;
  readonly transferThread: TransferThread;
  readonly announcer: Announcer;
  readonly clock: Clock;
  readonly log: Log;
  readonly sendToEngine: (message: ToEngine) => void;
  /** A block computed here is in the outbox now; `contentHash` as record.ts has it. */
  readonly onReady: (hash: AnchoredHash, contentHash: bigint) => void;
  readonly onSlotFree: () => void;
}

/** Serves an instance's blocks to readers: cached records, in-flight blocks, and exports on demand. */
export class Outbox implements BlockSource {
  readonly cache: RecordCache;
  readonly #options: OutboxOptions;
  /** Bytes of the records of blocks, in which in-flight blocks lie. */
  readonly #recordBytes: number;
  readonly wanted = new WantedKeys();
  /** Wakes readers of a key when anything about it changed. Bounded by the open fetch streams. */
  readonly #watchers = new Map<BlockKey, Condition>();
  /** Prefills that run, per request; bounded by the engine's queue. */
  readonly #running = new Map<string, number>();
  /** Requests whose prefill has ended: nobody waits for their blocks any more. */
  readonly #done = new Set<string>();
  /** Blocks copied out of the device that are being sealed and not in the outbox yet: a matter of microseconds. */
  readonly #sealing = new Set<BlockKey>();
  /** In-flight blocks, by key and by slot; bounded by the slots that are granted to the engine. */
  readonly #inFlight = new Map<BlockKey, InFlightBlocks>();
  readonly #inFlightBySlot = new Map<number, InFlightBlocks>();
  readonly #credits: ExportCredits;

  constructor(options: OutboxOptions) {
    this.#options = options;
    this.#recordBytes = options.layout.spec.slotBytes;
    this.cache = new RecordCache(options.slab, {
      onEvict: ({ hash }) => {
        options.announcer.removed('dram', hash.key);
      },
      isWanted: (key) => this.wanted.has(key),
      turn: () => options.clock.turn(),
    });
    const { layout, slab, numSlots, sendToEngine } = options;
    this.#credits = new ExportCredits({ spec: layout.spec, slab, numSlots, sendToEngine, cache: this.cache });
  }

  /** Handles the engine's events about blocks. */
  onEngineEvent(event: LoopEvent): void {
    const { announcer } = this.#options;
    if (event.kind === 'stored') {
      announcer.stored('device', event.hash);
      this.#wake(event.hash.key);
    } else if (event.kind === 'removed') {
      announcer.removed('device', event.key);
      this.#wake(event.key);
    } else if (event.kind === 'frame') {
      void this.#addFrame(event);
    } else if (event.kind === 'exported') {
      this.#credits.used(event.hash);
      this.grantSlots();
      void this.#seal(event);
    } else if (event.kind === 'export_failed') {
      // Only wakes readers: the block may have been computed again meanwhile, and its removal has an event of its own.
      this.#wake(event.hash.key);
    }
  }

  /** Grants the engine slots for exports. */
  grantSlots(): void {
    this.#credits.grant();
  }

  /** Handles a frame of in-flight blocks that has been copied into their slots: has its headers computed, and wakes readers. */
  async #addFrame({ frame, blocks }: Extract<LoopEvent, { kind: 'frame' }>): Promise<void> {
    const { transferThread, layout, log } = this.#options;
    const [first] = blocks;
    if (!first) return;
    const inFlight = frame === 0 ? new InFlightBlocks(layout, blocks) : this.#inFlightBySlot.get(first.slot);
    if (!inFlight) return;
    if (frame === 0) {
      for (const { hash, slot } of blocks) {
        this.#inFlight.set(hash.key, inFlight);
        this.#inFlightBySlot.set(slot, inFlight);
      }
    }
    try {
      inFlight.setFrameHeaders(frame, await transferThread.call('frameHeaders', { layout, frame, blocks }));
    } catch (error) {
      log.error({ error: messageOf(error) }, 'computing the headers of a frame failed');
      inFlight.setFrameHeaders(frame, undefined);
    }
    if (frame === 0) for (const { hash } of blocks) this.#wake(hash.key);
  }

  async #seal({ hash, slot, anchor }: Extract<LoopEvent, { kind: 'exported' }>): Promise<void> {
    const { transferThread, layout, announcer, log, onReady } = this.#options;
    const inFlight = this.#inFlightBySlot.get(slot);
    const releaseSlot = (): void => {
      const releaseSlotNow = (): void => {
        this.cache.releaseSlot(slot);
        this.#slotMayBeFree();
      };
      // Readers of single frames may still have the slot pinned.
      if (inFlight) inFlight.whenFree(slot, releaseSlotNow);
      else releaseSlotNow();
      this.#wake(hash.key);
    };
    this.#sealing.add(hash.key);
    let contentHash: bigint;
    try {
      const headers = inFlight ? await inFlight.allFrameHeaders(slot) : [];
      contentHash = await transferThread.call('seal', { layout, slot, hash, headers });
    } catch (error) {
      log.error({ error: messageOf(error) }, 'sealing a block failed');
      releaseSlot();
      return;
    } finally {
      this.#sealing.delete(hash.key);
      this.#inFlightBySlot.delete(slot);
      if (inFlight && this.#inFlight.get(hash.key) === inFlight) this.#inFlight.delete(hash.key);
    }
    const bytes = recordShapeOf(layout.spec, hash.kind).slotBytes;
    if (!this.cache.put({ hash, slot, format: layout.format, bytes })) {
      releaseSlot();
      return;
    }
    announcer.stored('dram', hash);
    if (inFlight) {
      this.cache.pin(hash.key);
      inFlight.whenFree(slot, () => {
        this.cache.unpin(hash.key);
        this.#slotMayBeFree();
      });
    } else this.#slotMayBeFree();
    if (anchor !== undefined) onReady({ ...hash, anchor }, contentHash);
    this.#wake(hash.key);
  }

  /** Retries requests for slots: one is free, or a record can be evicted now. */
  #slotMayBeFree(): void {
    this.grantSlots();
    this.#options.onSlotFree();
  }

  numBorrowable(bytes: number): number {
    return this.cache.numBorrowable(bytes);
  }

  borrowResident(hash: BlockHash): RecordInPlace | undefined {
    const borrowed = this.cache.borrowInPlace(hash);
    if (borrowed) this.cache.counters.hits++;
    return borrowed;
  }

  async borrow(
    hash: BlockHash,
    requestId: string,
    waitMs: number,
    signal: AbortSignal,
  ): Promise<BorrowedRecord | undefined> {
    const borrowed = await this.#borrow([hash], requestId, waitMs, signal, false);
    return borrowed && 'frames' in borrowed ? undefined : borrowed;
  }

  borrowInFlight(
    hashes: readonly BlockHash[],
    requestId: string,
    waitMs: number,
    signal: AbortSignal,
  ): Promise<BorrowedRecord | InFlightFrames | undefined> {
    return this.#borrow(hashes, requestId, waitMs, signal, true);
  }

  await(hashes: readonly BlockHash[]): () => void {
    const { announcer, sendToEngine } = this.#options;
    const isMissing = ({ key }: BlockHash): boolean => !announcer.has('device', key) && !announcer.has('dram', key);
    const keys = hashes.filter(isMissing).map(({ key }) => key);
    if (keys.length === 0) return () => undefined;
    sendToEngine({ kind: 'await', keys, isOn: true });
    return () => {
      sendToEngine({ kind: 'await', keys, isOn: false });
    };
  }

  /**
   * Borrows the first block of `hashes`, waiting until it is sealed, exported or computed. With `mayBeInFlight`, an in-flight block is
   * borrowed frame by frame, together with the in-flight blocks that follow it.
   */
  async #borrow(
    hashes: readonly BlockHash[],
    requestId: string,
    waitMs: number,
    signal: AbortSignal,
    mayBeInFlight: boolean,
  ): Promise<BorrowedRecord | InFlightFrames | undefined> {
    const [hash] = hashes;
    if (!hash) return undefined;
    const { announcer, clock, sendToEngine } = this.#options;
    const untilMs = clock.nowMs() + waitMs;
    let numTries = 0;
    while (!signal.aborted) {
      const borrowed = this.cache.borrow(hash);
      if (borrowed) {
        this.cache.counters.hits++;
        return borrowed;
      }
      const inFlight = mayBeInFlight ? this.#borrowFrames(hashes, hash.key) : undefined;
      if (inFlight) {
        this.cache.counters.hits += inFlight.blocks.length;
        return inFlight;
      }
      if (this.#sealing.has(hash.key)) {
        await this.#changed(hash.key, EXPORT_TIMEOUT_MS, signal);
        continue;
      }
      if (announcer.has('device', hash.key)) {
        if (numTries++ === MAX_EXPORT_TRIES) break;
        sendToEngine({ kind: 'export', hash });
        await this.#changed(hash.key, EXPORT_TIMEOUT_MS, signal);
        continue;
      }
      const leftMs = untilMs - clock.nowMs();
      if (leftMs <= 0 || this.#done.has(requestId)) break;
      await this.#changed(hash.key, leftMs, signal);
    }
    this.cache.counters.misses++;
    return undefined;
  }

  /**
   * Borrows the in-flight blocks at the head of `hashes` that belong to the same step as `first`, as far as there is room; undefined
   * for none.
   */
  #borrowFrames(hashes: readonly BlockHash[], first: BlockKey): InFlightFrames | undefined {
    const most = Math.max(1, borrowsOfStream(this.cache.numBorrowable(this.#recordBytes)));
    return this.#inFlight.get(first)?.blocksOf(hashes, most, () => this.cache.reserveBorrow(this.#recordBytes));
  }

  /** A prefill for this request has begun; a retry may begin before the one before it has ended. */
  begin(requestId: string): void {
    this.#running.set(requestId, (this.#running.get(requestId) ?? 0) + 1);
    this.#done.delete(requestId);
  }

  /** Ends a prefill that was refused because the instance is busy: its caller retries, so readers keep waiting for its blocks. */
  postpone(requestId: string): void {
    const left = (this.#running.get(requestId) ?? 1) - 1;
    if (left > 0) this.#running.set(requestId, left);
    else this.#running.delete(requestId);
  }

  /** Ends a prefill, successful or not. After the last one of a request, readers no longer wait for blocks that are not here. */
  end(requestId: string): void {
    const left = (this.#running.get(requestId) ?? 1) - 1;
    if (left > 0) {
      this.#running.set(requestId, left);
      return;
    }
    this.#running.delete(requestId);
    this.#done.add(requestId);
    const [oldest] = this.#done;
    if (this.#done.size > MAX_DONE && oldest !== undefined) this.#done.delete(oldest);
    // Readers of a block that is here, or being sealed, keep waiting: its own events wake them.
    const isHere = (key: BlockKey): boolean =>
      this.#sealing.has(key) || this.#inFlight.has(key) || this.#options.announcer.has('device', key);
    for (const key of [...this.#watchers.keys()]) if (!isHere(key)) this.#wake(key);
  }

  snapshot(): ReturnType<BlockSource['snapshot']> {
    return this.#options.announcer.snapshot();
  }

  /** Resolves at the next change of the key, at the timeout, or when the reader leaves. */
  async #changed(key: BlockKey, timeoutMs: number, signal: AbortSignal): Promise<void> {
    const watched = this.#watchers.get(key) ?? new Condition();
    this.#watchers.set(key, watched);
    await watched.within(timeoutMs, this.#options.clock, signal);
    if (watched.numWaiting === 0 && this.#watchers.get(key) === watched) this.#watchers.delete(key);
  }

  #wake(key: BlockKey): void {
    this.#watchers.get(key)?.notify();
  }
}

/**
 * Feeds the prefix index from block events. A gap in a holder's sequence numbers, or a new holder, is repaired by a snapshot from the
 * holder itself. The snapshot names the last batch that it contains; batches that arrive meanwhile are applied after it.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { messageOf } from '../../../shared/base/failure.ts';
import type { Log } from '../../../shared/base/log.ts';
import type { Bus } from '../../../shared/bus/bus.ts';
import type { Network } from '../../../shared/net/network.ts';
import { snapshotPages } from '../../../shared/net/snapshot_pages.ts';
import { decodeBlockBatch, tiers, type BlockBatch, type BlockRun } from '../../../shared/protocol/block_events.ts';
import { subjects } from '../../../shared/protocol/membership.ts';
import { unpackKeyWords } from '../../../shared/protocol/packing.ts';
import { unpackParents } from '../../../shared/protocol/parent_keys.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import type { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';

const RETRY_MS = 200;
/** Key words (two per key) applied before other work gets a turn of the event loop: about a millisecond. */
const SLICE_WORDS = 2 * 4_096;
/** Batches kept while a snapshot is on its way (P1): at 100 batches a second, 100 s. */
const MAX_BUFFERED = 10_000;

interface Feed {
  /** Sequence number of the last batch applied. */
  sequence: number;
  /** Present while a snapshot is on its way. */
  buffered: BlockBatch[] | undefined;
}

/** Feeds the prefix index with the block events and snapshots of every holder that was added. */
export class IndexFeed {
  readonly #index: PrefixIndex;
  readonly #network: Network;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #feeds = new Map<string, { feed: Feed; instance: Instance }>();
  numSnapshots = 0;
  /** Called for each run of stored blocks, after the index has it; undefined while nobody follows. */
  onStored: ((run: BlockRun) => void) | undefined;
  #numAsked = 0;
  /** Key words applied since the last yield to the event loop. */
  #numSinceYield = 0;

  constructor(index: PrefixIndex, bus: Bus, network: Network, clock: Clock, log: Log) {
    this.#index = index;
    this.#network = network;
    this.#clock = clock;
    this.#log = log;
    bus.subscribe(subjects.blocks, (bytes) => {
      this.#receive(decodeBlockBatch(bytes));
    });
  }

  add(instance: Instance): void {
    const feed: Feed = { sequence: 0, buffered: undefined };
    this.#feeds.set(instance.id, { feed, instance });
    void this.#synchronise(instance, feed);
  }

  remove(instance: Instance): void {
    this.#feeds.delete(instance.id);
    this.#index.removeHolder(instance.id);
  }

  /**
   * Compares the number of batches that a heartbeat reports with the last one applied. A missing batch is lost, since heartbeats are
   * sent after batches; the holder's snapshot is then fetched.
   */
  heard({ id }: Instance, sequence: number): void {
    const known = this.#feeds.get(id);
    if (!known || known.feed.buffered || sequence <= known.feed.sequence) return;
    known.feed.buffered = [];
    void this.#synchronise(known.instance, known.feed);
  }

  #apply(holder: string, run: BlockRun): void {
    this.#index.apply(holder, run);
    if (run.operation === 'stored') this.onStored?.(run);
  }

  #receive(batch: BlockBatch): void {
    const known = this.#feeds.get(batch.holder);
    if (!known) return;
    const { feed, instance } = known;
    if (feed.buffered) {
      if (feed.buffered.length < MAX_BUFFERED) feed.buffered.push(batch);
      return;
    }
    if (batch.sequence <= feed.sequence) return;
    const isNext = batch.sequence === feed.sequence + 1;
    if (isNext && wordsOf(batch) <= SLICE_WORDS) {
      for (const run of batch.runs) this.#apply(batch.holder, run);
      feed.sequence = batch.sequence;
      return;
    }
    feed.buffered = [batch];
    if (!isNext) {
      this.#log.info({ holder: batch.holder, have: feed.sequence, got: batch.sequence }, 'a gap in block events');
      void this.#synchronise(instance, feed);
      return;
    }
    void this.#drain(instance, feed).then((isWhole) => {
      if (!isWhole) void this.#synchronise(instance, feed);
    });
  }

  /** Fetches the holder's snapshot and applies the batches that arrived meanwhile. Retries until this succeeds or the holder is lost. */
  async #synchronise(instance: Instance, feed: Feed): Promise<void> {
    feed.buffered ??= [];
    const { signal } = instance.lost;
    while (!signal.aborted && this.#isCurrent(instance, feed)) {
      // No member has this name, so placement ignores the blocks of a snapshot until it is complete.
      const staged = `${instance.id} (snapshot ${this.#numAsked++})`;
      try {
        const sequence = await this.#stage(instance, staged);
        if (!this.#isCurrent(instance, feed)) throw new Error('another connection of it is followed');
        this.#index.replaceHolder(instance.id, staged);
        feed.sequence = sequence;
        this.numSnapshots++;
        if (await this.#drain(instance, feed)) return;
      } catch (error) {
        this.#log.debug({ holder: instance.id, error: messageOf(error) }, 'no snapshot yet');
        this.#index.dropStaged(staged);
        await this.#clock.sleep(RETRY_MS, signal);
      }
    }
  }

  /** Applies the buffered batches, and those that arrive while it runs. Resolves to false when a batch is missing. */
  async #drain(instance: Instance, feed: Feed): Promise<boolean> {
    const queue = feed.buffered ?? [];
    for (let at = 0, batch = queue[at]; batch; batch = queue[++at]) {
      if (batch.sequence <= feed.sequence) continue;
      if (batch.sequence !== feed.sequence + 1) {
        feed.buffered = queue.slice(at);
        return false;
      }
      for (const run of batch.runs) {
        for (const slice of slicesOf(run)) {
          await this.#yieldNow(slice);
          if (!this.#isCurrent(instance, feed)) return true;
          this.#apply(batch.holder, slice);
        }
      }
      feed.sequence = batch.sequence;
    }
    feed.buffered = undefined;
    return true;
  }

  #isCurrent({ id }: Instance, feed: Feed): boolean {
    return this.#feeds.get(id)?.feed === feed;
  }

  /** Yields to the event loop after about a millisecond of work. */
  async #yieldNow({ keys }: BlockRun): Promise<void> {
    this.#numSinceYield += keys.length;
    if (this.#numSinceYield <= SLICE_WORDS) return;
    this.#numSinceYield = 0;
    await this.#clock.turn();
  }

  /**
   * Fetches a snapshot into the index under the holder name `staged`. Returns the sequence number of the last batch that the snapshot
   * contains.
   */
  async #stage({ id, member, lost }: Instance, staged: string): Promise<number> {
    const network = { network: this.#network, clock: this.#clock };
    let numbered = 0;
    for await (const page of snapshotPages(network, member.address, lost.signal)) {
      if (page.epoch !== id) throw new Error(`${member.address} is ${page.epoch} by now`);
      numbered = page.sequence;
      const tier = tiers[page.tier];
      if (!tier) continue;
      const keys = unpackKeyWords(page.keys);
      for (const slice of slicesOf({ operation: 'stored', tier, keys, parents: unpackParents(keys, page.parents) })) {
        await this.#yieldNow(slice);
        this.#apply(staged, slice);
      }
    }
    return numbered;
  }
}

function* slicesOf(run: BlockRun): Generator<BlockRun> {
  for (let from = 0; from < run.keys.length; from += SLICE_WORDS)
    yield {
      ...run,
      keys: run.keys.subarray(from, from + SLICE_WORDS),
      parents: run.parents?.subarray(from, from + SLICE_WORDS),
    };
}

function wordsOf({ runs }: BlockBatch): number {
  return runs.reduce((sum, { keys }) => sum + keys.length, 0);
}

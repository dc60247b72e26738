/**
 * Feeds the prefix index from block events. A gap in a holder's sequence numbers, or a new holder, is repaired by a snapshot
 * fetched from the holder itself, tagged with the number it contains; events that came meanwhile are applied after it.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { messageOf } from '../../../shared/base/failure.ts';
import type { Log } from '../../../shared/base/log.ts';
import type { Bus } from '../../../shared/bus/bus.ts';
import { ask, type Network } from '../../../shared/net/network.ts';
import { decodeBlockBatch, tiers, type BlockBatch } from '../../../shared/protocol/block_events.ts';
import type { SnapshotPage } from '../../../shared/protocol/messages.ts';
import { subjects } from '../../../shared/protocol/membership.ts';
import { unpackKeys } from '../../../shared/protocol/packing.ts';
import type { Instance } from './cluster_view.ts';
import type { PrefixIndex } from './prefix_index.ts';

const SNAPSHOT_TIMEOUT_MS = 30_000;
const RETRY_MS = 200;
/** Batches kept while a snapshot is on its way (P1): at 100 batches a second, 100 s. */
const MAX_BUFFERED = 10_000;

interface Feed {
  /** The last number applied. */
  sequence: number;
  /** Present while a snapshot is on its way. */
  buffered: BlockBatch[] | undefined;
}

export class IndexFeed {
  readonly #index: PrefixIndex;
  readonly #network: Network;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #feeds = new Map<string, { feed: Feed; instance: Instance }>();
  numSnapshots = 0;

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

  #receive(batch: BlockBatch): void {
    const known = this.#feeds.get(batch.holder);
    if (!known) return;
    const { feed, instance } = known;
    if (feed.buffered) {
      if (feed.buffered.length < MAX_BUFFERED) feed.buffered.push(batch);
      return;
    }
    if (batch.sequence <= feed.sequence) return;
    if (batch.sequence === feed.sequence + 1) {
      this.#apply(feed, batch);
      return;
    }
    this.#log.info({ holder: batch.holder, have: feed.sequence, got: batch.sequence }, 'a gap in block events');
    void this.#synchronise(instance, feed, batch);
  }

  #apply(feed: Feed, batch: BlockBatch): void {
    for (const run of batch.runs) this.#index.apply(batch.holder, run);
    feed.sequence = batch.sequence;
  }

  /** Until it has worked or the holder is lost. */
  async #synchronise(instance: Instance, feed: Feed, first?: BlockBatch): Promise<void> {
    feed.buffered = first ? [first] : [];
    const { signal } = instance.lost;
    while (!signal.aborted) {
      try {
        const pages = await this.#readSnapshot(instance);
        if (this.#feeds.get(instance.id)?.feed !== feed) return;
        this.#index.removeHolder(instance.id);
        for (const { tier, keys } of pages) {
          const name = tiers[tier];
          if (name) this.#index.apply(instance.id, { operation: 'stored', tier: name, keys: unpackKeys(keys) });
        }
        feed.sequence = pages[0]?.sequence ?? 0;
        const buffered: readonly BlockBatch[] = feed.buffered ?? [];
        feed.buffered = undefined;
        for (const batch of buffered) this.#receive(batch);
        this.numSnapshots++;
        return;
      } catch (error) {
        this.#log.debug({ holder: instance.id, error: messageOf(error) }, 'no snapshot yet');
        await this.#clock.sleep(RETRY_MS, signal);
      }
    }
  }

  async #readSnapshot({ id, member, lost }: Instance): Promise<SnapshotPage[]> {
    const pages: SnapshotPage[] = [];
    const options = { signal: lost.signal, timeoutMs: SNAPSHOT_TIMEOUT_MS };
    for await (const page of ask(this.#network, member.address, 'snapshot', {}, options)) pages.push(page);
    const other = pages.find(({ epoch }) => epoch !== id);
    if (other) throw new Error(`${member.address} is ${other.epoch} by now`);
    return pages;
  }
}

/** Records, or frames of them, that a fetch has asked for, in the order in which they are read. */
import assert from 'node:assert/strict';
import type { BlockHash } from '../../kv/block_key.ts';
import { frameIdOf } from '../transfer_thread/channel_messages.ts';
import type { WantedRecords } from '../transfer_thread/channel_client.ts';
import type { ReceivedItems, TransferWay } from './fetch_events.ts';

/** Result of receiving a record or frame: its fault, if any, and its path. */
export interface Received {
  readonly fault: string | undefined;
  readonly way: TransferWay;
}

/** A record, or one frame of it, that was asked for. */
export interface FetchItem {
  readonly index: number;
  readonly slot: number;
  readonly frame: number | undefined;
  /** Group of in-flight blocks that the frame belongs to; undefined for a complete record. */
  readonly group: Group | undefined;
  readonly bytes: number;
  received: Received | undefined;
}

/** Fields of a {@link FetchItem} that asks for a complete record. */
export const wholeRecord = { frame: undefined, group: undefined, received: undefined };

/**
 * In-flight blocks of one holder that are offered together, frame by frame. Blocks without a slot are asked for later, with all frames
 * that are offered by then.
 */
export interface Group {
  readonly first: number;
  readonly count: number;
  /** Slots of the first blocks of the group, in order; the blocks after them have none yet. */
  readonly slots: number[];
  /** Number of frames still to arrive for each block in `slots`. */
  readonly numLeft: number[];
  /** Headers of each promised frame, in the order of the wanted frames; each buffer holds FRAME_HEADER_BYTES per block. */
  readonly frameHeaders: Buffer[];
}

/** A block that its holder offers and that has no slot here yet. */
export interface Promised {
  readonly index: number;
  readonly of: Group | { readonly over: 'channel' | 'call'; readonly bytes: number };
}

/** Queue of the records and frames that a fetch has asked for, in reading order. */
export class FetchQueue {
  readonly #hashes: readonly BlockHash[];
  readonly #items: FetchItem[] = [];
  /** Items that have not arrived, by their frameIdOf number (channel_messages.ts). */
  readonly #arriving = new Map<number, FetchItem>();

  constructor(hashes: readonly BlockHash[]) {
    this.#hashes = hashes;
  }

  /** Item that the reader needs next; undefined when nothing has been asked for. */
  get first(): FetchItem | undefined {
    return this.#items[0];
  }

  /** Whether an item that was asked for has not arrived. */
  get isComing(): boolean {
    return this.#arriving.size > 0;
  }

  /** Queues items of one size, and returns the request for them: complete records, or one frame of each. */
  ask(items: readonly FetchItem[], frame?: WantedRecords['frame']): WantedRecords {
    const indices = items.map(({ index, frame: which }) => frameIdOf(index, which));
    for (const [i, item] of items.entries()) this.#arriving.set(indices[i] ?? 0, item);
    this.#items.push(...items);
    const digests = items.map(({ index }) => {
      const hash = this.#hashes[index];
      assert(hash, `block ${index} of ${this.#hashes.length} was asked for`);
      return hash.digest;
    });
    const records = { indices, digests, slots: items.map(({ slot }) => slot), bytes: items[0]?.bytes ?? 0 };
    return frame ? { ...records, frame } : records;
  }

  /** Marks items as received. @returns indices of the blocks that are complete now. */
  arrived({ indices, faults, way }: ReceivedItems): number[] {
    return indices.flatMap((at, i) => {
      const item = this.#arriving.get(at);
      if (!item) return [];
      this.#arriving.delete(at);
      item.received = { fault: faults[i], way };
      return isWhole(item) ? [item.index] : [];
    });
  }

  /** Removes and returns the first item when it has been received, else returns undefined. */
  shift(): (FetchItem & { readonly received: Received }) | undefined {
    const [first] = this.#items;
    if (!first?.received) return undefined;
    this.#items.shift();
    return { ...first, received: first.received };
  }

  /** Stops expecting the items that have not arrived; later arrivals of them are ignored. */
  giveUp(): void {
    this.#arriving.clear();
  }
}

/** Counts one received frame of the item's block. @returns whether the block is complete. */
function isWhole({ group, index }: FetchItem): boolean {
  if (!group) return true;
  const left = (group.numLeft[index - group.first] ?? 1) - 1;
  group.numLeft[index - group.first] = left;
  return left === 0;
}

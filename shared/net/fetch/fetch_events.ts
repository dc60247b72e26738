/** What a fetch is told, what it does, and what its reader gets: see fetch_machine.ts. */
import type { Failure } from '../../base/failure.ts';
import type { FetchReply } from '../../protocol/messages.ts';
import type { WantedRecords } from '../transfer_thread/channel_client.ts';

/** Where a block of a fetch is. */
export type BlockState = 'asked' | 'promised' | 'arriving' | 'received' | 'delivered' | 'lost';

/** Where a block goes from there. */
const NEXT: Readonly<Record<BlockState, readonly BlockState[]>> = {
  asked: ['promised', 'lost'],
  promised: ['arriving', 'lost'],
  arriving: ['received', 'lost'],
  received: ['delivered'],
  delivered: [],
  lost: [],
};

export function mayFollow(from: BlockState | undefined, to: BlockState): boolean {
  return from !== undefined && NEXT[from].includes(to);
}

/** What a record came by. */
export type TransferWay = 'memory' | 'socket' | 'call';

/** They are in their slots; `faults` say why some cannot be used. */
export interface ReceivedItems {
  /** As channel_messages.ts numbers what is asked for. */
  readonly indices: readonly number[];
  readonly faults: readonly (string | undefined)[];
  readonly way: TransferWay;
}

export type FetchEvent =
  | { readonly kind: 'reply'; readonly reply: FetchReply }
  /** For blocks that have none, no more than `numWanted`. */
  | { readonly kind: 'slots'; readonly slots: readonly number[] }
  | ({ readonly kind: 'arrived' } & ReceivedItems)
  /** The call: nothing more is promised. */
  | { readonly kind: 'ended' }
  /** Nothing more comes. */
  | { readonly kind: 'broken'; readonly error: Failure };

export type FetchAction =
  | { readonly kind: 'ask'; readonly over: 'channel' | 'call'; readonly records: WantedRecords }
  /** The next bytes of the record that comes over the call. */
  | { readonly kind: 'slice'; readonly offset: number; readonly data: Uint8Array };

/** A record in its slot, or one frame of it. */
export interface Arrived {
  /** Of the run that was asked for. */
  readonly index: number;
  readonly slot: number;
  /** Undefined: the whole record. Frames of a block come in order, blocks beside one another; where only some are wanted, it may come whole all the same. */
  readonly frame: number | undefined;
  /** Nothing more comes into the slot, which is its reader's now. */
  readonly isLast: boolean;
  /** Why it cannot be used. */
  readonly fault: string | undefined;
}

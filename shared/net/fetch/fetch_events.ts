/** Events, actions and results of the fetch state machine in fetch_machine.ts. */
import type { Failure } from '../../base/failure.ts';
import type { FetchReply } from '../../protocol/messages.ts';
import type { WantedRecords } from '../transfer_thread/channel_client.ts';

/** State of one block of a fetch; fetch_machine.ts draws the transitions. */
export type BlockState = 'asked' | 'promised' | 'arriving' | 'received' | 'delivered' | 'lost';

/** States that may follow each state. */
const NEXT: Readonly<Record<BlockState, readonly BlockState[]>> = {
  asked: ['promised', 'lost'],
  promised: ['arriving', 'lost'],
  arriving: ['received', 'lost'],
  received: ['delivered'],
  delivered: [],
  lost: [],
};

/** Whether a block may go from state `from` to state `to`; false when `from` is undefined. */
export function mayFollow(from: BlockState | undefined, to: BlockState): boolean {
  return from !== undefined && NEXT[from].includes(to);
}

/** Path by which a record arrives: shared memory, the socket of a data channel, or the call. */
export type TransferWay = 'memory' | 'socket' | 'call';

/** Records or frames that are now in their slots. `faults` holds, for each, the reason why it cannot be used, or undefined. */
export interface ReceivedItems {
  /** Record or frame numbers, as frameIdOf in channel_messages.ts makes them. */
  readonly indices: readonly number[];
  readonly faults: readonly (string | undefined)[];
  readonly way: TransferWay;
}

/** Inputs of the fetch state machine. */
export type FetchEvent =
  | { readonly kind: 'reply'; readonly reply: FetchReply }
  /** Slots for the next promised blocks, at most `numWanted`. */
  | { readonly kind: 'slots'; readonly slots: readonly number[] }
  | ({ readonly kind: 'arrived' } & ReceivedItems)
  /** The call has ended: nothing more is promised. */
  | { readonly kind: 'ended' }
  /** The call or its transfer failed: nothing more arrives. */
  | { readonly kind: 'broken'; readonly error: Failure };

/** Outputs of the fetch state machine, which its driver performs. */
export type FetchAction =
  | { readonly kind: 'ask'; readonly over: 'channel' | 'call'; readonly records: WantedRecords }
  /** The next bytes of the record that comes over the call. */
  | { readonly kind: 'slice'; readonly offset: number; readonly data: Uint8Array };

/** A record in its slot, or one frame of it. */
export interface Arrived {
  /** Position of the block among the hashes that were asked for. */
  readonly index: number;
  readonly slot: number;
  /**
   * Frame number; undefined for a complete record. Frames of one block come in order, those of several blocks interleave. A record may
   * come complete even where only some frames are wanted.
   */
  readonly frame: number | undefined;
  /** Whether the block is complete: nothing more is written into the slot, which belongs to the reader from now on. */
  readonly isLast: boolean;
  /** Reason why the record or frame cannot be used; undefined when it is verified. */
  readonly fault: string | undefined;
  /** Whether the holder read the block from its disk for this fetch. */
  readonly isFromDisk: boolean;
}

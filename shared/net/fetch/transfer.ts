/** Transfers that bring records into slots: over a stream of a data channel (shared memory or socket), or over the Fetch call itself. */
import { messageOf, type Failure } from '../../base/failure.ts';
import type { Digest } from '../../kv/block_key.ts';
import type { TransferThread } from '../transfer_thread/transfer_thread.ts';
import type { WantedRecords } from '../transfer_thread/channel_client.ts';
import type { ReceivedItems, TransferWay } from './fetch_events.ts';

/** One way to bring records into slots. */
export interface Transfer {
  /** Asks for these records, each into its slot. */
  ask(records: WantedRecords): void;
  /** Cancels every record still to come. Resolves when none of the transfer's slots is written any more. */
  close(): Promise<void>;
}

/** Receiver of a transfer's events. */
export interface TransferListener {
  readonly arrived: (items: ReceivedItems) => void;
  /** Called when the transfer has failed: nothing more arrives. */
  readonly broken: (error: Failure) => void;
}

/** Bytes of received records, by path. */
export type Moved = Record<TransferWay, number>;

/** Returns zero bytes for every path. */
export function nothingMoved(): Moved {
  return { memory: 0, socket: 0, call: 0 };
}

/** Supplier of the slots that records are written into. */
export interface Slots {
  /** Acquires a slot: returns it at once when one is free, else a promise. */
  readonly acquire: () => number | Promise<number>;
  readonly bytes: (slot: number) => Uint8Array;
  readonly release: (slot: number) => void;
}

/** Receives records as slices in the replies of their Fetch call, one record at a time. */
export class CallTransfer implements Transfer {
  readonly #transferThread: Pick<TransferThread, 'call'>;
  readonly #format: Digest;
  readonly #slots: Pick<Slots, 'bytes'>;
  readonly #listener: TransferListener;
  /** Record whose slices are arriving. */
  #asked: WantedRecords | undefined;
  /**
   * First slice of the next record when the slice arrives before the slot is known. One is enough: the call is not read further
   * meanwhile.
   */
  #early: { readonly offset: number; readonly data: Uint8Array } | undefined;

  constructor(
    { transferThread, format }: { readonly transferThread: Pick<TransferThread, 'call'>; readonly format: Digest },
    slots: Pick<Slots, 'bytes'>,
    listener: TransferListener,
  ) {
    this.#transferThread = transferThread;
    this.#format = format;
    this.#slots = slots;
    this.#listener = listener;
  }

  ask(records: WantedRecords): void {
    this.#asked = records;
    const early = this.#early;
    this.#early = undefined;
    if (early) this.slice(early.offset, early.data);
  }

  /** The next bytes of the record. */
  slice(offset: number, data: Uint8Array): void {
    const slot = this.#asked?.slots[0];
    if (!this.#asked || slot === undefined) {
      this.#early = { offset, data };
      return;
    }
    this.#slots.bytes(slot).set(data, offset);
    const { indices, digests, bytes } = this.#asked;
    if (offset + data.length < bytes) return;
    this.#asked = undefined;
    const [digest] = digests;
    if (digest === undefined) return;
    const verified = this.#transferThread.call('verify', { slot, bytes, want: { format: this.#format, digest } });
    // A failure of the transfer thread is reported as the record's fault.
    void verified.catch(messageOf).then((fault) => {
      this.#listener.arrived({ indices, faults: [fault], way: 'call' });
    });
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

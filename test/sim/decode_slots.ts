/** The Decode and Prefill calls of a simulated stream, as each of its ends knows them from the messages, not from the code under test. */
import type { CallName } from '../../shared/net/network.ts';
import type { DecodeReplies, DecodeRequest } from '../../shared/protocol/messages.ts';
import { unpackTokens } from '../../shared/protocol/packing.ts';

/** A call that is open at its caller. */
export interface OpenSlot {
  readonly name: CallName | 'prefill';
  readonly address: string;
  /** Id of the request trace that the call belongs to. */
  readonly recordId: string | undefined;
  /** Since when nobody there knows what it is for. */
  orphanedSinceMs: number | undefined;
}

/** Returns the slots whose calls a message ends. */
function endedBy({ slots, finishes, events }: DecodeReplies): number[] {
  const rows = [...unpackTokens(slots)].filter((_, row) => (finishes[row] ?? 0) > 0);
  const ends = events.filter(({ failure, prefill }) => failure ?? prefill?.report);
  return [...rows, ...ends.map(({ slot }) => slot)];
}

/** Open calls of one stream. */
export class DecodeSlots {
  readonly #address: string;
  readonly #open = new Map<number, OpenSlot>();
  /** Calls that the caller has cancelled, and whose end it has not received. */
  readonly #left = new Map<number, OpenSlot>();
  readonly #served = new Set<number>();
  readonly #onServed: (change: 1 | -1) => void;

  /** `onServed` is called when the server begins and ends a call. */
  constructor(address: string, onServed: (change: 1 | -1) => void) {
    this.#address = address;
    this.#onServed = onServed;
  }

  get open(): readonly OpenSlot[] {
    return [...this.#open.values()];
  }

  /** Calls that the caller has cancelled and the server has not ended: their slots are taken. */
  get leaving(): readonly OpenSlot[] {
    return [...this.#left.values()];
  }

  /** The caller sends a message. */
  sent({ slot, start, prefill, cancel }: DecodeRequest): void {
    const call = this.#open.get(slot);
    if (cancel && call) {
      this.#open.delete(slot);
      this.#left.set(slot, call);
    }
    const begun = start ?? prefill;
    if (!begun) return;
    const name = start ? 'decode' : 'prefill';
    const recordId = begun.context?.requestId.split('.')[0];
    this.#open.set(slot, { name, address: this.#address, recordId, orphanedSinceMs: undefined });
  }

  /** The caller gets replies. */
  received(replies: DecodeReplies): void {
    for (const slot of endedBy(replies)) {
      this.#open.delete(slot);
      this.#left.delete(slot);
    }
  }

  /** The server gets a message. */
  taken({ slot, start, prefill }: DecodeRequest): void {
    if (!(start ?? prefill) || this.#served.has(slot)) return;
    this.#served.add(slot);
    this.#onServed(1);
  }

  /** The server sends replies. */
  replied(replies: DecodeReplies): void {
    for (const slot of endedBy(replies)) if (this.#served.delete(slot)) this.#onServed(-1);
  }

  /** The caller gets nothing any more. */
  left(): void {
    this.#open.clear();
    this.#left.clear();
  }

  /** The server's handler has ended. */
  ended(): void {
    for (const slot of [...this.#served]) if (this.#served.delete(slot)) this.#onServed(-1);
  }
}

/**
 * Host memory for blocks on their way into the device: a bounded number of slots (P1).
 *
 * When all slots are in use, the fetch streams are not read. Sequences that are not admitted yet may hold at most half of the slots:
 * their slots only become free after admission, and an admitted sequence that found none would wait forever.
 */
import type { RecordCache } from '../kv/record_cache.ts';

interface Waiter {
  readonly isAdmitted: () => boolean;
  readonly bytes: number;
  resolve: (slot: number) => void;
}

/** Bounded set of slab slots for arriving records, shared between admitted and waiting sequences. */
export class FetchSlots {
  readonly #cache: RecordCache;
  readonly #recordBytes: number;
  readonly #size: number;
  readonly #waiters: Waiter[] = [];
  /** Slots in use: whether their sequence is admitted at present (a preempted one is not), and how many pins each has. */
  readonly #inUse = new Map<number, { readonly isAdmitted: () => boolean; numPins: number }>();

  constructor(cache: RecordCache, recordBytes: number, size: number) {
    this.#cache = cache;
    this.#recordBytes = recordBytes;
    this.#size = size;
  }

  get numInUse(): number {
    return this.#inUse.size;
  }

  /**
   * Acquires a slot: returns it at once when one is free and nobody with a claim waits, else a promise that rejects when `signal`
   * aborts. `bytes`: of the record; by default that of a block.
   */
  acquire(isAdmitted: () => boolean, signal: AbortSignal, bytes = this.#recordBytes): number | Promise<number> {
    if (signal.aborted) return Promise.reject(new Error('the fetch was given up'));
    let here: number | undefined;
    const waiter: Waiter = {
      isAdmitted,
      bytes,
      resolve: (slot) => {
        here = slot;
      },
    };
    this.#waiters.push(waiter);
    this.pump();
    return here ?? this.#wait(waiter, signal);
  }

  #wait(waiter: Waiter, signal: AbortSignal): Promise<number> {
    return new Promise((resolve, reject) => {
      const abort = (): void => {
        const at = this.#waiters.indexOf(waiter);
        if (at >= 0) this.#waiters.splice(at, 1);
        reject(new Error('the fetch was given up'));
      };
      waiter.resolve = (slot) => {
        signal.removeEventListener('abort', abort);
        resolve(slot);
      };
      signal.addEventListener('abort', abort, { once: true });
    });
  }

  /** Adds a pin to a slot; every pin needs one `release`. */
  pin(slot: number): void {
    const used = this.#inUse.get(slot);
    if (used) used.numPins++;
  }

  release(slot: number): void {
    const used = this.#inUse.get(slot);
    if (used && --used.numPins > 0) return;
    this.#inUse.delete(slot);
    this.#cache.releaseSlot(slot);
    this.pump();
  }

  /**
   * Whether a received record may wait in its slot for the engine. The slots of a preempted sequence count as early again; with more
   * than half of the slots early, sequences that could be admitted would find none, and no slot would ever become free.
   */
  mayKeep(slot: number): boolean {
    const used = this.#inUse.get(slot);
    return used === undefined || used.isAdmitted() || this.#numEarly() <= Math.ceil(this.#size / 2);
  }

  /** Slots of sequences that are not admitted. */
  #numEarly(): number {
    return [...this.#inUse.values()].filter(({ isAdmitted }) => !isAdmitted()).length;
  }

  /** Assigns free slots to waiters that may have one; call after an admission. */
  pump(): void {
    for (let i = 0; i < this.#waiters.length && this.#inUse.size < this.#size;) {
      const waiter = this.#waiters[i];
      if (!waiter) return;
      const isEarly = !waiter.isAdmitted();
      if (isEarly && this.#numEarly() >= this.#size / 2) {
        i++;
        continue;
      }
      const slot = this.#cache.acquireSlot(waiter.bytes);
      if (slot === undefined) {
        // Where a state finds no room, a block may.
        if (waiter.bytes <= this.#recordBytes) return;
        i++;
        continue;
      }
      this.#waiters.splice(i, 1);
      this.#inUse.set(slot, { isAdmitted: waiter.isAdmitted, numPins: 1 });
      waiter.resolve(slot);
    }
  }
}
